"""`FieldErrors`: what is wrong with a page's values, each text with the field that it is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from profiles.errors import InputError, ShardwrightError
from profiles.model.loaders import resolve_model
from shardwright.asking.sizing.size_flags import SeveralErrors
from shardwright.page.asked_fields import Field, field_named

T = TypeVar("T")


class FieldErrors(InputError):
    """Texts as the command line says them, with the names of their fields."""

    def __init__(self, said: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(text for _, text in said))
        self.said = tuple(said)


def near(fields: Sequence[Field], otherwise: str, read: Callable[[], T]) -> T:
    """What `read` gives; raises its errors as those of the fields whose flags they name, or of the
    field `otherwise`."""
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
    """Raises FieldErrors for values that an address has and no field offers."""
    said = []
    for field in fields:
        value = values[field.name]
        if field.fixed and value not in field.options:
            known = ", ".join(repr(one) for one in field.options if one)
            said.append((field.name, _invalid(field.flag, f"{value!r} is not one of {known}.")))
        if field.switch and value not in ("", "yes"):
            said.append((field.name, _invalid(field.flag, f"{value!r} is not yes.")))
    if said:
        raise FieldErrors(said)


def number(flag: str, text: str, kind: type[int] | type[float]) -> int | float:
    """A whole number, or any; raises InputError."""
    try:
        return kind(text)
    except ValueError:
        what = "integer" if kind is int else "float"
        raise InputError(_invalid(flag, f"{text!r} is not a valid {what}.")) from None


def need_no_code(model: str) -> None:
    """Raises InputError for a model that is Python code, and for none: an address may come from a
    link."""
    if resolve_model(model).factory:
        raise InputError(
            f"{model} is Python code, which this page does not run, since a link could name it: "
            "use the command line"
        )


def _invalid(flag: str, why: str) -> str:
    """As typer says it."""
    return f"Invalid value for '{flag}': {why}"
