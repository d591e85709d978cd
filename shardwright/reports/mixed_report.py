"""What `plan` prints on a cluster of mixed devices: who does what, who is left out, and what else
was compared."""

from __future__ import annotations

from collections import Counter

from rich.console import Group, RenderableType
from rich.text import Text

from planner.heterogeneous.mixed_answer import Compared, MixedPlanFile
from planner.heterogeneous.mixed_plan_search import UNLIKE, mixed_title
from profiles.units import format_bytes, format_percent, format_time, format_usd
from shardwright.reports.labelled import labelled
from shardwright.reports.price_words import prices_lines
from shardwright.reports.terminal import infeasible_report, stages_line, table, usd_heading
from simulator.mixed.mixed_prediction import (
    MixedPrediction,
    MixedStagePrediction,
    ReplicaPrediction,
)
from simulator.values.mixed_plan import MixedPipeline, MixedPlan, MixedStage
from simulator.values.plan_title import plan_title


def mixed_report(answer: MixedPlanFile) -> RenderableType:
    """At most 100 columns; headline, replicas, what is left out, what it was compared with."""
    if answer.step_time_s is None:
        return _infeasible(answer)
    return Group(
        _head(answer),
        Text("           " + "   ".join(_facts(answer))),
        Text(""),
        *_chosen(answer),
        *(
            Text(f"Left out: {left.num_devices} {left.device}: {left.why}")
            for left in answer.left_out
        ),
        Text(""),
        _comparison(answer),
        Text(""),
        *prices_lines(answer.prices_usd_per_hour),
        *(labelled("Assumed: ", said, style="dim") for said in answer.assumptions),
    )


def _head(answer: MixedPlanFile) -> Text:
    gap = answer.gap or 0.0
    proof = "proven optimal" if answer.status == "optimal" else f"within {format_percent(gap)}"
    title = answer.chosen
    if answer.plan is not None:
        title = mixed_title(answer.plan)
    elif answer.ordinary is not None and answer.ordinary.plan is not None:
        title = f"{answer.chosen}: {plan_title(answer.ordinary.plan)}"
    return Text.assemble(
        ("Best plan  ", "bold"),
        title,
        "   ",
        (proof, "green"),
        f" in {format_time(answer.search_time_s)} ({answer.keys_solved} of {answer.keys} solved)",
    )


def _facts(answer: MixedPlanFile) -> list[str]:
    assert answer.step_time_s is not None
    low, high = answer.step_time_low_s, answer.step_time_high_s
    said = [format_time(answer.step_time_s)]
    if low is not None and high is not None:
        said.append(f"[{format_time(low)} - {format_time(high)}]")
    facts = ["step " + " ".join(said)]
    if answer.mfu is not None:
        facts.append(f"MFU {format_percent(answer.mfu)}")
    if answer.prediction is not None:
        facts.append(f"exchange {format_time(answer.prediction.exchange_s)}")
    if answer.usd_per_million_tokens is not None:
        facts.append(f"{format_usd(answer.usd_per_million_tokens)} per M tokens")
    if answer.usd_per_million_samples is not None:
        facts.append(f"{format_usd(answer.usd_per_million_samples)} per M samples")
    return facts


def _chosen(answer: MixedPlanFile) -> list[RenderableType]:
    if answer.plan is not None and answer.prediction is not None:
        return [_replicas(answer.plan, answer.prediction)]
    if answer.ordinary is not None and answer.ordinary.plan is not None:
        return [Text(f"Stages: {stages_line(answer.ordinary.plan)}")]
    return []


def _replicas(plan: MixedPlan, prediction: MixedPrediction) -> RenderableType:
    """Equal replicas are one row; one line per stage."""
    rows = table(
        ">replicas", ">micro-batches", ">done", "stage", ">blocks", "recompute", ">F + B", ">memory"
    )
    like: dict[tuple[object, ...], list[int]] = {}
    for number, pipeline in enumerate(plan.pipelines):
        like.setdefault(_likeness(pipeline), []).append(number)
    for numbers in like.values():
        pipeline, replica = plan.pipelines[numbers[0]], prediction.replicas[numbers[0]]
        for at, (stage, predicted) in enumerate(zip(pipeline.stages, replica.stages, strict=True)):
            rows.add_row(
                *_of_replica(numbers, pipeline, replica, first=at == 0),
                *_of_stage(stage, predicted, plan.degrees.tp),
            )
    return rows


def _likeness(pipeline: MixedPipeline) -> tuple[object, ...]:
    stages = tuple((s.device, s.first_block, s.recompute) for s in pipeline.stages)
    return (pipeline.num_microbatches, stages)


def _of_replica(
    numbers: list[int], pipeline: MixedPipeline, replica: ReplicaPrediction, *, first: bool
) -> tuple[str, str, str]:
    if not first:
        return "", "", ""
    each = " each" if len(numbers) > 1 else ""
    return (
        str(len(numbers)),
        f"{pipeline.num_microbatches}{each}",
        format_time(replica.end_s),
    )


def _of_stage(
    stage: MixedStage, predicted: MixedStagePrediction, tp: int
) -> tuple[str, str, str, str, str]:
    kinds = Counter(kind.value for kind in stage.recompute)
    again = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()) if kind != "none")
    memory = predicted.memory
    return (
        f"{tp}x {stage.device}" if tp > 1 else stage.device,
        str(stage.stage.num_blocks),
        again or "none",
        format_time(predicted.forward_s + predicted.backward_s),
        f"{format_bytes(memory.peak_bytes)} of {format_bytes(memory.capacity_bytes)}",
    )


def _comparison(answer: MixedPlanFile) -> RenderableType:
    rows = table(
        "compared",
        ">devices",
        "plan",
        ">step",
        usd_heading("tokens" if answer.usd_per_million_samples is None else "samples"),
    )
    for each in answer.compared:
        usd = each.usd_per_million_tokens or each.usd_per_million_samples
        rows.add_row(
            each.title + (" (chosen)" if each.title == answer.chosen else ""),
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


def _infeasible(answer: MixedPlanFile) -> RenderableType:
    lines: list[RenderableType] = [
        Text.assemble(
            ("No plan fits  ", "bold red"),
            f"{answer.model} on {answer.cluster}: neither {UNLIKE} nor ranks all alike",
        )
    ]
    if answer.ordinary is not None:
        lines += [Text(f"Of {answer.chosen}:"), infeasible_report(answer.ordinary)]
    return Group(*lines)
