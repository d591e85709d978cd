"""Where the ranks of a run's groups lie: ranks and strides, by the order of its axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.training_run.run.training_run import TrainingRun
from simulator.values.degrees import Axis, Degrees


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks that communicate: (ranks, stride in devices) per axis, inner first."""

    axes: tuple[tuple[int, int], ...]

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return math.prod(count for count, _ in self.axes)

    def nodes(self, node_devices: int) -> float:
        """Nodes from the group's first rank to its last, where it lies densest.

        >>> RankGroup(((8, 8),)).nodes(8)
        8.0
        >>> RankGroup(((4, 1),)).nodes(8)
        1.0
        """
        extent = 1 + sum((count - 1) * stride for count, stride in self.axes)
        return float(math.ceil(extent / node_devices))

    def within(self, part_devices: int) -> int:
        """Ranks that surely lie together in a part of so many consecutive devices: of an axis
        those of the largest blocks that divide both it and the part.

        >>> RankGroup(((16, 8),)).within(64)
        8
        >>> RankGroup(((3, 8),)).within(64)  # blocks of 24 devices do not fill a part of 64
        1
        """
        return math.prod(_together(count, stride, part_devices) for count, stride in self._joined())

    def _joined(self) -> list[tuple[int, int]]:
        """The axes, those that go on where the one before ends as one."""
        found: list[tuple[int, int]] = []
        for count, stride in sorted(self.axes, key=lambda axis: axis[1]):
            if count == 1:
                continue
            if found and stride == found[-1][0] * found[-1][1]:
                found[-1] = (found[-1][0] * count, found[-1][1])
            else:
                found.append((count, stride))
        return found


def _together(count: int, stride: int, part_devices: int) -> int:
    if part_devices % stride:
        return 1
    return math.gcd(count, part_devices // stride)


def torus_share(group: RankGroup, sides: Sequence[int]) -> float:
    """Share (above 0, at most 1) of the links of a chip of a torus that a group uses: those of the
    axes that it spans. Ranks are numbered with the first of `sides` innermost.

    A chip of a torus of d axes has two links per axis, and a link file's bandwidth is that of all
    together. A ring along one whole axis uses that axis's share, both ways round; ranks that fill a
    part of an axis have no link that closes the ring, so that data passes one way and back: half of
    it (Austin et al., How to Scale Your Model, 2025, chapter 3).

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
    # Ranks that fill no axis in whole blocks still have a link each to the next one.
    return min(1.0, used) if used else 0.5 / axes


def _on_axis(count: int, stride: int, begins: int, ends: int) -> int:
    """Ranks of an axis of a group that a torus axis tells apart."""
    first, last = max(begins, stride), min(ends, stride * count)
    return max(1, last // first) if last > first else 1


def tensor_group(run: TrainingRun) -> RankGroup:
    """Ranks that split each layer."""
    return RankGroup((_axis(run.degrees, "tp"),))


def context_group(run: TrainingRun) -> RankGroup:
    """Ranks that split a sequence."""
    return RankGroup((_axis(run.degrees, "cp"),))


def data_group(run: TrainingRun) -> RankGroup:
    """Ranks that exchange gradients in every step: of one worker, where there are local steps."""
    inner = run.degrees.dp // run.local_workers
    return RankGroup((_axis(run.degrees, "cp"), (inner, run.degrees.stride("dp"))))


def worker_group(run: TrainingRun) -> RankGroup:
    """Ranks that hold the same weights in the workers of local steps, which are outermost."""
    inner = run.degrees.dp // run.local_workers
    return RankGroup(((run.local_workers, run.degrees.stride("dp") * inner),))


def expert_group(run: TrainingRun) -> RankGroup:
    """Ranks over which experts are spread: context-parallel ones, then replicas; the ranks of a
    tensor group too where those are fewer."""
    degrees = run.degrees
    taken = max(1, degrees.ep // (degrees.dp * degrees.cp))
    spread = degrees.ep // taken
    context = math.gcd(spread, degrees.cp)
    return RankGroup(((taken, 1), (context, degrees.tp), (spread // context, degrees.stride("dp"))))


def expert_replicas(run: TrainingRun) -> RankGroup:
    """Ranks that hold the same experts and exchange their gradients in every step: those of a
    tensor group are among them where experts are spread, since then none is split."""
    degrees = run.degrees
    taken = max(1, degrees.ep // (degrees.dp * degrees.cp))
    tensor = degrees.tp // taken if degrees.ep > 1 else 1
    spread = degrees.ep // taken
    context = math.gcd(spread, degrees.cp)
    replicas = spread // context
    inner = max(1, degrees.dp // run.local_workers // replicas)
    return RankGroup(
        (
            (max(1, tensor), taken),
            (degrees.cp // context, degrees.tp * context),
            (inner, degrees.stride("dp") * replicas),
        )
    )


def _axis(degrees: Degrees, axis: Axis) -> tuple[int, int]:
    return degrees.size(axis), degrees.stride(axis)
