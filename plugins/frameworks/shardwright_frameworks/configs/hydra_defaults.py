"""The files that a Hydra configuration combines by its `defaults` list (hydra.cc, 1.3, The Defaults
List): `- train: 14b` is the file train/14b.yaml below the key `train`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from posixpath import normpath

from shardwright_frameworks.configs.interpolation import Key
from shardwright_frameworks.configs.keyed_file import KeyedFile, read_keyed
from shardwright_frameworks.shell.config_folder import ConfigFolder
from shardwright_frameworks.shell.text_marks import unknown_numbers, without_unknowns

_MOST_DEEP = 6
_MOST_FILES = 100
_MOST_ROUNDS = 4
_SCHEME = re.compile(r"^\w+://")
_CHOICE = re.compile(r"\$\{([\w/@.]+)\}")
_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.M)
# Of verl's programs, which only add other defaults to the reader's.
BUILT_IN = re.compile(r"(^|/)(ppo_(megatron_)?trainer|sft_trainer(_engine)?|legacy_data)\.yaml$")
Part = tuple[Key, KeyedFile]


@dataclass(frozen=True, slots=True)
class HydraParts:
    """The file and the files of its defaults, each with its package (the key above its values);
    a later one overrides earlier ones. `missing` are messages about files that are not read."""

    parts: tuple[Part, ...]
    missing: tuple[str, ...] = ()


def hydra_parts(
    file: KeyedFile, folder: ConfigFolder, chosen: Mapping[str, str] | None = None
) -> HydraParts:
    """The parts of a configuration; a file without a list is alone.

    chosen  options of groups by the command line (`train=70b`), which replace those of the lists;
            `+experiment` for one that a list does not have
    """
    chosen = chosen or {}
    options = {key.lstrip("+"): option for key, option in chosen.items()}
    added = [key.lstrip("+") for key in chosen if key.startswith("+")]
    paths = file.get("hydra", "searchpath")
    own = file.name.rpartition("/")[0]
    roots = [own, *[_SCHEME.sub("", str(each)) for each in paths or () if isinstance(paths, list)]]
    for _ in range(_MOST_ROUNDS):
        # `override /model: big` deep in a list applies to files read before it.
        walk = _Walk(folder, roots, dict(options))
        parts = walk.parts(file, "", 0)
        for group in added:
            if folder.text_from_root(walk.name(group, options[group])) is not None:
                parts += walk.loaded(group, options[group], group.replace("/", "."), 0)
        if walk.options == options:
            break
        options = walk.options
    return HydraParts(tuple(parts), tuple(walk.missing))


@dataclass(slots=True)
class _Walk:
    """One reading of the files.

    roots    the folder of the first file, and those of Hydra's search path
    options  replacements for the entries of lists, by group
    """

    folder: ConfigFolder
    roots: list[str]
    options: dict[str, str]
    missing: list[str] = field(default_factory=list)
    read: int = 0

    def name(self, group: str, option: str) -> str:
        """The file of a group's option."""
        ending = "" if option.endswith((".yaml", ".yml")) else ".yaml"
        names = [
            normpath("/".join(part for part in (root, group, option) if part)) + ending
            for root in self.roots
        ]
        known = (name for name in names if self.folder.text_from_root(name) is not None)
        return next(known, names[0])

    def parts(self, file: KeyedFile, inside: str, depth: int) -> list[Part]:
        """The parts of a group's file and of the files in its list."""
        entries: list[tuple[str, str, str, bool]] = []
        picked = dict(self.options)
        for word, option in _entries(file):
            *marks, last = word.split() or [""]
            head, _, package = last.partition("@")
            # A leading slash counts from the root's folder, otherwise from the folder of this file.
            near = () if (head or option).startswith("/") else (inside,)
            group = "/".join(part for part in (*near, head.strip("/")) if part)
            if "override" in marks:
                self.options.setdefault(group, option)
                continue
            if not head and "@" in option:  # `file@package`
                option, _, package = option.partition("@")
            taken = self.options.get(group, option) if head else option.lstrip("/")
            taken = _CHOICE.sub(lambda match: picked.get(match[1], match[0]), taken)
            picked[group] = taken
            below = package or head.strip("/").replace("/", ".")
            entries.append((group, taken, below, "optional" in marks))
        found: list[Part] = []
        has_self = False
        for group, option, below, optional in entries:
            if option == "_self_" and not below:
                found.append(((), file))
                has_self = True
            elif not group.startswith("hydra/"):  # how Hydra itself logs and launches
                found += self.loaded(group, option, below, depth, optional=optional)
        return found if has_self else [*found, ((), file)]

    def loaded(
        self, group: str, option: str, package: str, depth: int, *, optional: bool = False
    ) -> list[Part]:
        """The file of a group's option with the files of its list."""
        name = self.name(group, option)
        text = None if unknown_numbers(name) else self.folder.text_from_root(name)
        if text is None:
            if not optional and not BUILT_IN.search(name):
                self.missing.append(f"{without_unknowns(name)!r} is not inside it")
            return []
        self.read += 1
        if depth >= _MOST_DEEP or self.read > _MOST_FILES:
            self.missing.append(f"{name!r} is not read: the lists name too many files")
            return []
        head = _PACKAGE.search(text)
        below = _below(head[1] if head else package)
        inner = self.parts(
            read_keyed(name, self.folder),
            next(name.removeprefix(root) for root in reversed(self.roots) if name.startswith(root))
            .strip("/")
            .rpartition("/")[0],
            depth + 1,
        )
        return [((*below, *prefix), part) for prefix, part in inner]


def _entries(file: KeyedFile) -> Iterator[tuple[str, str]]:
    """The list's entries in order: group, with the words before it ("" if not named), and
    option."""
    plain = file.values.get(("defaults",))
    if isinstance(plain, list):
        yield from (("", str(option)) for option in plain)
        return
    found: list[tuple[int, str, str]] = []
    for path, value in file.values.items():
        if path[:1] != ("defaults",) or len(path) < 2 or not path[1].isdigit():
            continue
        options = value if isinstance(value, list) else [file.get(*path) or value]
        found += [
            (int(path[1]), path[2] if len(path) == 3 else "", str(option))
            for option in options
            if option is not None
        ]
    for _, group, option in sorted(found, key=lambda each: each[0]):
        yield group, option


def _below(package: str) -> Key:
    return tuple(part for part in package.split(".") if part and package != "_global_")
