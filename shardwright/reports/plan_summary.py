"""The short answer of `plan` for a plan block by block: at most twelve lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from profiles.units import format_bytes, format_count, format_percent, format_time, format_usd
from shardwright.reports.labelled import LABEL, assumed_line, labelled, one_line
from shardwright.reports.terminal import format_interval, format_share, memory_words, price_words
from simulator.values.plan import Plan
from simulator.values.plan_file import PlanFile
from simulator.values.plan_title import plan_title
from simulator.values.prediction import Prediction

_NUMBERED = re.compile(r"(.*?)(\d+)$")
_MOST = 6  # tensors named at a cut; a UNet has a skip per level


def branch_rows(plan: Plan, prediction: Prediction) -> tuple[tuple[str, str, str], ...]:
    """(stage, its blocks, the tensors it receives) per stage; empty for a chain of blocks."""
    rows = []
    for stage, cut in zip(prediction.stages, plan.stages, strict=True):
        if stage.receives is None:
            return ()
        blocks = plan.block_entries[cut.first_block : cut.last_block]
        tensors = sorted(stage.receives, key=lambda t: -t.memory_bytes)
        said = [
            f"{t.made_by or 'start'} {format_bytes(t.memory_bytes)}"
            + ("" if set(t.used_by) & set(blocks) else " (handed on)")
            for t in tensors[:_MOST]
        ]
        if len(tensors) > _MOST:
            rest = sum(t.memory_bytes for t in tensors[_MOST:])
            said.append(f"{len(tensors) - _MOST} more {format_bytes(rest)}")
        rows.append((str(stage.stage), blocks_text(blocks), ", ".join(said)))
    return tuple(rows)


def stages_line(plan: Plan) -> str:
    """Blocks of each stage, and of each recompute kind: `2 + 1 blocks; recompute: none 3`."""
    counts = " + ".join(str(stage.num_blocks) for stage in plan.stages)
    kinds = Counter(kind.value for stage in plan.stages for kind in stage.recompute)
    again = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    return f"{counts} blocks; recompute: {again}"


def blocks_text(entries: tuple[str, ...]) -> str:
    """Block names with runs of numbered ones joined.

    >>> blocks_text(("", "a.0", "a.1", "a.2", "b.head"))
    'start, a.0-2, b.head'
    """
    parts: list[tuple[str, int, int] | str] = []
    for entry in entries:
        found = _NUMBERED.fullmatch(entry)
        last = parts[-1] if parts else ""
        if found is None:
            parts.append(entry or "start")
        elif not isinstance(last, str) and last[0] == found[1] and last[2] + 1 == int(found[2]):
            parts[-1] = (last[0], last[1], int(found[2]))
        else:
            parts.append((found[1], int(found[2]), int(found[2])))
    return ", ".join(
        part
        if isinstance(part, str)
        else f"{part[0]}{part[1]}" + f"-{part[2]}" * (part[1] < part[2])
        for part in parts
    )


_RUNNERS_UP = 3
_LEAST_GAP = 1e-3  # a smaller one is printed as this


def plan_summary(answer: PlanFile, price_notes: Sequence[str] = ()) -> RenderableType:
    """The answer in short.

    price_notes  warnings about the price
    Raises ValueError for an answer without a plan (its report explains those).
    """
    plan, prediction = answer.plan, answer.prediction
    if plan is None or prediction is None:
        raise ValueError("no plan was found")
    full = max(prediction.ranks, key=lambda rank: rank.use)
    memory = memory_words(full.peak_bytes, full.required_bytes, full.capacity_bytes)
    rate, counted = prediction.per_s, prediction.counted_in
    lines: list[RenderableType] = [
        labelled(
            Text("Best    ", style="bold"),
            plan_title(plan),
            Text(_proof(answer), style="green"),
        ),
        one_line(
            "Step    ",
            format_interval(prediction.step_time_s),
            f"MFU {format_share(prediction.mfu)}",
            f"{format_count(rate.value)} {counted} per second",
        ),
        one_line("Memory  ", memory, f"on rank {full.rank}"),
        one_line("Limit   ", prediction.limit),
        one_line("Stages  ", stages_line(plan)),
        _cost(prediction, price_notes),
    ]
    if prediction.price_usd_per_hour is not None:
        lines.append(one_line("Price   ", *price_words(prediction.price_usd_per_hour).split("; ")))
    for number, other in enumerate(answer.alternatives[:_RUNNERS_UP]):
        label = " " * LABEL if number else "Next    "
        step = format_time(other.step_time_s)
        lines.append(one_line(label, f"{step}: {plan_title(other.plan)}", other.why_not_first))
    old = [each.split(" on 20")[0] for each in price_notes if prediction.price_usd_per_hour]
    if assumed := [*old, *answer.assumptions]:
        lines.append(assumed_line(assumed))
    return Group(*lines)


def _proof(answer: PlanFile) -> str:
    if answer.status == "optimal":
        return "proven optimal"
    gap = max(answer.gap or 0.0, _LEAST_GAP)
    return f"at most {format_percent(gap)} above the best there is"


def _cost(prediction: Prediction, price_notes: Sequence[str]) -> RenderableType:
    usd, kwh, counted = (
        prediction.usd_per_million,
        prediction.kwh_per_million,
        prediction.counted_in,
    )
    energy = "" if kwh is None else f"{format_interval(kwh, '{:.3g}'.format)} kWh per M {counted}"
    if usd is None:
        return labelled("Cost    ", *price_notes[:1], energy)
    return one_line("Cost    ", f"{format_interval(usd, format_usd)} per M {counted}", energy)
