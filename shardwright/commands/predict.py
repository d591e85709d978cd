"""`shardwright predict`, and the reports that it shares with `compare`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from profiles.document import encode, read_mapping, to_json, write_text
from profiles.errors import DocumentError
from shardwright import api
from shardwright.commands.output import note, show
from shardwright.named_model import import_from_here
from shardwright.report import terminal
from simulator.measurement import Measurement
from simulator.plan_file import PlanFile


def predict(
    path: Path,
    *,
    explain: bool,
    html: Path | None,
    trace: Path | None,
    local: Path | None,
    json_output: bool,
) -> None:
    """`shardwright predict`."""
    answer = api.load_plan(path)
    if answer.plan is None or answer.prediction is None:
        raise DocumentError(f"{path} holds no plan: its status is {answer.status!r}")
    write_reports(path, answer, None, html=html, trace=trace, local=local)
    if json_output:
        sys.stdout.write(to_json(encode(answer.prediction)))
        return
    show(terminal.prediction_report(answer, explain=explain))


def write_reports(
    path: Path,
    answer: PlanFile,
    measured: Measurement | None,
    *,
    html: Path | None,
    trace: Path | None,
    local: Path | None,
) -> None:
    """The HTML report and the Chrome trace, where asked for.

    local  the profile or cluster file that the plan was made on, where its name does not lead to it
    """
    if html is not None and answer.plan is not None and answer.prediction is not None:
        from shardwright.report.html import report_html
        from shardwright.report.roofline_inputs import find_roofline

        import_from_here(answer.plan.model)
        found = find_roofline(answer.plan, answer.prediction, measured, cluster_file=local)
        made_by = read_mapping(path).get("provenance")
        write_text(html, report_html(answer, measured, roofline=found, provenance=made_by))
        note(f"written: {html}")
    if trace is not None:
        from shardwright.report.chrome_trace import chrome_trace

        write_text(trace, json.dumps(chrome_trace(answer.prediction, measured)))
        note(f"written: {trace}; open it at ui.perfetto.dev or chrome://tracing")
