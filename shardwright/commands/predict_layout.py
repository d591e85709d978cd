"""`shardwright predict` of a framework's layout (`plan --stack`)."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from planner.layout.layout_answer import LayoutFile
from profiles.document import write_text
from shardwright.analysis.answer_json import layout_prediction_json
from shardwright.analysis.layout_explanation import chosen_run, explain_layout
from shardwright.console.output import note, print_json, show
from shardwright.reports.layout_report import layout_report
from shardwright.reports.run_explanation import explanation_report
from shardwright.requests.opened_plan import OpenedPlan
from simulator.mfu import MFU_DEFINITION


def predict_layout(
    opened: OpenedPlan, answer: LayoutFile, *, explain: bool, html: Path | None, json_output: bool
) -> None:
    """The layout's prediction; with --explain every term of it, made anew."""
    where = str(opened.path)
    chosen_run(where, answer)
    found = explain_layout(where, answer)
    assert answer.chosen is not None
    if html is not None:
        from shardwright.reports.brief.layout_html import layout_html

        write_text(html, layout_html(answer, found, provenance=opened.provenance))
        note(f"written: {html}")
    if json_output:
        print_json(layout_prediction_json(answer.chosen))
        return
    show(layout_report(answer))
    if explain:
        show(explanation_report(found))
        show(Text(MFU_DEFINITION))
