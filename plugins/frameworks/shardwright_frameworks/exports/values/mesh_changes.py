"""A run's mesh for a target without one of its axes: the axis's ranks become replicas."""

from __future__ import annotations

from collections.abc import Mapping

from profiles.errors import InputError
from shardwright_frameworks.exports.values.exported import Unexpressed
from simulator.training_run.run.training_run import TrainingRun, setting_of, with_settings

_WORDS = {
    "tp": "tensor parallelism",
    "pp": "a pipeline",
    "cp": "context parallelism",
    "ep": "expert parallelism",
}


def without_axes(
    run: TrainingRun, axes: tuple[str, ...], target: str
) -> tuple[TrainingRun, tuple[Unexpressed, ...]]:
    """The run with the ranks of these axes as replicas, and the changes, axis by axis.

    axes  those of `tp`, `pp`, `cp`, `ep` that the target does not have

    Raises InputError if the batch cannot be divided among the replicas.
    """
    found: list[Unexpressed] = []
    for axis in axes:
        degree = setting_of(run, axis)
        if degree == 1:
            continue
        change = {axis: 1} if axis == "ep" else _as_replicas(run, axis, target)
        found.append(
            Unexpressed(
                option=axis,
                planned=str(degree),
                written="1" if "dp" not in change else f"1, and dp {change['dp']}",
                why=f"{target} has no {_WORDS[axis]} here",
                change=change,
            )
        )
        run = with_settings(run, change)
    return run, tuple(found)


def _as_replicas(run: TrainingRun, axis: str, target: str) -> Mapping[str, object]:
    degree, replicas = setting_of(run, axis), run.degrees.dp
    dp = replicas * degree
    micro = run.micro_batch
    while micro > 1 and run.global_batch % (dp * micro):
        micro -= 1
    if run.global_batch % dp:
        raise InputError(
            f"--to {target}: it has no {_WORDS[axis]}, and the batch of {run.global_batch} "
            f"sequences cannot be shared by the {dp} replicas that {axis} {degree} x dp {replicas} "
            "would become; plan with a framework that it runs (--stack) or with another "
            "--global-batch"
        )
    change: dict[str, object] = {axis: 1, "dp": dp, "micro_batch": micro}
    if axis == "tp":
        change["sequence_parallel"] = False
    if axis == "pp":
        change |= {"vpp": 1, "schedule": "1f1b"}
    return change
