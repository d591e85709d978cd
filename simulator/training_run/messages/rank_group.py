"""Where the ranks of a run's groups lie: ranks and strides, by the order of its axes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.training_run.run.training_run import TrainingRun


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


def tensor_group(run: TrainingRun) -> RankGroup:
    """Ranks that split each layer: neighbours."""
    return RankGroup(((run.tp, 1),))


def context_group(run: TrainingRun) -> RankGroup:
    """Ranks that split a sequence: a tensor group apart."""
    return RankGroup(((run.cp, run.tp),))


def data_stride(run: TrainingRun) -> int:
    """Devices from a rank to the one of the next replica."""
    inner = run.tp * run.cp
    return inner * run.pp if run.axis_order == "tp-cp-pp-dp" else inner


def stage_stride(run: TrainingRun) -> int:
    """Devices from a rank to the one of the next stage."""
    inner = run.tp * run.cp
    return inner if run.axis_order == "tp-cp-pp-dp" else inner * run.dp


def data_group(run: TrainingRun) -> RankGroup:
    """Ranks that exchange gradients in every step: of one worker, where there are local steps."""
    return RankGroup(((run.cp, run.tp), (run.dp // run.local_workers, data_stride(run))))


def worker_group(run: TrainingRun) -> RankGroup:
    """Ranks that hold the same weights in the workers of local steps, which are outermost."""
    inner = run.dp // run.local_workers
    return RankGroup(((run.local_workers, data_stride(run) * inner),))


def expert_group(run: TrainingRun) -> RankGroup:
    """Ranks over which experts are spread: context-parallel ones, then replicas; the ranks of a
    tensor group too where those are fewer."""
    taken = max(1, run.expert_parallel // (run.dp * run.cp))
    return RankGroup(((taken, 1), *_spread(run, run.expert_parallel // taken)))


def expert_replicas(run: TrainingRun) -> RankGroup:
    """Ranks that hold the same experts and exchange their gradients in every step: those of a
    tensor group are among them where experts are spread, since then none is split."""
    taken = max(1, run.expert_parallel // (run.dp * run.cp))
    tensor = run.tp // taken if run.expert_parallel > 1 else 1
    spread = run.expert_parallel // taken
    context = math.gcd(spread, run.cp)
    beside = spread // context
    inner = max(1, run.dp // run.local_workers // beside)
    return RankGroup(
        (
            (max(1, tensor), taken),
            (run.cp // context, run.tp * context),
            (inner, data_stride(run) * beside),
        )
    )


def _spread(run: TrainingRun, ranks: int) -> tuple[tuple[int, int], ...]:
    context = math.gcd(ranks, run.cp)
    return ((context, run.tp), (ranks // context, data_stride(run)))
