"""The HTML report: one self-contained file, no script from elsewhere, everything escaped.

The pictures are plain values (report/picture.py) and become inline SVG in the template, which is
the only place that writes markup.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiles.units import format_bytes, format_count, format_percent, format_time, format_usd
from shardwright.analysis.breakdown import RankParts, measured_parts, predicted_parts
from shardwright.analysis.comparison import Row, compare_run
from shardwright.reports.branch_stages import branch_rows
from shardwright.reports.markdown import cells, heads, signed_percent, verdict
from shardwright.reports.memory_picture import memory_picture
from shardwright.reports.picture import COLOURS
from shardwright.reports.price_words import price_note
from shardwright.reports.reproduce import recipe
from shardwright.reports.roofline import Roofline
from shardwright.reports.roofline_picture import op_rows, roofline_picture
from shardwright.reports.terminal import format_share, stages_line
from shardwright.reports.timeline_picture import timeline_note, timeline_picture
from simulator.mfu import MFU_DEFINITION
from simulator.values.measurement import Measurement
from simulator.values.plan import Plan
from simulator.values.plan_file import PlanFile
from simulator.values.plan_title import plan_title
from simulator.values.prediction import Part, Prediction
from simulator.values.workload import Workload

MOST_RANKS = 16  # ranks with bars of their own
MOST_STAGES = 64
MOST_SOURCES = 60
PART_COLOURS = {
    Part.COMPUTE: "#4c78a8",
    Part.RECOMPUTE: "#7fa8d1",
    Part.LAUNCH: "#b7cce2",
    Part.RUNTIME: "#9d8fc7",
    Part.WAITING: "#c9b8dd",
    Part.TENSOR: "#d9534f",
    Part.EXPERT: "#f2a65a",
    Part.CONTEXT: "#b279a2",
    Part.GATHER: "#f7d1a3",
    Part.CUT: "#e5837f",
    Part.STALL: "#a5544f",
    Part.BUBBLE: "#d8dde3",
    Part.REDUCE: "#f0b3b1",
    Part.OPTIMIZER: "#54a24b",
    Part.HOST: "#72b7b2",
    Part.OVERHEAD: "#9aa5b1",
}
_RANK_PARTS = ("forward", "backward", "gradient_exchange", "optimizer", "waiting")


def report_html(
    answer: PlanFile,
    measured: Measurement | None,
    *,
    roofline: Roofline | None = None,
    provenance: Mapping[str, object] | None = None,
) -> str:
    """The whole page for a plan, with its run beside it where there is one.

    roofline    of report/roofline.py (or why there is none); None leaves the section out
    provenance  that of the plan file: which command and release wrote it
    """
    from shardwright import __version__

    assert answer.plan is not None
    assert answer.prediction is not None
    plan, prediction = answer.plan, answer.prediction
    comparison = compare_run(answer, measured) if measured is not None else None
    return str(
        template("report.html.j2").render(
            mfu_definition=MFU_DEFINITION,
            title=f"{plan.model} on {plan.cluster}",
            plan=plan,
            answer=answer,
            plan_title=plan_title,
            step_words=step_words(plan.workload),
            stages=stages_line(plan),
            branch_rows=branch_rows(plan, prediction),
            facts=_facts(prediction, measured),
            price=price_note(prediction.price_usd_per_hour) if prediction.usd_per_million else "",
            verdict=verdict(comparison) if comparison else "",
            cpu_heads=heads(comparison)[4:] if comparison else (),
            rows=[(cells(row, comparison), _bar_of(row)) for row in comparison.rows]
            if comparison
            else (),
            timeline=timeline_picture(prediction.events, measured.events if measured else ()),
            timeline_note=timeline_note(prediction),
            memory=memory_picture(prediction, measured),
            roofline=roofline_picture(roofline) if roofline else None,
            roofline_missing=roofline.missing if roofline else "",
            op_rows=op_rows(roofline) if roofline else [],
            parts=prediction.components,
            part_colours=PART_COLOURS,
            ranks=_ranks(plan, prediction, measured),
            rank_parts=_RANK_PARTS,
            shown_stages=prediction.stages[:MOST_STAGES],
            longest_stage=max((s.forward_s + s.backward_s for s in prediction.stages), default=0.0),
            sources=prediction.sources[:MOST_SOURCES],
            recipe=recipe(plan, measured, version=__version__, provenance=provenance),
            measured=measured,
            colours=COLOURS,
        )
    )


@functools.cache
def template(name: str, folder: Path | None = None) -> Any:
    """A page of this folder, or of a plug-in's folder; it includes the style of this folder."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*([folder] if folder else []), Path(__file__).parent]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"time": format_time, "bytes": format_bytes, "percent": format_percent}
    return environment.get_template(name)


def step_words(work: Workload) -> str:
    """What a step trains on: `16 sequences of 128 tokens per step`."""
    if work.counted_in == "samples":
        return f"{work.global_batch} samples per step"
    return f"{work.global_batch} sequences of {work.sequence_length} tokens per step"


def fact(name: str, value: str, note: str) -> dict[str, str]:
    """One of the large numbers at the top of a page."""
    return {"name": name, "value": value, "note": note}


def _facts(prediction: Prediction, measured: Measurement | None) -> list[dict[str, str]]:
    step = prediction.step_time_s
    tight = prediction.fullest
    between = f"{format_time(step.low)} to {format_time(step.high)}, 90 %"
    facts = [fact("Predicted step", format_time(step.value), between)]
    if measured is not None:
        off = (step.value - measured.step_wall_s) / measured.step_wall_s
        said = f"prediction is {signed_percent(off)} off"
        facts.append(fact("Measured step", format_time(measured.step_wall_s), said))
    speed = f"{format_count(prediction.per_s.value)} {prediction.counted_in}/s"
    of = f"of {format_bytes(tight.capacity_bytes)}, rank {tight.rank}"
    if tight.required_bytes is not None:
        of = f"needs {format_bytes(tight.required_bytes)} {of}"
    bubble = format_percent(prediction.bubble_fraction)
    facts += [
        fact("MFU", format_share(prediction.mfu), speed),
        fact("Peak memory", format_bytes(tight.peak_bytes), of),
        fact("Bubble", bubble, "of the slowest rank's step"),
    ]
    usd, per = prediction.usd_per_million, f"per million {prediction.counted_in}"
    if usd is not None:
        facts.append(fact("Cost", format_usd(usd.value), per))
    else:
        kwh = prediction.kwh_per_million
        facts.append(fact("Energy", f"{kwh.value:.2g} kWh" if kwh is not None else "-", per))
    if measured is not None and (check := measured.gradient_check) is not None:
        worst = (
            f"worst error {check.worst_relative_error:.0e}, {check.parameters_checked} parameters"
        )
        facts.append(fact("Gradients", "equal" if check.passed else "DIFFER", worst))
    return facts


def _bar_of(row: Row) -> float:
    """The error from -1 to 1, full at 25 %."""
    return max(-1.0, min(1.0, row.error / 0.25))


def _ranks(
    plan: Plan, prediction: Prediction, measured: Measurement | None
) -> list[tuple[str, RankParts]]:
    """(`predicted` or `measured`, the parts), rank by rank; at most MOST_RANKS ranks."""
    found = {p.rank: p for p in measured_parts(plan, measured)} if measured is not None else {}
    said = predicted_parts(plan, prediction)[:MOST_RANKS]
    both = [(("predicted", parts), ("measured", found.get(parts.rank))) for parts in said]
    return [(group, parts) for pair in both for group, parts in pair if parts is not None]
