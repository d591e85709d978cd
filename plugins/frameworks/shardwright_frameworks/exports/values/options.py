"""Options of a plan in addition to its axes, and the ones that a target does not express."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shardwright_frameworks.exports.values.exported import Unexpressed
from shardwright_frameworks.exports.values.planned_run import PlannedRun
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.run.used_options import used_options


def unexpressed_options(
    run: TrainingRun, target: str, *, can: Collection[str]
) -> tuple[Unexpressed, ...]:
    """The options of the run that the target does not express; `can` names the expressible ones."""
    return tuple(
        Unexpressed(
            option=option.name,
            planned=", ".join(f"{key} {value}" for key, value in option.values.items()),
            written="without",
            why=f"the written files for {target} do not set {option.words}",
            change=option.without,
        )
        for option in used_options(run)
        if option.name not in can
    )


def nearest(
    option: str, planned: str, instead: Mapping[str, str], why: str
) -> tuple[str, tuple[Unexpressed, ...]]:
    """The planned value, or a replacement with a report that the planned one is not expressed.

    option   a field of TrainingRun;  instead  planned value -> the written replacement
    """
    if planned not in instead:
        return planned, ()
    written = instead[planned]
    return written, (replaced(option, planned, written, why),)


def replaced(option: str, planned: object, written: object, why: str) -> Unexpressed:
    """The report on a field of TrainingRun in whose place another value is written."""
    return Unexpressed(
        option=option,
        planned=str(planned),
        written=str(written),
        why=why,
        change={option: written},
    )


def schedule_gap(
    run: TrainingRun, able: Collection[str], target: str
) -> tuple[str, tuple[Unexpressed, ...]]:
    """The written schedule: the planned one, otherwise 1F1B, interleaved where ranks hold
    several stages."""
    if run.degrees.pp == 1 or run.schedule in able:
        return run.schedule, ()
    written = "interleaved" if run.degrees.vpp > 1 else "1f1b"
    why = f"{target} does not run this schedule"
    return written, (replaced("schedule", run.schedule, written, why),)


def all_or_no_layers(planned: PlannedRun, target: str, why: str) -> tuple[Unexpressed, ...]:
    """The gap of a target that can recompute all layers or none, if the plan recomputes some."""
    layers, mixed = uneven_recompute(planned, target)
    if mixed or not layers:
        return mixed
    return (
        Unexpressed(
            option="recompute_layers",
            planned=f"the first {layers} layers of every stage",
            written="all layers",
            why=why,
            change={"recompute_layers": 0},
        ),
    )


def uneven_recompute(planned: PlannedRun, target: str) -> tuple[int, tuple[Unexpressed, ...]]:
    """Number of fully recomputed layers per virtual stage, 0 for all, and a gap if the stages
    differ in their recomputed layers."""
    run = planned.run
    if run.recompute != "full":
        mixed = {kind for stage in planned.stages for kind in stage.recompute}
        return 0, _mixed(planned, target, run.recompute, 0) if len(mixed) > 1 else ()
    counts = [sum(kind == "full" for kind in stage.recompute) for stage in planned.stages]
    if all(c == stage.num_layers for c, stage in zip(counts, planned.stages, strict=True)):
        return 0, ()
    first = all(
        set(stage.recompute[:count]) <= {"full"} and "attention" not in stage.recompute
        for count, stage in zip(counts, planned.stages, strict=True)
    )
    layers = max(counts)
    same = all(c == min(layers, s.num_layers) for c, s in zip(counts, planned.stages, strict=True))
    if first and same:
        return layers, ()
    return layers, _mixed(planned, target, "full", layers)


def _mixed(planned: PlannedRun, target: str, kind: str, layers: int) -> tuple[Unexpressed, ...]:
    each = [sum(k != "none" for k in stage.recompute) for stage in planned.stages]
    many = f"the first {layers} layers of every stage" if layers else "all layers"
    return (
        Unexpressed(
            option="recompute per layer",
            planned="layers run again per stage: " + ", ".join(map(str, each)),
            written=f"{kind}, {many}",
            why=f"{target} has one rule for all stages",
            change=None,
        ),
    )
