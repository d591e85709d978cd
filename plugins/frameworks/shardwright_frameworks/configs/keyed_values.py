"""Parse the values of a keyed file: integers, booleans and words, by a table of keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import by_key, truth, whole
from shardwright_frameworks.configs.interpolation import Key
from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.configs.known_options import is_known
from shardwright_frameworks.imported_run import Value
from shardwright_frameworks.shell.text_marks import Place

Reader = Callable[[Any], Value]


def count_of(value: Any) -> int | None:
    """An integer of 0 or more, also if written as text."""
    if isinstance(value, bool) or value is None:
        return None
    number = whole(str(value))
    return number if number is not None and number >= 0 else None


def degree_of(value: Any) -> int | None:
    """An integer of 1 or more; None for -1 and `auto`."""
    number = count_of(value)
    return number if number else None


def truth_of(value: Any) -> bool | None:
    """A boolean, also if written as text."""
    if isinstance(value, bool):
        return value
    return truth(str(value)) if isinstance(value, (str, int)) else None


def opposite_of(value: Any) -> bool | None:
    """The opposite of a switch (`no_weight_tying`)."""
    on = truth_of(value)
    return None if on is None else not on


def recompute_of(value: Any) -> str | None:
    """`full` for a switch that is on, `none` for one that is off."""
    on = truth_of(value)
    return None if on is None else "full" if on else "none"


def if_on(value: str | float) -> Reader:
    """A reader of a switch: the value if it is on, otherwise None."""
    return lambda switch: value if truth_of(switch) else None


def word_of(value: Any) -> str | None:
    """A text in lower case."""
    return value.strip().lower() or None if isinstance(value, str) else None


_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def dtype_of(value: Any) -> str | None:
    """The precision of a torch type (`torch.bfloat16`, `bf16`)."""
    word = str(value).strip().lower().removeprefix("torch.")
    return word if word in _DTYPES.values() else _DTYPES.get(word)


def flash_of(value: Any) -> bool | None:
    """Whether a kernel that never stores all scores computes attention, by a framework's name for
    the kernel or by a switch; None for one that the framework or torch chooses (`auto`, `sdpa`)."""
    word = str(value).lower()
    if word in ("fa2", "fa3", "fused") or "flash" in word:
        return True
    return False if word in ("disabled", "eager", "unfused", "local", "torch") else truth_of(value)


def text_of(value: Any) -> str | None:
    """A text as written."""
    return value.strip() or None if isinstance(value, str) else None


def read_by(reader: Reader, fields: Mapping[str, str]) -> dict[str, tuple[str, Reader]]:
    """Entries of a table of keys with one reader, from the keys of each field."""
    return {key: (field, reader) for key, field in by_key(fields).items()}


def collect_keys(
    file: KeyedFile, collected: Collected, keys: Mapping[str, tuple[str, Reader]]
) -> None:
    """Collect the values whose keys are in the table (`parallelism.tp`), in the file's order."""
    found = []
    for dotted, (key, reader) in keys.items():
        path = tuple(dotted.split("."))
        if path not in file.values:
            continue
        if (unknown := file.open(*path)) is not None:
            collected.leave_open(key, dotted, unknown.why, file.place(path))
            continue
        raw = file.get(*path)
        value = reader(raw)
        if value is not None:
            found.append((file.place(path), key, value, dotted))
        elif isinstance(raw, str) and ("$" in raw or "{{" in raw) and raw.strip():
            why = f"{raw!r} is filled in elsewhere"
            collected.leave_open(key, dotted, why, file.place(path))
    for place, key, value, dotted in sorted(found, key=lambda each: each[0]):
        collected.set(key, value, place, dotted)
    for path, first, second in file.twice:
        name = ".".join(path)
        if name in keys:
            collected.report_contradiction(
                keys[name][0],
                f"{name} is given twice, in lines {first} and {second} of {file.name}; the later "
                "one is taken",
                Place(file.name, first),
                file.place(path),
            )


def collect_unknown(
    file: KeyedFile, collected: Collected, framework: str, sections: tuple[str, ...]
) -> None:
    """Report the keys of sections (`""`: the top of the file) that no version has."""
    for section in sections:
        path: Key = (section,) if section else ()
        for key in sorted(file.sections(*path)):
            if not key.isdigit() and not is_known(framework, key):
                collected.report_unknown(".".join((*path, key)), file.place((*path, key)))
