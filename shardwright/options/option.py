"""`option`: an option, declared once as a field of a dataclass.

The flag and its help, the Python keyword, the key of a sweep, the field of the web page and the row
of docs/options.md are made from the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from profiles.errors import UnknownNameError

Read = Callable[[str, str], object]
"""Converts a text to a value; the second argument is the flag, for errors."""
_KEY = "option"


class SweepKey(StrEnum):
    """The place of an option in a sweep file."""

    GRID = "grid"  # a key of the grid
    PIN = "pins"
    OPTION = "options"
    FLAG = "flag"  # of the command only, for all requests
    NONE = "none"  # of a single request only


@dataclass(frozen=True, slots=True, kw_only=True)
class PageField:
    """The input of an option on the web page.

    label    of the input
    start    its first value
    help     the text below, "" for that of the flag
    choices  values to select, if not those of the option
    empty    label of the empty choice
    counted  a cluster, with a separate input for its number of nodes
    more     rarely needed, in the folded section
    """

    label: str
    start: str = ""
    help: str = ""
    choices: tuple[str, ...] = ()
    empty: str = ""
    counted: bool = False
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option with the name, type and default of the field that declares it.

    type      as written in the declaration
    unit      of the value, "" for none
    read      the value of a text, None if the text is the value
    flag      with its dashes, if not the name
    argument  a positional argument instead of a flag
    choices   the only values
    least     the smallest number
    needs_framework  not available for our own executor (--stack names a framework)
    layouts_only     not available in searches block by block
    keyword   of the Python function, if not the name; "" if there is none
    """

    name: str = ""
    type: str = ""
    default: object = None
    help: str
    unit: str = ""
    read: Read | None = None
    flag: str = ""
    argument: bool = False
    metavar: str = ""
    choices: tuple[str, ...] = ()
    least: int | None = None
    needs_framework: bool = False
    layouts_only: bool = False
    sweep: SweepKey = SweepKey.NONE
    page: PageField | None = None
    keyword: str | None = None

    def value(self, text: str) -> Any:
        """The value of a text (a sweep file, the web page); raises InputError naming the flag."""
        if self.read is not None:
            return self.read(text, self.flag)
        if self.choices and text not in self.choices:
            raise UnknownNameError(self.name, text, self.choices, where=self.flag)
        return text

    def is_set(self, value: object) -> bool:
        """Whether a value differs from the default."""
        return value != self.default


def option(default: object, **properties: Any) -> Any:
    """A field that declares an option; `properties` are those of `Option`."""
    return field(default=default, metadata={_KEY: Option(default=default, **properties)})


def option_as(record: type, name: str, **changes: Any) -> Any:
    """A field that declares the option of this name of another record, with changed properties."""
    (shared,) = (each for each in fields(record) if each.name == name)
    declared = replace(shared.metadata[_KEY], **changes)
    return field(default=declared.default, metadata={_KEY: declared})


def options_of(record: type) -> tuple[Option, ...]:
    """The options that a dataclass declares, in its order."""
    found = []
    for each in fields(record):
        declared: Option = each.metadata[_KEY]
        keyword, flag = declared.keyword, f"--{each.name.replace('_', '-')}"
        found.append(
            replace(
                declared,
                name=each.name,
                type=str(each.type),
                flag=declared.flag or flag,
                keyword=each.name if keyword is None else keyword,
            )
        )
    return tuple(found)


def values_of(record: type, texts: Mapping[str, str | None]) -> dict[str, Any]:
    """The values of texts by the names of options; None and "" are left out.

    Raises InputError naming the flag, UnknownNameError for an unknown option.
    """
    known = {each.name: each for each in options_of(record)}
    for name in texts:
        if name not in known:
            raise UnknownNameError("option", name, known)
    return {name: known[name].value(text) for name, text in texts.items() if text}


def from_keywords(record: type, keywords: Mapping[str, object]) -> dict[str, Any]:
    """The values of Python keywords by the names of options. A text is accepted for a path, and a
    single value for a tuple.

    Raises UnknownNameError for an unknown keyword.
    """
    known = {each.keyword: each for each in options_of(record) if each.keyword}
    values: dict[str, Any] = {}
    for keyword, value in keywords.items():
        if keyword not in known:
            raise UnknownNameError("option", keyword, known)
        declared = known[keyword]
        if declared.type.startswith("Path") and isinstance(value, str):
            value = Path(value)
        if declared.default == () and not isinstance(value, tuple):
            value = tuple(value) if isinstance(value, list) else (value,)
        values[declared.name] = value
    return values
