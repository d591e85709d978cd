"""The files that a Hydra configuration is put together of by its `defaults` list (hydra.cc, 1.3,
The Defaults List): `- train: 14b` is the file train/14b.yaml below the key `train`."""

from __future__ import annotations

import re

from interop.configs.interpolation import Key
from interop.configs.keyed_file import KeyedFile, read_keyed
from interop.shell.folder import ConfigFolder

_MOST_DEEP = 6
_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.M)


def hydra_parts(
    file: KeyedFile, folder: ConfigFolder, depth: int = 0
) -> tuple[tuple[Key, KeyedFile], ...]:
    """The file and those of its defaults that are beside it, each with the key that it stands
    below; a later one over those before it. A file without a list is alone."""
    entries = _entries(file)
    if not entries or depth > _MOST_DEEP:
        return (((), file),)
    found: list[tuple[Key, KeyedFile]] = []
    own = False
    for group, option in entries:
        if (group, option) == ("", "_self_"):
            found.append(((), file))
            own = True
            continue
        group, _, package = group.partition("@")
        name = _near(file.name, "/".join(part for part in (group, option) if part))
        text = folder.text(name)
        if text is None:
            continue
        head = _PACKAGE.search(text)
        below = _below(head[1] if head else package, group)
        inner = hydra_parts(read_keyed(name, text), folder, depth + 1)
        found += [((*below, *prefix), part) for prefix, part in inner]
    return tuple(found if own else [*found, ((), file)])


def _entries(file: KeyedFile) -> list[tuple[str, str]]:
    """Group and option of the list, in its order; "" for a group that is not named."""
    plain = file.values.get(("defaults",))
    if isinstance(plain, list):
        return [("", str(option)) for option in plain]
    found: list[tuple[int, str, str]] = []
    for path, value in file.values.items():
        if path[:1] != ("defaults",) or len(path) < 2 or not path[1].isdigit():
            continue
        words = path[2].split() if len(path) == 3 else [""]
        if value is not None and not isinstance(value, list):
            found.append((int(path[1]), words[-1], str(value)))
    return [(group, option) for _, group, option in sorted(found, key=lambda each: each[0])]


def _near(beside: str, name: str) -> str:
    folder, slash, _ = beside.rpartition("/")
    return f"{folder}{slash}{name.lstrip('/')}" + ("" if name.endswith(".yaml") else ".yaml")


def _below(package: str, group: str) -> Key:
    named = package or group.replace("/", ".")
    return () if named in ("_global_", "") else tuple(part for part in named.split(".") if part)
