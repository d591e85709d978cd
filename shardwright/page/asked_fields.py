"""What a page asks for: its fields, as parameters of its address and as flags of a command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiles.errors import UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One input, its value the text of a flag.

    name     of the flag without its dashes, and of the parameter of the address
    usual    what the command takes where the flag is absent
    start    what an address without the parameter means
    help     what may be typed
    options  to choose from; others may be typed
    fixed    only the options may be chosen
    switch   a flag without a value: "" or "yes"
    empty    what an empty value means, where it is among the options
    argument   the command's argument and no flag
    counted  a cluster, whose number of nodes has an input of its own
    more     seldom needed: folded away
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
        """As it is typed."""
        return f"--{self.name}"


def starting_values(fields: Sequence[Field], address: Mapping[str, str]) -> dict[str, str]:
    """The value of every field under the parameters of an address."""
    return {field.name: address.get(field.name, field.start) for field in fields}


def unknown_parameters(fields: Sequence[Field], address: Mapping[str, str]) -> list[str]:
    """What is wrong with an address: parameters that no field has, each with the nearest."""
    known = [field.name for field in fields]
    return [
        str(UnknownNameError("parameter", name, known, where="the page's address"))
        for name in address
        if name not in known
    ]


def address_of(fields: Sequence[Field], values: Mapping[str, str]) -> dict[str, str]:
    """The parameters that stand for the values: those that differ from the start.

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
    """The field that an error is about: the first whose flag its text names; "" for none.

    >>> field_named([Field(name="seq", label="", help="")], "--seq must be 1 or more")
    'seq'
    """
    found = [(at, field.name) for field in fields if (at := _place(text, field)) >= 0]
    return min(found)[1] if found else ""


def _place(text: str, field: Field) -> int:
    """Where a flag stands in a text as a word of its own; -1 for nowhere."""
    at = text.find(field.flag)
    while at >= 0:
        after = text[at + len(field.flag) : at + len(field.flag) + 1]
        if not (after.isalnum() or after == "-"):
            return at
        at = text.find(field.flag, at + 1)
    return -1


def typed_values(fields: Sequence[Field], values: Mapping[str, str]) -> dict[str, str]:
    """The values without spaces around them; what is usual where one is empty."""
    return {field.name: values[field.name].strip() or field.usual for field in fields}
