"""`shardwright validate --modules`: predicted steps of modules beside measured ones."""

from __future__ import annotations

import datetime
import sys
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from evidence.module_markdown import module_markdown
from evidence.module_study import ComparedModule
from shardwright.commands.tables.predict_modules import predicted_modules
from shardwright.console.output import show, write_or_print
from shardwright.runs.module_table import ModuleRow, read_measured_modules, read_modules
from simulator.traced.kernel_constants import module_constants

_NEXT = ", next batch"


def validate_modules(path: Path, markdown: Path | None) -> None:
    """Predict every row, and the next batch where the table names one that did not fit; print or
    write the page."""
    rows = read_modules(path)
    measured = {row.id: row for row in read_measured_modules(path)}
    asked: list[ModuleRow] = []
    for row in rows:
        asked.append(row)
        following = measured[row.id].oom_batch
        if following is not None and "batch" in row.arguments:
            arguments = {**row.arguments, "batch": following}
            asked.append(replace(row, id=row.id + _NEXT, arguments=arguments))
    found = {made.id: made for made in predicted_modules(asked, folder=path.parent)}
    compared = [
        ComparedModule(
            measured=measured[row.id],
            predicted=found[row.id],
            following=found.get(row.id + _NEXT),
        )
        for row in rows
    ]
    page = module_markdown(
        compared, module_constants(), name=path.name, date=datetime.date.today().isoformat()
    )
    if markdown is not None:
        write_or_print(markdown, page)
    elif sys.stdout.isatty():
        show(Text(page))
    else:
        sys.stdout.write(page)
