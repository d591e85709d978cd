"""The HTML report: one self-contained file, no script from elsewhere, everything escaped.

Pictures are inline SVG made here as plain values; the template only places them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.document import content_hash
from profiles.units import (
    format_bytes,
    format_count,
    format_percent,
    format_time,
    format_usd,
)
from shardwright.compare import compare_run
from shardwright.report.markdown import quantity, signed_percent, verdict
from shardwright.report.terminal import plan_title, stages_line
from simulator.measurement import Measurement
from simulator.plan_file import PlanFile
from simulator.prediction import Event, Prediction

TEMPLATE = Path(__file__).with_name("report.html.j2")
WIDTH = 1080.0
_LANE = 22.0
_COLOURS = {
    "F": "#4c78a8",
    "B": "#f2a65a",
    "I": "#e0709b",
    "W": "#8e6bbf",
    "optimizer": "#54a24b",
    "collective": "#d9534f",
    "send": "#9aa5b1",
}
_PARTS = {
    "compute": "#4c78a8",
    "recompute": "#7fa8d1",
    "launch": "#b7cce2",
    "tensor_parallel_communication": "#d9534f",
    "pipeline_communication": "#e5837f",
    "data_parallel_communication": "#f0b3b1",
    "bubble": "#d8dde3",
    "optimizer": "#54a24b",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle of a picture with its tooltip; label is shown where it fits."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    label: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A named row of the timeline."""

    y: float
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Boxes, lanes, a polyline per rank and the ticks of the axes, in SVG units."""

    width: float
    height: float
    boxes: tuple[Box, ...] = ()
    lanes: tuple[Lane, ...] = ()
    lines: tuple[dict[str, Any], ...] = ()
    ticks: tuple[dict[str, Any], ...] = ()
    rules: tuple[dict[str, Any], ...] = ()
    dots: tuple[dict[str, Any], ...] = ()


def report_html(answer: PlanFile, measured: Measurement | None) -> str:
    """The whole page for a plan, with its run beside it where there is one."""
    assert answer.plan is not None
    assert answer.prediction is not None
    plan, prediction = answer.plan, answer.prediction
    comparison = compare_run(answer, measured) if measured is not None else None
    rows = []
    for row in comparison.rows if comparison else ():
        rows.append(
            {
                "name": row.name,
                "predicted": quantity(row.predicted, row.unit),
                "measured": quantity(row.measured, row.unit),
                "error": signed_percent(row.error),
                "cpu": quantity(row.measured_cpu, "s") if row.measured_cpu else "",
                "cpu_error": signed_percent(row.cpu_error) if row.measured_cpu else "",
                "bar": max(-1.0, min(1.0, row.error / 0.25)),
            }
        )
    return str(
        _template().render(
            title=f"{plan.model} on {plan.cluster}",
            plan=plan,
            answer=answer,
            plan_title=plan_title(plan),
            stages=stages_line(plan),
            facts=_facts(answer, prediction, measured),
            verdict=verdict(comparison) if comparison else "",
            rows=rows,
            timeline=timeline_picture(prediction.events, measured.events if measured else ()),
            memory=memory_picture(prediction, measured),
            parts=_parts(prediction),
            stage_rows=stage_bars(prediction),
            sources=[
                {
                    "name": t.name,
                    "share": format_percent(t.share),
                    "how": t.method,
                    "from": t.source,
                }
                for t in prediction.sources
            ],
            alternatives=[
                {
                    "plan": plan_title(a.plan),
                    "step": format_time(a.step_time_s),
                    "peak": format_bytes(a.peak_memory_bytes),
                    "why": a.why_not_first,
                }
                for a in answer.alternatives
            ],
            hashes={
                "plan": content_hash(plan),
                "model": plan.model_hash,
                "cluster": plan.cluster_hash,
            },
            measured=measured,
            colours=_COLOURS,
        )
    )


@functools.cache
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def _facts(
    answer: PlanFile, prediction: Prediction, measured: Measurement | None
) -> list[dict[str, str]]:
    step = prediction.step_time_s
    tight = max(prediction.ranks, key=lambda rank: rank.peak_bytes / rank.capacity_bytes)
    facts = [
        {
            "name": "Predicted step",
            "value": format_time(step.value),
            "note": f"{format_time(step.low)} to {format_time(step.high)}, 90 %",
        }
    ]
    if measured is not None:
        off = (step.value - measured.step_wall_s) / measured.step_wall_s
        facts.append(
            {
                "name": "Measured step",
                "value": format_time(measured.step_wall_s),
                "note": f"prediction is {signed_percent(off)} off",
            }
        )
    facts += [
        {
            "name": "MFU",
            "value": format_percent(prediction.mfu.value),
            "note": f"{format_count(prediction.tokens_per_s.value)} tokens/s",
        },
        {
            "name": "Peak memory",
            "value": format_bytes(tight.peak_bytes),
            "note": f"of {format_bytes(tight.capacity_bytes)}, rank {tight.rank}",
        },
        {
            "name": "Bubble",
            "value": format_percent(prediction.bubble_fraction),
            "note": "of the slowest rank's step",
        },
    ]
    usd = prediction.usd_per_million_tokens
    if usd is not None:
        facts.append({"name": "Cost", "value": format_usd(usd.value), "note": "per million tokens"})
    else:
        kwh = prediction.kwh_per_million_tokens
        facts.append(
            {"name": "Energy", "value": f"{kwh.value:.2g} kWh", "note": "per million tokens"}
        )
    if measured is not None and measured.gradient_check is not None:
        check = measured.gradient_check
        facts.append(
            {
                "name": "Gradients",
                "value": "equal" if check.passed else "DIFFER",
                "note": f"worst {check.worst_relative_error:.0e} of {check.parameters_checked}",
            }
        )
    return facts


def timeline_picture(predicted: tuple[Event, ...], measured: tuple[Event, ...]) -> Picture:
    """Predicted lanes above measured ones on one time axis; sends are thin lanes of their own."""
    end = max((e.end_s for e in (*predicted, *measured)), default=1.0) or 1.0
    left = 120.0
    scale = (WIDTH - left) / end
    boxes: list[Box] = []
    lanes: list[Lane] = []
    y = 6.0
    for group, events in (("predicted", predicted), ("measured", measured)):
        for rank in sorted({e.rank for e in events}):
            lanes.append(Lane(y=y + _LANE / 2 + 4, name=f"{group} rank {rank}"))
            for e in events:
                if e.rank != rank:
                    continue
                thin = e.stream == "send"
                width = max(0.4, (e.end_s - e.start_s) * scale)
                boxes.append(
                    Box(
                        x=round(left + e.start_s * scale, 2),
                        y=y + _LANE if thin else y,
                        width=round(width, 2),
                        height=3.0 if thin else _LANE - 3,
                        colour=_colour(e),
                        label=e.name if width > 7 * len(e.name) and not thin else "",
                        title=f"{e.name}: {format_time(e.start_s)} to {format_time(e.end_s)} "
                        f"({format_time(e.end_s - e.start_s)}), {group}",
                    )
                )
            y += _LANE + 7
        y += 8
    ticks = [
        {"x": round(left + end * i / 8 * scale, 1), "label": format_time(end * i / 8) if i else "0"}
        for i in range(9)
    ]
    return Picture(
        width=WIDTH, height=y + 18, boxes=tuple(boxes), lanes=tuple(lanes), ticks=tuple(ticks)
    )


def _colour(event: Event) -> str:
    if event.stream in ("send", "collective") or event.name in ("data_parallel", "tied"):
        return _COLOURS["send" if event.stream == "send" else "collective"]
    if event.name == "optimizer":
        return _COLOURS["optimizer"]
    letter = next((c for c in event.name if c.isalpha()), "F")
    return _COLOURS.get(letter, "#888888")


_RANK_COLOURS = ("#4c78a8", "#f2a65a", "#54a24b", "#d9534f", "#8e6bbf", "#72b7b2", "#e0709b")


def memory_picture(prediction: Prediction, measured: Measurement | None) -> Picture:
    """Predicted memory over the step per rank, measured peaks as dashed rules."""
    left, height = 120.0, 220.0
    end = max((s.time_s for r in prediction.ranks for s in r.timeline), default=1.0) or 1.0
    peaks = {s.rank: s.peak_memory_bytes for s in measured.ranks} if measured else {}
    top = max([r.peak_bytes for r in prediction.ranks] + list(peaks.values())) * 1.12
    capacity = min(r.capacity_bytes for r in prediction.ranks)
    if capacity < 3 * top:
        top = max(top, capacity * 1.05)
    across, up = (WIDTH - left) / end, (height - 30) / top
    lines, rules = [], []
    for number, rank in enumerate(prediction.ranks[:16]):
        colour = _RANK_COLOURS[number % len(_RANK_COLOURS)]
        points, last = [], 0.0
        for s in rank.timeline:
            x, y = left + s.time_s * across, height - 20 - s.memory_bytes * up
            points += [f"{x:.1f},{last or y:.1f}", f"{x:.1f},{y:.1f}"]
            last = y
        lines.append({"points": " ".join(points), "colour": colour, "name": f"rank {rank.rank}"})
        if peaks.get(rank.rank):
            y = height - 20 - peaks[rank.rank] * up
            label = f"rank {rank.rank} measured peak {format_bytes(peaks[rank.rank])}"
            rules.append({"y": round(y, 1), "colour": colour, "label": label})
    if capacity <= top:
        y = height - 20 - capacity * up
        label = f"device has {format_bytes(capacity)}"
        rules.append({"y": round(y, 1), "colour": "#333333", "label": label})
    ticks = [
        {"y": round(height - 20 - top * i / 4 * up, 1), "label": format_bytes(top * i / 4)}
        for i in range(5)
    ]
    return Picture(
        width=WIDTH, height=height, lines=tuple(lines), ticks=tuple(ticks), rules=tuple(rules)
    )


def stage_bars(prediction: Prediction) -> list[dict[str, Any]]:
    """Forward and backward seconds of each stage, as bars relative to the longest."""
    longest = max((s.forward_s + s.backward_s for s in prediction.stages), default=1.0) or 1.0
    return [
        {
            "name": f"stage {s.stage} on rank {s.rank}",
            "forward": round(100 * s.forward_s / longest, 2),
            "backward": round(100 * s.backward_s / longest, 2),
            "times": f"forward {format_time(s.forward_s)}, backward {format_time(s.backward_s)}",
        }
        for s in prediction.stages[:64]
    ]


def _parts(prediction: Prediction) -> list[dict[str, Any]]:
    step = prediction.step_time_s.value
    return [
        {
            "name": part.name.replace("_", " "),
            "time": format_time(part.time_s),
            "share": round(100 * part.time_s / step, 2),
            "percent": format_percent(part.time_s / step),
            "colour": _PARTS.get(part.name, "#888888"),
        }
        for part in prediction.components
        if part.time_s > 0
    ]
