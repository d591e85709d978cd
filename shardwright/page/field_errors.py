"""`FieldErrors`: error messages for a page's values, each with its field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from profiles.errors import InputError, ShardwrightError
from profiles.model.loaders import resolve_model
from shardwright.page.fields import Field, field_named
from shardwright.requests.sizing.size_flags import SeveralErrors

T = TypeVar("T")


class FieldErrors(InputError):
    """messages: (field name, error message of the command line)."""

    def __init__(self, messages: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(text for _, text in messages))
        self.messages = tuple(messages)


def near(fields: Sequence[Field], otherwise: str, read: Callable[[], T]) -> T:
    """The result of `read`; converts its errors to FieldErrors.

    The field is the one with its flag in the message, or `otherwise`."""
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
