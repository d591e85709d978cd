"""Communication groups of a run: sizes and strides of their ranks, by the order of its axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.training_run.run.training_run import TrainingRun
from simulator.values.degrees import Axis, Degrees


@dataclass(frozen=True, slots=True)
class RankGroup:
    """A communication group: (ranks, stride in devices) per axis, innermost first."""

    axes: tuple[tuple[int, int], ...]

    @property
    def ranks(self) -> int:
        """Number of ranks in the group."""
        return math.prod(count for count, _ in self.axes)

    def nodes(self, node_devices: int) -> float:
        """Smallest number of nodes from the group's first rank to its last.

        >>> RankGroup(((8, 8),)).nodes(8)
        8.0
        >>> RankGroup(((8, 1),)).nodes(8)
        1.0
        """
        extent = 1 + sum((count - 1) * stride for count, stride in self.axes)
        return float(math.ceil(extent / node_devices))

    def within(self, part_devices: int) -> int:
        """Ranks guaranteed to share a part of `part_devices` consecutive devices: for each axis,
        the largest block that divides both the axis and the part.

        >>> RankGroup(((16, 8),)).within(64)
        8
        >>> RankGroup(((3, 8),)).within(64)  # blocks of 24 devices do not fill a part of 64
        1
        """
        return math.prod(_together(count, stride, part_devices) for count, stride in self._joined())

    def _joined(self) -> list[tuple[int, int]]:
        """The axes by stride, with contiguous ones merged."""
        merged: list[tuple[int, int]] = []
        for count, stride in sorted(self.axes, key=lambda axis: axis[1]):
            if count == 1:
                continue
            if merged and stride == merged[-1][0] * merged[-1][1]:
                merged[-1] = (merged[-1][0] * count, merged[-1][1])
            else:
                merged.append((count, stride))
        return merged


def _together(count: int, stride: int, part_devices: int) -> int:
    if part_devices % stride:
        return 1
    return math.gcd(count, part_devices // stride)


def torus_share(group: RankGroup, sides: Sequence[int]) -> float:
    """Share (above 0, at most 1) of a torus chip's links used by a group: links of its axes.

    Ranks are numbered with the first of `sides` innermost. A chip of a torus with d axes has two
    links per axis; a link file's bandwidth is the sum of all. A ring along a whole axis uses both
    directions of that axis. Ranks along a part of an axis cannot close the ring, so they use half
    of that bandwidth (Austin et al., How to Scale Your Model, 2025, chapter 3).

    >>> torus_share(RankGroup(((16, 1),)), (4, 4, 4))  # two of three axes
    0.6666666666666666
    >>> torus_share(RankGroup(((2, 1),)), (4, 4, 4))  # half of one
    0.16666666666666666
    """
    axes = len(sides)
    used = 0.0
    begins = 1
    for side in sides:
        ends = begins * side
        covered = math.prod(_on_axis(count, stride, begins, ends) for count, stride in group.axes)
        if covered >= side:
            used += 1.0 / axes
        elif covered > 1:
            used += 0.5 / axes
        begins = ends
    # Ranks without a whole block on any axis still have one link to the next rank.
    return min(1.0, used) if used else 0.5 / axes


def _on_axis(count: int, stride: int, begins: int, ends: int) -> int:
    """Number of distinct positions of a group's axis on a torus axis."""
    first, last = max(begins, stride), min(ends, stride * count)
    return max(1, last // first) if last > first else 1


def tensor_group(run: TrainingRun) -> RankGroup:
    """Ranks that split each layer."""
    return RankGroup((_axis(run.degrees, "tp"),))


def context_group(run: TrainingRun) -> RankGroup:
    """Ranks that split a sequence."""
    return RankGroup((_axis(run.degrees, "cp"),))


def data_group(run: TrainingRun) -> RankGroup:
    """Ranks that exchange gradients in every step and may shard states; with local steps, those of
    one worker, with hybrid sharding those of one group."""
    inner = run.degrees.shard_replicas // run.local_workers
    return RankGroup((_axis(run.degrees, "cp"), (inner, run.degrees.stride("dp"))))


def replicate_group(run: TrainingRun) -> RankGroup:
    """Ranks with the same shard in different groups of hybrid sharding; groups are outermost."""
    degrees = run.degrees
    return RankGroup(((degrees.dp_replicate, degrees.stride("dp") * degrees.shard_replicas),))


def worker_group(run: TrainingRun) -> RankGroup:
    """Ranks with the same weights in different workers of local steps; workers are outermost."""
    inner = run.degrees.dp // run.local_workers
    return RankGroup(((run.local_workers, run.degrees.stride("dp") * inner),))


def expert_group(run: TrainingRun) -> RankGroup:
    """Ranks of expert parallelism: context-parallel ranks, then replicas, then tensor-parallel
    ranks for the rest of ep."""
    degrees = run.degrees
    tensor, context, replicas = _expert_spread(degrees)
    return RankGroup(((tensor, 1), (context, degrees.tp), (replicas, degrees.stride("dp"))))


def expert_replicas(run: TrainingRun) -> RankGroup:
    """Ranks of a `data_group` with the same experts. With expert parallelism experts are not split,
    so the ranks of a tensor group are included."""
    degrees = run.degrees
    tensor, context, replicas = _expert_spread(degrees)
    inner = max(1, degrees.shard_replicas // run.local_workers // replicas)
    return RankGroup(
        (
            (degrees.tp // tensor if degrees.ep > 1 else 1, tensor),
            (degrees.cp // context, degrees.tp * context),
            (inner, degrees.stride("dp") * replicas),
        )
    )


def _expert_spread(degrees: Degrees) -> tuple[int, int, int]:
    """Numbers of tensor-parallel ranks, context-parallel ranks and replicas in an `expert_group`;
    their product is ep, which divides the ranks of a stage. They are in one group of hybrid
    sharding."""
    spread = math.gcd(degrees.ep, degrees.shard_replicas * degrees.cp)
    context = math.gcd(spread, degrees.cp)
    return degrees.ep // spread, context, spread // context


def _axis(degrees: Degrees, axis: Axis) -> tuple[int, int]:
    return degrees.size(axis), degrees.stride(axis)
