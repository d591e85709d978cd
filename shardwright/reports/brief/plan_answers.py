"""Conversion of the answers of `plan` to the content of its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from planner.layout.layout_answer import LayoutChoice, LayoutFile
from planner.layout.layout_choice import power_mfu
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.cluster import Cluster
from profiles.units import format_bytes, format_count, format_percent, format_time, format_usd
from shardwright.analysis.layout_timeline import layout_memory
from shardwright.analysis.plan_sheet import MEMORY_PARTS, sheet_of
from shardwright.reports.brief.brief import Brief, Section, Table
from shardwright.reports.brief.plan_brief import Planned, plan_brief
from shardwright.reports.brief.plan_table import layout_row, layout_rows, mixed_rows, plan_rows
from shardwright.reports.plan_summary import branch_rows, stages_line
from shardwright.reports.terminal import format_interval, format_share
from simulator.energy import power_words
from simulator.training_run.explain.explain_run import explain_run
from simulator.values.plan import Pipeline, Plan, Stage
from simulator.values.plan_file import Comparison, Infeasibility, PlanFile
from simulator.values.prediction import Interval, Prediction


def answer_brief(answer: PlanFile | LayoutFile) -> Brief:
    """The report of one answer."""
    if isinstance(answer, LayoutFile):
        return plan_brief(planned_layouts([answer], {}))
    return plan_brief(planned_plan(answer))


def _relaxations(why: Infeasibility | None) -> tuple[tuple[str, str, float], ...]:
    relaxations = () if why is None else why.relaxations
    return tuple((one.change, one.flag, one.step_time_s) for one in relaxations)


def planned_layouts(answers: Sequence[LayoutFile], refused: Mapping[str, str]) -> Planned:
    """Report of the layouts of one or several frameworks, fastest first."""
    best = answers[0]
    chosen = best.chosen
    rows = layout_rows(answers, refused)
    searched = (
        "search",
        f"{best.considered:,} layouts considered in {format_time(best.search_time_s)}: "
        f"{best.too_big:,} do not fit in memory, {best.pruned:,} pruned by their bound, "
        f"{best.refined:,} refined",
    )
    if chosen is None:
        return Planned(
            model=best.model,
            cluster=best.cluster,
            rows=rows,
            why=_why_no_layout(best.infeasibility),
            relaxations=_relaxations(best.infeasibility),
            details=[_words([searched])],
            assumptions=best.assumptions,
        )
    return _of_choice(
        chosen,
        model=best.model,
        cluster=best.cluster,
        rows=rows,
        proof=_proof(best.status, best.gap, best.search_time_s),
        details=[searched, ("nearby batches", _batches(best, chosen))],
        helps=tuple((one.change, one.step_time_s) for one in best.sensitivities),
        assumptions=(*best.assumptions, *chosen.run.defaults),
    )


def _why_no_layout(why: Infeasibility | None) -> str:
    if why is None:
        return "no layout is allowed"
    if why.host:
        return f"rank {why.rank} of the closest layout, {why.nearest}, {why.host}"
    return (
        f"rank {why.rank} of the closest layout, {why.nearest}, needs "
        f"{format_bytes(why.needed_bytes)} of {format_bytes(why.capacity_bytes)}, mostly for "
        f"{why.term}"
    )


def _batches(answer: LayoutFile, chosen: LayoutChoice) -> str:
    """Nearby global batches that use more devices."""
    now = chosen.prediction.per_s.value
    return "; ".join(
        f"{each.global_batch}: {each.tokens_per_s / now - 1:+.0%} tokens/s, step "
        f"{format_time(each.step_time_s)}, {each.layout}"
        for each in answer.nearby_batches
    )


def planned_front(
    model: str,
    on: str,
    stack: str,
    against: str,
    choices: Sequence[tuple[Cluster, LayoutChoice]],
) -> Planned:
    """Report of a Pareto front of step time against `memory` or `usd`, fastest first."""
    what = "memory" if against == "memory" else "dollars per million tokens"
    rows = [layout_row("front", model, part.name, stack, choice) for part, choice in choices]
    return _of_choice(
        choices[0][1],
        model=model,
        cluster=on,
        rows=rows,
        proof=f"{len(choices)} layouts that no other beats in both step time and {what} (the "
        "Pareto front); details are of the first, the fastest",
        details=[],
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
    details: Sequence[tuple[str, str]],
    helps: Sequence[tuple[str, float]],
    assumptions: Sequence[str],
) -> Planned:
    run, prediction = chosen.run, chosen.prediction
    price = prediction.price_usd_per_hour
    sources = [(one.name, one.value, one.method, one.source) for one in explain_run(run).sources]
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
        details=[_words([*details, *_long_run(chosen)])],
        sources=sources,
        assumptions=assumptions,
    )


def _long_run(chosen: LayoutChoice) -> list[tuple[str, str]]:
    """Failures of a long run, and the cost of a million tokens with their effect."""
    run, lasting = chosen.run, chosen.reliability
    lost = sorted(lasting.lost.items(), key=lambda part: -part[1])
    causes = ", ".join(f"{name} {format_percent(share)}" for name, share in lost if share > 1e-3)
    kept = [
        format_interval(value, words)
        for value, words in (
            (chosen.usd_delivered, format_usd),
            (chosen.kwh_delivered, "{:.3g} kWh".format),
            (chosen.kg_co2e_delivered, "{:.3g} kg CO2e".format),
        )
        if value is not None
    ]
    grid = f", grid of {chosen.region}" if chosen.region else ""
    mfu = power_mfu(run, chosen.prediction.mfu.value, run.degrees.num_devices + chosen.idle_devices)
    return [
        (
            "failures",
            f"one per {format_interval(lasting.between_failures_s)}, a checkpoint every "
            f"{format_time(lasting.checkpoint_every_s)}, spare nodes: {lasting.spare_nodes}; time "
            f"lost to {causes or 'nothing'}",
        ),
        ("per million tokens, failures included", f"{', '.join(kept)}{grid}" if kept else ""),
        ("power", power_words(run.device, mfu)),
    ]


def _words(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of names and texts; empty texts are left out."""
    return Table(heads=("", ""), rows=tuple((name, text) for name, text in rows if text))


