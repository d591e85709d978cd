"""`single_changes`: all runs that differ from a run in one setting, on the same devices with the
same batch.

A changed degree takes devices from data parallelism, or gives them to it. A run is legal if the
framework accepts it (`FrameworkRules`) and if degrees divide: tp the heads, pp x vpp the layers, ep
the experts, dp x micro-batch the batch, and pp an interleaved pipeline's micro-batches
(Megatron-Core, core/pipeline_parallel/schedules.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.schedules.schedule import schedule_kind
from simulator.training_run.framework.framework import FrameworkRules, load_framework
from simulator.training_run.run.training_run import TrainingRun, setting_of, with_settings
from simulator.values.recompute_kind import recompute_kind

# Settings that may be changed; equal gains are listed in this order.
SETTINGS = (
    "micro_batch", "recompute", "tp", "pp", "vpp", "cp", "ep", "zero_stage", "sequence_parallel",
    "schedule", "optimizer_offload", "precision",
)  # fmt: skip
_INTERLEAVED = "interleaved"


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleChange:
    """A change of one setting: old and new value, and the changed run."""

    setting: str
    old: int | bool | str
    new: int | bool | str
    run: TrainingRun


def single_changes(run: TrainingRun, *, precisions: tuple[str, ...] = ()) -> list[SingleChange]:
    """All legal neighbors of a run.

    precisions  to try in addition to the run's; none by default, because they change the results
    """
    rules = load_framework(run.stack).rules
    found = []
    for setting, new, changed in _candidates(run, rules, precisions):
        if is_legal(changed, rules):
            found.append(
                SingleChange(setting=setting, old=setting_of(run, setting), new=new, run=changed)
            )
    return found


def _candidates(
    run: TrainingRun, rules: FrameworkRules, precisions: tuple[str, ...]
) -> Iterator[tuple[str, int | bool | str, TrainingRun]]:
    degrees = run.degrees
    for size in _halves_and_doubles(run.micro_batch):
        yield "micro_batch", size, replace(run, micro_batch=size)
    for kind in rules.recompute:
        if kind != run.recompute and recompute_kind(kind).suits(run.model):
            yield "recompute", kind, replace(run, recompute=kind, recompute_layers=0)
    for axis in ("tp", "pp", "cp"):
        for degree in _halves_and_doubles(setting_of(run, axis)):
            changed = _with_degree(run, axis, degree)
            if changed is not None:
                yield axis, degree, changed
    if run.model.num_experts:
        for degree in _halves_and_doubles(degrees.ep):
            if degrees.stage_ranks % degree == 0:
                yield "ep", degree, with_settings(run, {"ep": degree})
    yield from _pipelines(run, rules)
    for stage in rules.zero_stages_at(degrees.pp):
        if stage != run.zero_stage:
            yield "zero_stage", stage, replace(run, zero_stage=stage)
    if degrees.tp > 1 and rules.sequence_parallel:
        on = not run.sequence_parallel
        yield "sequence_parallel", on, replace(run, sequence_parallel=on)
    if run.optimizer_offload:
        yield "optimizer_offload", False, replace(run, optimizer_offload=False)
    for precision in precisions:
        if precision != run.precision and precision in rules.precisions:
            yield "precision", precision, replace(run, precision=precision)


def _halves_and_doubles(value: int) -> tuple[int, ...]:
    return (2 * value, value // 2) if value % 2 == 0 else (2 * value,)


def _with_degree(run: TrainingRun, axis: str, degree: int) -> TrainingRun | None:
    """The run with another degree, on the same devices; None if they do not divide."""
    degrees = run.degrees
    others = degrees.tp * degrees.pp * degrees.cp // setting_of(run, axis)
    dp, rest = divmod(degrees.num_devices, others * degree)
    stage_ranks = degrees.num_devices // (degree if axis == "pp" else degrees.pp)
    if rest or dp < 1 or stage_ranks % degrees.ep:
        return None
    schedule, vpp = run.schedule, degrees.vpp
    if axis == "pp":
        if degree == 1:
            schedule, vpp = "none", 1
        elif degrees.pp == 1:
            schedule = "1f1b"
        elif vpp > 1:
            # At most as many virtual stages per rank as layers.
            vpp = vpp if run.model.num_layers % (degree * vpp) == 0 else 1
            schedule = schedule if vpp > 1 else "1f1b"
    sequence = run.sequence_parallel
    if axis == "tp" and degrees.tp == 1:
        sequence = load_framework(run.stack).usual_sequence_parallel
    if axis == "tp" and degree == 1:
        sequence = False
    offered = load_framework(run.stack).rules.zero_stages_at(degree)
    if axis == "pp" and run.zero_stage not in offered:
        return None
    return with_settings(
        run,
        {axis: degree, "dp": dp, "vpp": vpp, "schedule": schedule, "sequence_parallel": sequence},
    )


def _pipelines(
    run: TrainingRun, rules: FrameworkRules
) -> Iterator[tuple[str, int | bool | str, TrainingRun]]:
    degrees = run.degrees
    if degrees.pp == 1:
        return
    is_interleaved = schedule_kind(run.schedule).is_interleaved
    if "vpp" in rules.axes and (is_interleaved or run.schedule == "1f1b"):
        per_rank = run.model.num_layers // degrees.pp
        for chunks in sorted({1, *_halves_and_doubles(degrees.vpp)}):
            if chunks != degrees.vpp and per_rank % chunks == 0:
                usual = run.schedule if is_interleaved else _INTERLEAVED
                schedule = usual if chunks > 1 else "1f1b"
                yield "vpp", chunks, with_settings(run, {"vpp": chunks, "schedule": schedule})
    for schedule in rules.schedules:
        if schedule != run.schedule and schedule_kind(schedule).is_interleaved == is_interleaved:
            yield "schedule", schedule, replace(run, schedule=schedule)


def is_legal(run: TrainingRun, rules: FrameworkRules) -> bool:
    """Whether a framework accepts the run: every degree divides the dimension that it splits."""
    model, degrees = run.model, run.degrees
    if degrees.used - set(rules.axes):
        return False
    if run.global_batch % (degrees.dp * run.micro_batch):
        return False
    if model.num_heads % degrees.tp or degrees.tp > max(run.node_devices, 1):
        return False
    if model.num_layers < degrees.num_stages or run.seq_len % (2 * degrees.cp):
        return False
    if model.num_experts and model.num_experts % degrees.ep:
        return False
    kind = schedule_kind(run.schedule)
    if not kind.suits(ep=degrees.ep, recompute=run.recompute):
        return False
    return not (kind.is_interleaved and run.num_microbatches % run.degrees.pp)
