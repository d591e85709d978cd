"""Stage splits on mixed devices: what a pipeline of these devices can be, at best.

For every set of devices that may form one pipeline, all orders of the devices and all contiguous
splits of the blocks are searched by a dynamic programme from the last stage to the first; kept are
the splits that no other beats in both the longest stage and the sum of stages.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from profiles.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedDevice:
    """Devices of one type.

    block_s         [n] forward and backward seconds of each block per micro-batch
    capacity_bytes  memory of one device that a stage may fill
    """

    name: str
    count: int
    block_s: tuple[float, ...]
    capacity_bytes: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedProblem:
    """A chain of n blocks, devices of several types, and M micro-batches to share out.

    send_s        [n] seconds of a message over the cut before a block, one way; entry 0 not used
    reduce_s      [d] seconds to reduce the gradients over d + 1 replicas; as long as the most
                  replicas there may be
    static_bytes  [n] per block, whatever the micro-batches; empty for none
    saved_bytes   [n] per block and micro-batch in flight; the k-th stage from the end has k of
                  them, or all where there are fewer
    max_stages    longest pipeline
    """

    devices: tuple[MixedDevice, ...]
    num_microbatches: int
    send_s: tuple[float, ...]
    reduce_s: tuple[float, ...]
    static_bytes: tuple[float, ...] = ()
    saved_bytes: tuple[float, ...] = ()
    max_stages: int = 8

    def __post_init__(self) -> None:
        n = len(self.send_s)
        if not self.devices or n < 1 or self.num_microbatches < 1 or not self.reduce_s:
            raise InputError(
                "mixed devices need one device type, block, micro-batch and reduce_s or more"
            )
        for device in self.devices:
            if len(device.block_s) != n or device.count < 1 or min(device.block_s) < 0.0:
                raise InputError(
                    f"{device.name}: {device.count} devices and {len(device.block_s)} block times; "
                    f"one device or more and a time of 0 or more for each of {n} blocks are needed"
                )
            if sum(device.block_s) <= 0.0:
                raise InputError(f"{device.name}: all its blocks take no time")
        for name, row in (("static_bytes", self.static_bytes), ("saved_bytes", self.saved_bytes)):
            if row and len(row) != n:
                raise InputError(f"{name} has {len(row)} entries for {n} blocks")

    @property
    def num_blocks(self) -> int:
        return len(self.send_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A pipeline: the device type of each stage, and its first block.

    longest_s  the longest stage;  sum_s  all stages

    The messages down and up over the cut behind a stage count as its work, which is so where
    messages wait in the computing stream and else errs on the slow side.
    """

    longest_s: float
    sum_s: float
    devices: tuple[int, ...]
    first_blocks: tuple[int, ...]

    def pipeline_s(self, num_microbatches: int) -> float:
        """sum + (m - 1) longest: the 1F1B step if every stage were as slow to fill and drain.

        Never less than the timeline of the same stages, and equal to it where the last stage is
        the longest (planner/problem.py says why; Narayanan et al., SC'21, section 2.2.1).
        """
        return self.sum_s + (num_microbatches - 1) * self.longest_s


Counts = tuple[int, ...]
"""How many devices of each type."""


def best_splits(problem: MixedProblem) -> dict[Counts, tuple[Split, ...]]:
    """The splits worth considering for each set of devices that can form one pipeline.

    A set that cannot hold the model is left out. Complexity: sets x types x n^2 x splits kept.
    """
    n = problem.num_blocks
    sums = [_prefix(device.block_s) for device in problem.devices]
    static = _prefix(problem.static_bytes or (0.0,) * n)
    saved = _prefix(problem.saved_bytes or (0.0,) * n)
    most = min(problem.max_stages, n)
    suffixes: dict[Counts, list[list[Split]]] = {}
    found: dict[Counts, tuple[Split, ...]] = {}
    ranges = [range(device.count + 1) for device in problem.devices]
    for counts in sorted(itertools.product(*ranges), key=lambda c: (sum(c), c)):
        stages = sum(counts)
        if not 1 <= stages <= most:
            continue
        in_flight = min(stages, problem.num_microbatches)
        # kept[i]: splits of blocks i to n over exactly these devices
        kept: list[list[Split]] = [[] for _ in range(n + 1)]
        for kind, device in enumerate(problem.devices):
            if not counts[kind]:
                continue
            rest = tuple(c - (k == kind) for k, c in enumerate(counts))
            for end in range(1, n + 1):
                behind = _behind(suffixes, rest, end, n)
                for first in range(end - 1, -1, -1):
                    needed = static[end] - static[first] + in_flight * (saved[end] - saved[first])
                    if needed > device.capacity_bytes or not behind:
                        break
                    time_s = sums[kind][end] - sums[kind][first]
                    time_s += 2 * problem.send_s[end] if end < n else 0.0
                    kept[first].extend(
                        Split(
                            longest_s=max(time_s, split.longest_s),
                            sum_s=time_s + split.sum_s,
                            devices=(kind, *split.devices),
                            first_blocks=(first, *split.first_blocks),
                        )
                        for split in behind
                    )
        suffixes[counts] = [undominated(splits) for splits in kept]
        if suffixes[counts][0]:
            found[counts] = tuple(suffixes[counts][0])
    return found


def undominated(splits: list[Split]) -> list[Split]:
    """The splits that no other beats or equals in both longest_s and sum_s, longest_s rising."""
    kept: list[Split] = []
    for split in sorted(splits, key=lambda s: (s.longest_s, s.sum_s, s.devices, s.first_blocks)):
        if not kept or split.sum_s < kept[-1].sum_s:
            kept.append(split)
    return kept


def _behind(
    suffixes: dict[Counts, list[list[Split]]], rest: Counts, end: int, blocks: int
) -> list[Split]:
    """The splits of the blocks behind a stage that ends at `end`; an empty one behind the last."""
    if not any(rest):
        return [_NOTHING] if end == blocks else []
    return suffixes[rest][end] if end < blocks else []


_NOTHING = Split(longest_s=0.0, sum_s=0.0, devices=(), first_blocks=())


def _prefix(row: tuple[float, ...]) -> list[float]:
    return [0.0, *itertools.accumulate(row)]
