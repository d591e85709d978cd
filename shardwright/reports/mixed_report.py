"""The printed answer of `plan` on devices of several types."""

from __future__ import annotations

from collections import Counter

from rich.console import Group, RenderableType
from rich.text import Text

from planner.heterogeneous.plan_mixed import UNLIKE
from profiles.units import format_bytes, format_percent, format_time, format_usd
from shardwright.reports.labelled import labelled
from shardwright.reports.price_words import prices_lines
from shardwright.reports.terminal import infeasible_report, stages_line, table, usd_heading
from simulator.values.plan import Pipeline, Plan, Stage
from simulator.values.plan_file import Compared, Comparison, PlanFile
from simulator.values.plan_title import plan_title
from simulator.values.prediction import Prediction


def mixed_report(answer: PlanFile) -> RenderableType:
    """At most 100 columns; headline, replicas, unused devices, what it was compared with."""
    comparison, plan, prediction = answer.comparison, answer.plan, answer.prediction
    assert comparison is not None
    if plan is None or prediction is None:
        return _infeasible(answer, comparison)
    gap = answer.gap or 0.0
    proof = "proven optimal" if answer.status == "optimal" else f"within {format_percent(gap)}"
    title = plan_title(plan)
    head = Text.assemble(
        ("Best plan  ", "bold"),
        title if plan.pipelines is not None else f"{comparison.chosen}: {title}",
        "   ",
        (proof, "green"),
        f" in {format_time(answer.search_time_s)} ({comparison.keys_solved} of "
        f"{comparison.keys} solved)",
    )
    return Group(
        head,
        Text("           " + "   ".join(_facts(plan, prediction))),
        Text(""),
        Text(f"Stages: {stages_line(plan)}")
        if plan.pipelines is None
        else _replicas(plan, plan.pipelines, prediction),
        *(
            Text(f"Left out: {left.num_devices} {left.device}: {left.why}")
            for left in comparison.left_out
        ),
        Text(""),
        _comparison(comparison),
        Text(""),
        *prices_lines(comparison.prices_usd_per_hour),
        *(labelled("Assumed: ", assumption, style="dim") for assumption in answer.assumptions),
    )


def _facts(plan: Plan, prediction: Prediction) -> list[str]:
    step = prediction.step_time_s
    facts = [
        f"step {format_time(step.value)} [{format_time(step.low)} - {format_time(step.high)}]",
        f"MFU {format_percent(prediction.mfu.value)}",
    ]
    # A single pipeline exchanges no gradients.
    exchanged = [e.end_s for e in prediction.events if e.name == "data_parallel"]
    if plan.pipelines is not None and exchanged:
        slowest = max(_backward_ends(prediction).values())
        facts.append(f"exchange {format_time(max(exchanged) - slowest)}")
    if prediction.usd_per_million is not None:
        facts.append(
            f"{format_usd(prediction.usd_per_million.value)} per M {prediction.counted_in}"
        )
    return facts


def _backward_ends(prediction: Prediction) -> dict[int, float]:
    """When each device has done its last backward."""
    ends: dict[int, float] = {}
    for event in prediction.events:
        if event.stream == "compute" and event.name != "optimizer":
            ends[event.rank] = max(event.end_s, ends.get(event.rank, 0.0))
    return ends


def _replicas(
    plan: Plan, pipelines: tuple[Pipeline, ...], prediction: Prediction
) -> RenderableType:
    """Equal replicas are one row; one line per stage."""
    rows = table(
        ">replicas", ">micro-batches", ">done", "stage", ">blocks", "recompute", ">F + B", ">memory"
    )
    ends = _backward_ends(prediction)
    work_s = {stage.rank: stage.forward_s + stage.backward_s for stage in prediction.stages}
    memory = {rank.rank: rank for rank in prediction.ranks}
    like: dict[tuple[object, ...], list[Pipeline]] = {}
    for pipeline in pipelines:
        stages = tuple((s.device, s.first_block, s.recompute) for s in pipeline.stages)
        like.setdefault((pipeline.num_microbatches, stages), []).append(pipeline)
    for replicas in like.values():
        pipeline = replicas[0]
        firsts = [stage.devices[0] if stage.devices else 0 for stage in pipeline.stages]
        cells = (
            str(len(replicas)),
            f"{pipeline.num_microbatches}{' each' if len(replicas) > 1 else ''}",
            format_time(max(ends[device] for device in firsts)),
        )
        for stage, device in zip(pipeline.stages, firsts, strict=True):
            peak, room = memory[device].peak_bytes, memory[device].capacity_bytes
            rows.add_row(
                *cells,
                f"{plan.degrees.tp}x {stage.device}" if plan.degrees.tp > 1 else stage.device,
                str(stage.num_blocks),
                _recompute(stage),
                format_time(work_s[device]),
                f"{format_bytes(peak)} of {format_bytes(room)}",
            )
            cells = ("", "", "")
    return rows


def _recompute(stage: Stage) -> str:
    kinds = Counter(kind.value for kind in stage.recompute)
    again = (f"{kind} {count}" for kind, count in sorted(kinds.items()) if kind != "none")
    return ", ".join(again) or "none"


def _comparison(comparison: Comparison) -> RenderableType:
    samples = any(each.usd_per_million_samples is not None for each in comparison.compared)
    rows = table(
        "compared", ">devices", "plan", ">step", usd_heading("samples" if samples else "tokens")
    )
    for each in comparison.compared:
        usd = each.usd_per_million_tokens or each.usd_per_million_samples
        rows.add_row(
            each.title + (" (chosen)" if each.title == comparison.chosen else ""),
            str(each.num_devices) if each.num_devices else "-",
            each.plan,
            _step(each),
            format_usd(usd) if usd is not None else "-",
        )
    return rows


def _step(each: Compared) -> str:
    if each.step_time_s is None:
        return "-"
    return ("" if each.exact else "up to ") + format_time(each.step_time_s)


def _infeasible(answer: PlanFile, comparison: Comparison) -> RenderableType:
    headline = Text.assemble(
        ("No plan fits  ", "bold red"),
        f"{comparison.model} on {comparison.cluster}: neither {UNLIKE} nor ranks all alike",
    )
    return Group(headline, Text(f"Of {comparison.chosen}:"), infeasible_report(answer))
