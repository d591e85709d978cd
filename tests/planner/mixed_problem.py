"""Mixed devices as plain numbers: a chain, devices of several types, micro-batches to share out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.heterogeneous.shares import Share, share_out
from planner.heterogeneous.splits import StageTables, best_splits
from profiles.errors import InputError


def ranged(row):
    """[n, n+1] sums of row[i:j]; infinite where j <= i."""
    total = np.concatenate([[0.0], np.cumsum(row)])
    found = np.maximum(total[None, :] - total[:-1, None], 0.0)
    found[np.tril_indices(len(row), 0, len(row) + 1)] = np.inf
    return found


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

    def tables(self) -> StageTables:
        """The times of every stage that fits."""
        n = self.num_blocks
        most = min(self.max_stages, n)
        static = ranged(np.asarray(self.static_bytes or (0.0,) * n))
        saved = ranged(np.asarray(self.saved_bytes or (0.0,) * n))
        crossing = 2 * np.asarray([0.0, *self.send_s[1:], 0.0])
        seconds = []
        for device in self.devices:
            whole = ranged(np.asarray(device.block_s)) + crossing[None, :]
            row = []
            for from_end in range(1, most + 1):
                needed = static + min(from_end, self.num_microbatches) * saved
                row.append(np.where(needed <= device.capacity_bytes, whole, np.inf))
            seconds.append(tuple(row))
        return StageTables(
            counts=tuple(device.count for device in self.devices),
            seconds=tuple(seconds),
            tails_s=(np.zeros((n, n + 1)),) * len(self.devices),
            stages=tuple(range(1, most + 1)),
            num_microbatches=self.num_microbatches,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSolution:
    """The best plan. unused: devices of each type that would only slow the step down."""

    replicas: tuple[Share, ...]
    step_s: float
    unused: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMixedSolution:
    """No set of devices within `max_stages` holds the model. needed_bytes: the least that the
    fullest block needs as a last stage; capacity_bytes: what the largest device has."""

    needed_bytes: float
    capacity_bytes: float


def plan_mixed_devices(problem: MixedProblem) -> MixedSolution | NoMixedSolution:
    """The plan with the least step; of equal ones that with fewer replicas, then fewer devices."""
    tables = problem.tables()
    splits = best_splits(tables)
    if not splits:
        n = problem.num_blocks
        static, saved = problem.static_bytes or (0.0,) * n, problem.saved_bytes or (0.0,) * n
        return NoMixedSolution(
            needed_bytes=max(a + b for a, b in zip(static, saved, strict=True)),
            capacity_bytes=max(device.capacity_bytes for device in problem.devices),
        )
    best: MixedSolution | None = None
    most = min(len(problem.reduce_s), sum(tables.counts), problem.num_microbatches)
    for count in range(1, most + 1):
        shares = share_out(splits, tables, count)
        if shares is None:
            continue
        step_s = max(share.pipeline_s for share in shares) + problem.reduce_s[count - 1]
        if best is None or step_s < best.step_s:
            used = [kind for share in shares for kind in share.split.devices]
            unused = tuple(have - used.count(kind) for kind, have in enumerate(tables.counts))
            best = MixedSolution(replicas=shares, step_s=step_s, unused=unused)
    assert best is not None, "one replica gets any number of micro-batches done"
    return best
