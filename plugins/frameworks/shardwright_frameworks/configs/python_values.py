"""The values of a Python configuration while it is read: literals, objects with their entries, and
unknown values."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.configs.python_file import PythonFile
from shardwright_frameworks.shell.text_marks import Place

Key = tuple[str, ...]
_MOST_DEEP = 20


@dataclass(slots=True, eq=False)
class Built:
    """An object: the result of a class, a dictionary or a function that is not in the files.

    call       the dotted name of the called function, "" for a dictionary and for a part of an
               object that is created by setting an entry
    arguments  positional ones
    entries    keywords, items and attributes with their places
    defaults   entries of the class's definition
    open       why it may have further, unknown entries; "" if it has none
    is_part    whether it is a part created by setting an entry
    """

    call: str = ""
    arguments: list[Any] = field(default_factory=list)
    entries: dict[Any, tuple[Any, Place]] = field(default_factory=dict)
    defaults: dict[str, tuple[Any, Place]] = field(default_factory=dict)
    open: str = ""
    is_part: bool = False
    place: Place = field(default_factory=lambda: Place("", 0))

    def copy(self) -> Built:
        """The object with separate entries, which are copied as well."""
        entries = {k: (_copied(v), place) for k, (v, place) in self.entries.items()}
        return Built(
            call=self.call,
            arguments=list(self.arguments),
            entries=entries,
            defaults=dict(self.defaults),
            open=self.open,
            is_part=self.is_part,
            place=self.place,
        )

    @property
    def is_unset(self) -> bool:
        """Whether nothing was set on a part."""
        return self.is_part and not self.entries


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, (Built, list)) else value


@dataclass(frozen=True, slots=True)
class Named:
    """A name that is not defined in the files: a class, or a module's constant."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of the files, with bound arguments."""

    path: Path
    file: PythonFile
    node: ast.FunctionDef
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """A file that another one imports as a whole."""

    path: Path
    file: PythonFile


@dataclass(slots=True)
class PythonValues:
    """The values of one function, or of the top of a file.

    values    by the path of keywords and attributes; Open if unknown
    defaults  values from the definitions of the used classes
    calls     called functions with literal positional arguments, by the path of the keyword that
              has the result
    opened    paths below which unknown values may be, with the called name and the reason
    """

    name: str
    values: dict[Key, tuple[Any, Place]] = field(default_factory=dict)
    defaults: dict[Key, tuple[Any, Place]] = field(default_factory=dict)
    calls: list[tuple[Key, str, tuple[Any, ...], Place]] = field(default_factory=list)
    opened: dict[Key, tuple[str, str, Place]] = field(default_factory=dict)


def flattened(name: str, value: Any) -> PythonValues:
    """The values of an object by path."""
    found = PythonValues(name)
    _flatten(value, (), Place("", 0), found)
    return found


def _flatten(value: Any, path: Key, place: Place, result: PythonValues) -> None:
    if len(path) > _MOST_DEEP:
        return
    if isinstance(value, Built):
        if value.call:
            plain = tuple(each for each in value.arguments if is_literal(each))
            result.calls.append((path, value.call, plain, value.place))
        if value.open and not value.is_part:
            result.opened[path] = (value.call, value.open, value.place)
        for argument in value.arguments:
            if isinstance(argument, (Built, Open)):
                _flatten(argument, path, value.place, result)
        for key, (default, at) in value.defaults.items():
            if is_literal(default) and key not in value.entries:
                result.defaults[(*path, key)] = (default, at)
        for key, (entry, at) in value.entries.items():
            _flatten(entry, (*path, str(key)), at, result)
    elif isinstance(value, Open):
        if path:
            result.values[path] = (value, place)
        result.opened.setdefault(path, ("", value.why, place))
    elif isinstance(value, Named):
        if value.name[:1].isupper() or "." in value.name:
            result.calls.append((path, value.name, (), place))
        result.values[path] = (Open(f"{value.name} is not in the files"), place)
    elif is_literal(value):
        if path:
            result.values[path] = (value, place)
    elif isinstance(value, list) and (unknown := _unknown_in(value)) is not None and path:
        result.values[path] = (unknown, place)
    elif isinstance(value, list):
        for item in reversed(value):  # if several have an entry, the first one counts
            if isinstance(item, Built):
                _flatten(item, path, place, result)


def _unknown_in(values: list[Any]) -> Open | None:
    """The unknown part of a nested list of constants; None for other lists."""
    parts = [_unknown_in(each) if isinstance(each, list) else each for each in values]
    if not all(isinstance(each, Open) or is_literal(each) for each in parts):
        return None
    return next((each for each in parts if isinstance(each, Open)), None)


def is_literal(value: Any) -> bool:
    """Whether a value is a constant, or a list of constants."""
    if isinstance(value, list):
        return all(map(is_literal, value))
    return value is None or isinstance(value, (bool, int, float, str))
