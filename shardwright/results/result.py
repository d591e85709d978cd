"""`Result`: base class of the Python API's results, as notebook output and as tables."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console, RenderableType

from profiles.extras import need_package
from shardwright.reports.terminal_console import WIDTH

if TYPE_CHECKING:
    from pandas import DataFrame

T = TypeVar("T")
_PAGE = '<pre style="line-height: 1.25; white-space: pre; overflow-x: auto">{code}</pre>'


class Result(ABC):
    """A result with the report of its command, for terminal and notebook, and a table.

    `print(result)` gives text. A notebook displays the same as HTML, without scripts or URLs and
    with all inputs escaped.
    """

    __slots__ = ()

    @abstractmethod
    def report(self) -> RenderableType:
        """The report for display."""

    @abstractmethod
    def table(self) -> Sequence[Mapping[str, Any]]:
        """The result as a table: one mapping per row, column names with their units, None for a
        missing value."""

    def to_pandas(self) -> DataFrame:
        """`table()` as a data frame; raises InputError if pandas is not installed."""
        otherwise = "use table(), the same table without pandas"
        need_package("pandas", "to_pandas()", otherwise=otherwise)
        import pandas

        return pandas.DataFrame(list(self.table()))

    def __eq__(self, other: object) -> bool:
        """A result equals the plain value with the same fields."""
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
        """A console with the report in its record only."""
        made = Console(
            file=io.StringIO(),
            record=True,
            width=WIDTH,
            highlight=False,
            markup=False,
            emoji=False,
            force_jupyter=False,  # otherwise rich displays it in the cell a second time
        )
        made.print(self.report())
        return made


def as_result(kind: Callable[..., T], value: Any) -> T:
    """A dataclass value as `kind`, its subclass among the results."""
    return kind(**{each.name: getattr(value, each.name) for each in fields(value)})
