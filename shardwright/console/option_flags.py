"""Flags of a command from a dataclass of options (shardwright/options)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from shardwright.options.option import Option, options_of
from shardwright.options.read_text import path


def with_options(record: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: replaces a command's first parameter, of type `record`, by its options' flags."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        options = options_of(record)
        _, *others = inspect.signature(command, eval_str=True).parameters.values()
        others = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in others]

        def run(**values: Any) -> None:
            given = {each.name: values.pop(each.name) for each in options}
            typed = {
                name: str(value) if isinstance(value, StrEnum) else value
                for name, value in given.items()
                if value is not None
            }
            command(record(**typed), **values)

        parameters = [*map(_parameter, options), *others]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # of functions, by inspect
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def _parameter(one: Option) -> inspect.Parameter:
    # Flags without a value are None, so that --help prints no empty default.
    default = one.default or None
    info: Any
    if one.argument:
        info, default = typer.Argument(help=one.help), ""
    elif isinstance(one.default, bool):
        info, default = typer.Option(one.flag, help=one.help), one.default
    else:
        info = typer.Option(one.flag, help=one.help, **_type_of(one))
        if one.least is not None:
            default = one.default
    return inspect.Parameter(
        one.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[_annotation(one), info],
    )


def _type_of(one: Option) -> dict[str, Any]:
    if one.least is not None:
        return {"min": one.least}
    if one.read is None or one.read is path:
        return {}
    return {"parser": partial(_read, one), "metavar": one.metavar or "<str>"}


def _read(one: Option, text: str) -> Any:
    return one.value(text)


def _annotation(one: Option) -> Any:
    if isinstance(one.default, bool):
        return bool
    if one.choices:
        kind: Any = StrEnum
        return kind("Choice", {choice: choice for choice in one.choices}) | None
    if one.least is not None:
        return int
    return (Path if one.read is path else str) | None
