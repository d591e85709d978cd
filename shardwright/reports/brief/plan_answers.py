"""Conversion of the answers of `plan` to the content of its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.layout.layout_answer import LayoutChoice, LayoutFile
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.cluster import Cluster
from profiles.units import format_bytes, format_percent, format_time
from shardwright.analysis.layout_memory import layout_memory
from shardwright.analysis.plan_sheet import MEMORY_PARTS, sheet_of
from shardwright.reports.brief.plan_brief import Planned
from shardwright.reports.brief.plan_table import layout_row, layout_rows, mixed_rows, plan_rows
from simulator.training_run.explain.explain_run import explain_run
from simulator.training_run.step.coefficients import shipped_coefficients
from simulator.values.plan_file import Comparison, Infeasibility, PlanFile
from simulator.values.prediction import Interval


def _relaxations(why: Infeasibility | None) -> tuple[tuple[str, str, float], ...]:
    relaxations = () if why is None else why.relaxations
    return tuple((one.change, one.flag, one.step_time_s) for one in relaxations)


def planned_layouts(answers: Sequence[LayoutFile], refused: Mapping[str, str]) -> Planned:
    """Report of the layouts of one or several frameworks, fastest first."""
    best = answers[0]
    chosen = best.chosen
    rows = layout_rows(answers, refused)
    if chosen is None:
        why = best.infeasibility
        return Planned(
            model=best.model,
            cluster=best.cluster,
            rows=rows,
            why="no layout is allowed"
            if why is None
            else f"the nearest, {why.nearest}, needs {format_bytes(why.needed_bytes)} of "
            f"{format_bytes(why.capacity_bytes)}, mostly for {why.term}",
            relaxations=_relaxations(why),
            assumptions=best.assumptions,
        )
    return _of_choice(
        chosen,
        model=best.model,
        cluster=best.cluster,
        rows=rows,
        proof=_proof(best.status, best.gap, best.search_time_s),
        helps=tuple((one.change, one.step_time_s) for one in best.sensitivities),
        assumptions=(*best.assumptions, *chosen.run.defaults),
    )


def planned_front(
    model: str,
    on: str,
    stack: str,
    choices: Sequence[tuple[Cluster, LayoutChoice]],
) -> Planned:
    """Report of a Pareto front, fastest first."""
    rows = [layout_row("front", model, part.name, stack, choice) for part, choice in choices]
    return _of_choice(
        choices[0][1],
        model=model,
        cluster=on,
        rows=rows,
        proof=f"Pareto front of {len(choices)} layouts; details are of the first, the fastest",
        helps=(),
        assumptions=choices[0][1].run.defaults,
    )


def _of_choice(
    chosen: LayoutChoice,
    *,
    model: str,
    cluster: str,
    rows: Sequence[Mapping[str, object]],
    proof: str,
    helps: Sequence[tuple[str, float]],
    assumptions: Sequence[str],
) -> Planned:
    run, prediction = chosen.run, chosen.prediction
    price = prediction.price_usd_per_hour
    sources = [
        (one.name, one.value, one.method, one.source)
        for one in explain_run(run, shipped_coefficients()).sources
    ]
    if price is not None:
        words = f"${price.value:.2f} per device-hour"
        sources.append(("price", words, price.method, price.source))
    return Planned(
        model=model,
        cluster=cluster,
        rows=rows,
        proof=proof,
        parts={part.words: seconds for part, seconds in prediction.seconds.items()},
        memory=layout_memory(chosen),
        peak=prediction.peak,
        capacity_bytes=get_device(run.device).usable_bytes,
        device=run.device,
        helps=helps,
        lost=chosen.reliability.lost,
        sources=sources,
        assumptions=assumptions,
    )


def planned_plan(answer: PlanFile, model: str, cluster: str) -> Planned:
    """Report of a plan for our executor."""
    rows, why = plan_rows(answer), answer.infeasibility
    prediction = answer.prediction
    if prediction is None:
        return Planned(
            model=model,
            cluster=cluster,
            rows=rows,
            why="the fixed values allow none"
            if why is None
            else f"the nearest, {why.nearest}, needs {format_bytes(why.bytes_over)} more for "
            f"{why.term} of stage {why.stage}",
            relaxations=_relaxations(why),
            assumptions=answer.assumptions,
        )
    sheet = sheet_of(answer)
    full = prediction.fullest
    memory = [(name, getattr(full, key)) for name, key in MEMORY_PARTS]
    if full.required_bytes is not None:
        memory.append(("room of the allocator", full.required_bytes - full.peak_bytes))
    return Planned(
        model=model,
        cluster=cluster,
        rows=rows,
        proof=_proof(answer.status, answer.gap, answer.search_time_s),
        parts=sheet.parts,
        memory=memory,
        peak=_peak(prediction.peak, full.peak_bytes),
        capacity_bytes=full.capacity_bytes,
        device=f"rank {full.rank}",
        sources=[
            (one.name, format_percent(one.share) + " of the step", one.method, one.source)
            for one in prediction.sources
        ],
        assumptions=answer.assumptions,
        limit=f"Limit: {prediction.limit}",
    )


def _peak(known: Interval, peak_bytes: float) -> Interval:
    """The fullest rank's peak, with the relative interval of the predicted peak."""
    return known.scaled(peak_bytes / known.value) if known.value > 0 else known


def planned_mixed(answer: PlanFile, comparison: Comparison) -> Planned:
    """Report of a plan on devices of several types."""
    planned = planned_plan(answer, comparison.model, comparison.cluster)
    left = "; ".join(f"{one.num_devices} {one.device}: {one.why}" for one in comparison.left_out)
    return replace(
        planned,
        rows=mixed_rows(answer, comparison),
        limit=f"Left out: {left}" if left else "",
    )


def _proof(status: str, gap: float | None, seconds: float) -> str:
    if status == "optimal":
        return f"Proven optimal in {format_time(seconds)}"
    return f"The search ended after {format_time(seconds)}: within {format_percent(gap or 0.0)}"