def planned_plan(answer: PlanFile, model: str = "", cluster: str = "") -> Planned:
    """Report of a plan for our executor; the names are those of the plan if not given."""
    rows, why, plan = plan_rows(answer), answer.infeasibility, answer.plan
    prediction = answer.prediction
    searched = (
        "search",
        f"{answer.cells_considered:,} cells considered, {answer.cells_pruned:,} pruned"
        + (f" ({answer.solver})" if answer.solver else "")
        if answer.comparison is None
        else f"{answer.comparison.keys_solved} of {answer.comparison.keys} combinations solved",
    )
    if plan is None or prediction is None:
        return Planned(
            model=model or "the model",
            cluster=cluster or "the cluster",
            rows=rows,
            why=f"the pins allow none (status {answer.status})"
            if why is None
            else f"stage {why.stage} of the closest plan, {why.nearest}, needs "
            f"{format_bytes(why.bytes_over)} more than {format_bytes(why.capacity_bytes)}, for "
            f"{why.term}",
            relaxations=_relaxations(why),
            details=[_words([searched])],
            assumptions=answer.assumptions,
        )
    full = prediction.fullest
    memory = [(name, getattr(full, key)) for name, key in MEMORY_PARTS]
    if full.required_bytes is not None:
        memory.append(("room of the allocator", full.required_bytes - full.peak_bytes))
    return Planned(
        model=model or plan.model,
        cluster=cluster or plan.cluster,
        rows=rows,
        proof=_proof(answer.status, answer.gap, answer.search_time_s),
        parts=sheet_of(answer).parts,
        memory=memory,
        peak=_peak(prediction.peak, full.peak_bytes),
        capacity_bytes=full.capacity_bytes,
        device=f"rank {full.rank}",
        details=_stage_tables(plan, prediction, searched),
        sources=[
            (one.name, format_percent(one.share) + " of the step", one.method, one.source)
            for one in prediction.sources
        ],
        assumptions=answer.assumptions,
        limit=f"Limit: {prediction.limit}",
    )


