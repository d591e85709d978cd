"""`Shown`: results of the Python door as a notebook shows them, and as tables."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console, RenderableType

from profiles.errors import InputError
from shardwright.reports.terminal import WIDTH

if TYPE_CHECKING:
    from pandas import DataFrame

T = TypeVar("T")
_PAGE = '<pre style="line-height: 1.25; white-space: pre; overflow-x: auto">{code}</pre>'


class Shown(ABC):
    """A result that shows what its command tells, in a notebook too, and that is a table.

    `print(result)` gives it as text, the end of a cell the same as HTML: no script, no address,
    every character of the inputs escaped.
    """

    __slots__ = ()

    @abstractmethod
    def report(self) -> RenderableType:
        """What is shown of it."""

    @abstractmethod
    def table(self) -> Sequence[Mapping[str, Any]]:
        """The result as a table: one mapping per row, column names with their unit, None where
        there is no value."""

    def to_pandas(self) -> DataFrame:
        """`table()` as a data frame; raises InputError where pandas is not installed."""
        try:
            import pandas
        except ImportError as error:
            raise InputError(
                "to_pandas() needs pandas, which is not installed; `pip install "
                "'shardwright[notebook]'` brings it, and table() gives the same table without it"
            ) from error
        return pandas.DataFrame(list(self.table()))

    def __eq__(self, other: object) -> bool:
        """A result equals the plain value that it holds."""
        if not (is_dataclass(other) and isinstance(self, type(other))):
            return NotImplemented
        return all(value == getattr(other, name) for name, value in self._held().items())

    def __hash__(self) -> int:
        return hash(tuple(self._held().values()))

    def _held(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]  # every result is a dataclass

    def __str__(self) -> str:
        written = self._written()
        return written.export_text().rstrip("\n")

    def _repr_html_(self) -> str:
        return self._written().export_html(inline_styles=True, code_format=_PAGE)

    def _written(self) -> Console:
        """A console that has written the report into its record, and nowhere else."""
        made = Console(
            file=io.StringIO(),
            record=True,
            width=WIDTH,
            highlight=False,
            markup=False,
            emoji=False,
            force_jupyter=False,  # else rich shows it in the cell by itself
        )
        made.print(self.report())
        return made


def shown_as(kind: Callable[..., T], value: Any) -> T:
    """A dataclass value as `kind`, its subclass that a notebook shows."""
    return kind(**{each.name: getattr(value, each.name) for each in fields(value)})


def flat(data: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested mappings as one, with names joined by dots; lists are left out."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        elif not isinstance(value, (list, tuple)):
            found[f"{before}{name}"] = value
    return found
