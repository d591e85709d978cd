"""The step of replicas that differ: in devices, in the cut into stages, in their micro-batches.

Every replica runs its own pipeline on its own micro-batches. A part of the model is reduced over
the replicas when each of them has done its last backward of it, so one late replica holds up the
others. The optimizer runs where a stage's last part has been reduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiles.errors import InputError
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import build_schedule
from simulator.schedules.timeline import simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A pipeline with its share of the micro-batches.

    durations         seconds per stage and micro-batch on this replica's devices
    num_microbatches  its share, one or more
    first_parts       per stage, the first part of the model that it holds; begins with 0
    update_s          per stage, seconds of the optimizer
    """

    durations: Durations
    num_microbatches: int
    first_parts: tuple[int, ...]
    update_s: tuple[float, ...]

    def __post_init__(self) -> None:
        stages = self.durations.num_stages
        if self.num_microbatches < 1:
            raise InputError(
                f"a replica has {self.num_microbatches} micro-batches; leave a replica without "
                "work out of the step"
            )
        if len(self.first_parts) != stages or len(self.update_s) != stages:
            raise InputError(
                f"a replica of {stages} stages has {len(self.first_parts)} first parts and "
                f"{len(self.update_s)} optimizer times"
            )
        rises = all(a < b for a, b in zip(self.first_parts, self.first_parts[1:], strict=False))
        if self.first_parts[0] != 0 or not rises:
            raise InputError(f"stages begin with part 0 and then rise, got {self.first_parts}")

    def stage_of(self, part: int) -> int:
        """The stage that holds a part of the model."""
        return max(stage for stage, first in enumerate(self.first_parts) if first <= part)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedStep:
    """A step and what it consists of, seconds from its start.

    backward_end_s  [replicas][stages]  end of the last backward
    reduced_s       [parts]  when each part has been reduced
    reduction_s     from the last backward of all to the last reduction; 0 if it is hidden
    """

    step_s: float
    backward_end_s: tuple[tuple[float, ...], ...]
    reduced_s: tuple[float, ...]

    @property
    def pipeline_s(self) -> float:
        """When the slowest replica has done its last backward."""
        return max(max(ends) for ends in self.backward_end_s)

    @property
    def reduction_s(self) -> float:
        """Seconds that the exchange adds after the slowest pipeline."""
        return max(0.0, max(self.reduced_s) - self.pipeline_s)


def mixed_step(
    replicas: Sequence[Replica],
    *,
    reduce_s: Sequence[float],
    backward_ends_s: Sequence[tuple[float, ...]] | None = None,
) -> MixedStep:
    """The step of these replicas under 1F1B.

    reduce_s         [parts]  seconds to reduce each part over all replicas; 0 for one replica
    backward_ends_s  [replicas][stages]  end of the last backward; by default that of messages
                     beside the computation

    The parts are reduced from the model's end to its beginning, the order in which backwards end;
    a rank that holds several reduces one after another. Raises InputError.
    """
    if not replicas or not reduce_s:
        raise InputError("a step needs one replica and one part of the model or more")
    for replica in replicas:
        if replica.first_parts[-1] >= len(reduce_s):
            raise InputError(
                f"a replica's last stage begins with part {replica.first_parts[-1]}, but there "
                f"are {len(reduce_s)} parts"
            )
    if backward_ends_s is None:
        ends = {replica: _backward_ends(replica) for replica in dict.fromkeys(replicas)}
        backward_ends_s = [ends[replica] for replica in replicas]
    free = [list(row) for row in backward_ends_s]
    reduced = [0.0] * len(reduce_s)
    for part in reversed(range(len(reduce_s))):
        holders = [
            (row, replica.stage_of(part)) for row, replica in zip(free, replicas, strict=True)
        ]
        reduced[part] = max(row[stage] for row, stage in holders) + reduce_s[part]
        for row, stage in holders:
            row[stage] = reduced[part]
    step_s = max(
        end_s + update_s
        for row, replica in zip(free, replicas, strict=True)
        for end_s, update_s in zip(row, replica.update_s, strict=True)
    )
    return MixedStep(
        step_s=step_s,
        backward_end_s=tuple(backward_ends_s),
        reduced_s=tuple(reduced),
    )


def _backward_ends(replica: Replica) -> tuple[float, ...]:
    stages = replica.durations.num_stages
    schedule = build_schedule("1f1b", num_ranks=stages, num_microbatches=replica.num_microbatches)
    timeline = simulate(schedule, replica.durations)
    return tuple(timeline.rank_end_s(rank) for rank in range(stages))
