"""Files that `size` and `plan` write of an answer for people: page, Markdown, table and figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from profiles.document import write_text
from shardwright.asking.provenance import provenance
from shardwright.commands.output import need_room_for, note, write_or_print

if TYPE_CHECKING:
    from shardwright.reports.brief.brief import Brief
    from shardwright.reports.brief.columns import Column

Html = Annotated[Path | None, typer.Option("--html", help="a page of its own, offline")]
Markdown = Annotated[
    Path | None, typer.Option("--markdown", help="for a pull request; - for stdout")
]
Csv = Annotated[
    Path | None, typer.Option("--csv", help="a table, with FILE.columns.csv saying its columns")
]
Figure = Annotated[
    Path | None, typer.Option("--figure", help="a page for print: .pdf, .png or .svg")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """Where each report goes; None for none."""

    html: Path | None = None
    markdown: Path | None = None
    csv: Path | None = None
    figure: Path | None = None

    @property
    def asked(self) -> bool:
        """Whether any is wanted."""
        return any((self.html, self.markdown, self.csv, self.figure))

    def need_room(self) -> None:
        """Raises DocumentError where a file cannot be written, InputError for a figure of no
        known format, before anything is searched."""
        need_room_for(self.html, self.markdown, self.csv, self.figure)
        if self.figure is not None:
            from shardwright.reports.print_figure import need_format

            need_format(self.figure)

    def write(
        self,
        brief: Callable[[str, str], Brief],
        columns: Sequence[Column],
        rows: Sequence[Mapping[str, Any]],
    ) -> None:
        """brief  of the command and the release that made the answer"""
        if not self.asked:
            return
        # Here, since most answers are only printed.
        from shardwright.reports.brief.brief_html import brief_html
        from shardwright.reports.brief.brief_markdown import brief_markdown
        from shardwright.reports.brief.columns import dictionary_csv, table_csv

        made = provenance()
        said = brief(str(made["command"]), str(made["version"]))
        if self.html is not None:
            write_or_print(self.html, brief_html(said))
        if self.markdown is not None:
            write_or_print(self.markdown, brief_markdown(said))
        if self.csv is not None:
            write_or_print(self.csv, table_csv(columns, rows))
            if str(self.csv) != "-":
                beside = self.csv.with_name(f"{self.csv.stem}.columns.csv")
                write_text(beside, dictionary_csv(columns))
                note(f"written: {beside}, what its columns mean")
        if self.figure is not None:
            from shardwright.reports.brief.brief_figure import write_brief_figure

            write_brief_figure(self.figure, said)
            note(f"written: {self.figure}")


def write_size_reports(files: ReportFiles, data: Mapping[str, Any]) -> None:
    """Of the JSON of `size` with its details."""
    if not files.asked:
        return
    from shardwright.reports.brief.size_brief import size_brief
    from shardwright.reports.brief.size_table import SIZE_COLUMNS, size_rows

    files.write(
        lambda command, version: size_brief(data, command=command, version=version),
        SIZE_COLUMNS,
        size_rows(data),
    )
