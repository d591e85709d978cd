"""`shardwright predict` of a framework's layout (`plan --stack`)."""

from __future__ import annotations

import sys
from pathlib import Path

from planner.layout.layout_answer import LayoutFile
from profiles.document import encode, to_json, write_text
from shardwright.commands.output import note, show
from shardwright.layout_explanation import chosen_run, explain_layout
from shardwright.opened_plan import OpenedPlan
from shardwright.reports.layout_report import layout_report
from shardwright.reports.run_explanation import explanation_report


def predict_layout(
    opened: OpenedPlan, answer: LayoutFile, *, explain: bool, html: Path | None, json_output: bool
) -> None:
    """The layout's prediction; with --explain every term of it, made anew."""
    where = str(opened.path)
    chosen_run(where, answer)
    found = explain_layout(where, answer) if explain or html is not None else None
    if html is not None and found is not None:
        from shardwright.reports.layout_html import layout_html

        write_text(html, layout_html(answer, found, provenance=opened.provenance))
        note(f"written: {html}")
    if json_output:
        assert answer.chosen is not None
        sys.stdout.write(to_json(encode(answer.chosen.prediction)))
        return
    show(layout_report(answer))
    if explain and found is not None:
        show(explanation_report(found))