def _stage_tables(plan: Plan, prediction: Prediction, searched: tuple[str, str]) -> list[Table]:
    """Tables of stages and memory if all replicas are equal, otherwise of the replicas."""
    if plan.pipelines is not None:
        words = _words([searched, ("gradients", exchange_words(prediction))])
        return [words, replica_table(plan, plan.pipelines, prediction)]
    rows = branch_rows(plan, prediction)
    branches = [Table(heads=("stage", "blocks", "receives"), rows=rows)] if rows else []
    words = _words([searched, ("stages", stages_line(plan))])
    return [words, *branches, rank_table(prediction)]


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


_HEADS = (
    *(">replicas", ">micro-batches", ">done", "stage", ">blocks", "recompute", ">F + B"),
    ">memory",
)


def replica_table(plan: Plan, pipelines: tuple[Pipeline, ...], prediction: Prediction) -> Table:
    """Equal replicas together, one row per stage."""
    rows: list[tuple[str, ...]] = []
    split = f"{plan.degrees.tp}x " if plan.degrees.tp > 1 else ""
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
            rows.append(
                (
                    *cells,
                    f"{split}{stage.device}",
                    str(stage.num_blocks),
                    _recompute(stage),
                    format_time(work_s[device]),
                    f"{format_bytes(peak)} of {format_bytes(room)}",
                )
            )
            cells = ("", "", "")
    return Table(heads=_HEADS, rows=tuple(rows))


def exchange_words(prediction: Prediction) -> str:
    """The time of the exchange of gradients; "" for a single pipeline, which exchanges none."""
    exchanged = [event.end_s for event in prediction.events if event.name == "data_parallel"]
    if not exchanged:
        return ""
    slowest = max(_backward_ends(prediction).values())
    return f"exchange {format_time(max(exchanged) - slowest)}"


def _backward_ends(prediction: Prediction) -> dict[int, float]:
    """The end of each device's last backward, in seconds."""
    ends: dict[int, float] = {}
    for event in prediction.events:
        if event.stream == "compute" and event.name != "optimizer":
            ends[event.rank] = max(event.end_s, ends.get(event.rank, 0.0))
    return ends


def _recompute(stage: Stage) -> str:
    kinds = Counter(kind.value for kind in stage.recompute)
    again = (f"{kind} {count}" for kind, count in sorted(kinds.items()) if kind != "none")
    return ", ".join(again) or "none"


def prediction_brief(
    prediction: Prediction,
    peak: Interval | None,
    *,
    title: str = "Prediction",
    assumptions: Sequence[str] = (),
) -> Brief:
    """Step time by part, memory by rank, and assumptions; `peak` in bytes, None if unknown."""
    kwh, unit = prediction.kwh_per_million, prediction.counted_in
    figures = [
        f"step {format_interval(prediction.step_time_s)}",
        f"MFU {format_share(prediction.mfu)}",
        f"{format_count(prediction.per_s.value)} {unit}/s",
        *([f"peak {format_interval(peak, format_bytes)}"] if peak is not None else []),
        *([f"{kwh.value:.3g} kWh per M {unit}"] if kwh is not None else []),
    ]
    ranks = (rank_table(prediction),) if prediction.ranks else ()
    section = Section(
        title="Step and memory",
        tables=(_part_table(prediction), *ranks),
        note=f"Assumed: {'; '.join(assumptions)}" if assumptions else "",
    )
    return Brief(
        title=title, headline=title, subtitle=", ".join(figures), facts=(), sections=(section,)
    )


def _part_table(prediction: Prediction) -> Table:
    step_s = prediction.step_time_s.value
    rows = [
        (part.words, format_time(seconds), format_percent(seconds / step_s))
        for part, seconds in prediction.seconds.items()
    ]
    total = ("step", format_time(step_s), "100 %")
    return Table(heads=("part of the step", ">time", ">share"), rows=(*rows, total))


def rank_table(prediction: Prediction) -> Table:
    """Memory of every rank at its peak, by part, and its capacity."""
    required = prediction.required_memory_bytes is not None
    rows = []
    for rank in prediction.ranks:
        sizes = [getattr(rank, field) for _, field in MEMORY_PARTS]
        sizes += [rank.peak_bytes, *((rank.limiting_bytes,) if required else ())]
        rows.append((str(rank.rank), *map(format_bytes, (*sizes, rank.capacity_bytes))))
    names = (f">{name}" for name, _ in MEMORY_PARTS)
    heads = (">rank", *names, ">peak", *((">needs",) if required else ()), ">has")
    return Table(heads=heads, rows=tuple(rows))
