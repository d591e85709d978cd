"""Input fields of a page, as URL parameters and as flags of a command line."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from profiles.errors import InputError, ShardwrightError, UnknownNameError
from profiles.model.loaders import resolve_model
from shardwright.requests.sizing.size_flags import SeveralErrors


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One input field; its value is the text of a flag.

    name     of the flag without its dashes, and of the URL parameter
    usual    default of the command
    start    default of the page
    help     allowed input
    options  values to select; others can be typed unless `fixed`
    switch   a flag without a value: "" or "yes"
    empty    label of the empty option
    argument   the command's argument instead of a flag
    counted  a cluster, with a separate input for its number of nodes
    more     rarely needed, in the folded section
    """

    name: str
    label: str
    usual: str = ""
    start: str = ""
    help: str
    options: tuple[str, ...] = ()
    empty: str = ""
    fixed: bool = False
    switch: bool = False
    argument: bool = False
    counted: bool = False
    more: bool = False

    @property
    def flag(self) -> str:
        """The flag with its dashes."""
        return f"--{self.name}"


def starting_values(fields: Sequence[Field], address: Mapping[str, str]) -> dict[str, str]:
    """The value of every field for the parameters of a URL."""
    return {field.name: address.get(field.name, field.start) for field in fields}


def unknown_parameters(fields: Sequence[Field], address: Mapping[str, str]) -> list[str]:
    """Error messages for unknown URL parameters, each with the nearest known name."""
    known = [field.name for field in fields]
    return [
        str(UnknownNameError("parameter", name, known, where="the page's address"))
        for name in address
        if name not in known
    ]


def address_of(fields: Sequence[Field], values: Mapping[str, str]) -> dict[str, str]:
    """The URL parameters for the values, without defaults.

    >>> one = Field(name="seq", label="", start="4096", help="")
    >>> address_of([one], {"seq": "8192"}), address_of([one], {"seq": "4096"})
    ({'seq': '8192'}, {})
    """
    return {field.name: values[field.name] for field in fields if values[field.name] != field.start}


def command_of(command: str, fields: Sequence[Field], values: Mapping[str, str]) -> str:
    """The command line with the same answer, for a shell.

    >>> model = Field(name="model", label="", help="", argument=True)
    >>> budget = Field(name="budget", label="", help="")
    >>> command_of("size", [model, budget], {"model": "gpt2", "budget": "5M$"})
    "shardwright size gpt2 --budget '5M$'"
    """
    words = ["shardwright", command]
    for field in fields:
        value = values[field.name].strip() or field.usual
        if field.argument:
            words += [value] if value else []
        elif field.switch:
            words += [field.flag] if value else []
        elif value != field.usual:
            words += [field.flag, value]
    return shlex.join(words)


def field_named(fields: Sequence[Field], text: str) -> str:
    """The field of an error: the first field with its flag in the text; "" for none.

    >>> field_named([Field(name="seq", label="", help="")], "--seq must be 1 or more")
    'seq'
    """
    matches = [(at, field.name) for field in fields if (at := _place(text, field)) >= 0]
    return min(matches)[1] if matches else ""


def _place(text: str, field: Field) -> int:
    """Index of a flag in a text, as a whole word; -1 if missing."""
    at = text.find(field.flag)
    while at >= 0:
        after = text[at + len(field.flag) : at + len(field.flag) + 1]
        if not (after.isalnum() or after == "-"):
            return at
        at = text.find(field.flag, at + 1)
    return -1


def typed_values(fields: Sequence[Field], values: Mapping[str, str]) -> dict[str, str]:
    """The values without surrounding spaces; empty ones are replaced by the command's default."""
    return {field.name: values[field.name].strip() or field.usual for field in fields}


T = TypeVar("T")


class FieldErrors(InputError):
    """messages: (field name, error message of the command line)."""

    def __init__(self, messages: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(text for _, text in messages))
        self.messages = tuple(messages)


def near(fields: Sequence[Field], otherwise: str, read: Callable[[], T]) -> T:
    """The result of `read`. Its errors become FieldErrors for the field whose flag is in the
    message, or for the field `otherwise`."""
    try:
        return read()
    except FieldErrors:
        raise
    except SeveralErrors as error:
        raise FieldErrors([(field_named(fields, s) or otherwise, s) for s in error.said]) from error
    except ShardwrightError as error:
        text = str(error)
        raise FieldErrors([(field_named(fields, text) or otherwise, text)]) from error


def need_options(fields: Sequence[Field], values: Mapping[str, str]) -> None:
    """Raises FieldErrors for values that are not among a field's options."""
    messages = []
    for field in fields:
        value = values[field.name]
        if field.fixed and value not in field.options:
            known = ", ".join(repr(one) for one in field.options if one)
            messages.append((field.name, _invalid(field.flag, f"{value!r} is not one of {known}.")))
        if field.switch and value not in ("", "yes"):
            messages.append((field.name, _invalid(field.flag, f"{value!r} is not yes.")))
    if messages:
        raise FieldErrors(messages)


def need_no_code(model: str) -> None:
    """Raises InputError for a model that is Python code, since the URL may be a stranger's link."""
    if resolve_model(model).factory:
        raise InputError(
            f"{model} is Python code, which this page does not run, since it may come from a link; "
            "use the command line"
        )


def _invalid(flag: str, why: str) -> str:
    """An error message in the form of typer."""
    return f"Invalid value for '{flag}': {why}"
