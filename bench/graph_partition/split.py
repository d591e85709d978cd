"""Contiguous splits by the planner's dynamic program over ideals (`planner/chain`).

A split gives each device the difference of two nested ideals, as a pipeline's stages are. The
planner minimizes the step of a pipeline, in which `tails_s` are seconds of a stage that depend on
its blocks as a whole. With no other costs and one micro-batch, the step is the largest of them: so
the loads go there, work and transfers together. Idle blocks without load after all others let a
split use fewer devices. The place of the host among the devices is enumerated.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from bench.graph_partition.problem import DeviceKind, GraphProblem, Share, topological
from planner.chain.ideals import BlockLattice, widest_lattice
from planner.chain.partition import partition
from planner.chain.problem import BlockCosts, PartitionProblem, StageSlot
from planner.chain.relaxed_bound import RankNeeds, relaxed_bound
from profiles.errors import InfeasibleError, InputError

Array = npt.NDArray[np.float64]
MOST_IDEALS = 700  # arrays of 700 x 700 are 4 MB each


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Shares along the row of devices, none of them empty.

    max_load_s  the largest load
    bound_s     no split has a smaller largest load
    proven      whether the split is the best one
    """

    shares: tuple[Share, ...]
    max_load_s: float
    bound_s: float
    proven: bool


def split_graph(
    problem: GraphProblem, time_limit_s: float, *, most_ideals: int = MOST_IDEALS
) -> Split:
    """The split with the smallest largest load: exact for graphs of up to `most_ideals` ideals.

    After the time limit no further place of the host is tried; the program that runs is finished.
    Raises InfeasibleError if no split was found, InputError for a time limit not above 0.
    """
    if not time_limit_s > 0:
        raise InputError(f"time_limit_s is {time_limit_s}; it must be above 0")
    started = time.monotonic()
    rows = _Rows(problem, most_ideals)
    forbidden = rows.forbidden_s
    best, best_s, skipped = None, forbidden, 0
    for kinds in _device_rows(problem):
        if best is not None and time.monotonic() - started > time_limit_s:
            skipped += 1
            continue
        ideal = rows.ideal_problem(kinds)
        found = partition(ideal, below=best_s)
        if found is not None and found.step_time_s < best_s:
            best, best_s = rows.shares(ideal.stages(found.starts), kinds), found.step_time_s
    if best is None:
        raise InfeasibleError(_why_none(problem, complete=rows.lattice.complete))
    if rows.lattice.complete and not skipped:
        return Split(shares=best, max_load_s=best_s, bound_s=best_s, proven=True)
    bound_s = min(rows.relaxed_bound_s(kinds) for kinds in _device_rows(problem))
    return Split(shares=best, max_load_s=best_s, bound_s=min(bound_s, best_s), proven=False)


def _device_rows(problem: GraphProblem) -> list[tuple[DeviceKind, ...]]:
    """Every order of the devices, those of one kind being alike."""
    count = problem.accelerators + problem.hosts
    rows = product(DeviceKind, repeat=count)
    return [row for row in rows if row.count(DeviceKind.HOST) == problem.hosts]


class _Rows:
    """The planner's problems of a graph: blocks in a topological order, then idle blocks."""

    def __init__(self, problem: GraphProblem, most_ideals: int) -> None:
        self.problem, self.count = problem, len(problem.names)
        self.order = topological(self.count, problem.order)
        position = {block: at for at, block in enumerate(self.order)}
        self.flows = sorted((position[a], position[b]) for a, b in problem.order)
        inner = {a for a, _ in self.flows}
        self.flows += [(at, self.count) for at in range(self.count) if at not in inner]
        self.total = self.count + problem.accelerators + problem.hosts
        self.flows += [(at, at + 1) for at in range(self.count, self.total - 1)]
        self.lattice: BlockLattice = widest_lattice(self.total, self.flows, most_ideals)
        self.holds = self.lattice.holds[:, [position[b] for b in range(self.count)]].astype(float)
        self.work_s = {
            DeviceKind.ACCELERATOR: np.asarray(problem.accelerator_s),
            DeviceKind.HOST: np.asarray(problem.host_s),
        }
        transfers_s = sum(tensor.transfer_s for tensor in problem.tensors)
        # More than any legal load.
        self.forbidden_s = 2 * (transfers_s + sum(float(v.sum()) for v in self.work_s.values())) + 1
        self.loads_s = (self._accelerator_loads(), self._sums(self.work_s[DeviceKind.HOST]))

    def _sums(self, values: Array) -> Array:
        """[ideals, ideals]: the sum over the blocks of one ideal (column) without another's."""
        total = self.holds @ values
        return np.asarray(total[None, :] - total[:, None])

    def _accelerator_loads(self) -> Array:
        problem = self.problem
        loads = self._sums(self.work_s[DeviceKind.ACCELERATOR])
        for tensor in problem.tensors:
            held = self.holds[:, list(set(tensor.consumers))].sum(axis=1)
            consumers = held[None, :] - held[:, None]
            makes = self._sums(np.eye(self.count)[tensor.producer]) > 0.5
            sends = makes & (consumers < len(set(tensor.consumers)) - 0.5)
            loads += tensor.transfer_s * (sends | (~makes & (consumers > 0.5)))
        over = self._sums(np.asarray(problem.memory_bytes)) > problem.capacity_bytes * (1 + 1e-12)
        over |= self._sums(1.0 - np.asarray(problem.on_accelerator)) > 0.5
        return np.where(over, self.forbidden_s, loads)

    def ideal_problem(self, kinds: tuple[DeviceKind, ...]) -> PartitionProblem:
        return self._problem(kinds, self.lattice, (self.loads_s[0][:-1], self.loads_s[1][:-1]))

    def _problem(
        self,
        kinds: tuple[DeviceKind, ...],
        lattice: BlockLattice | None,
        tails_s: tuple[Array, Array],
    ) -> PartitionProblem:
        """Stages of one micro-batch that take nothing but their tails."""
        nothing, sends = np.zeros_like(tails_s[0]), np.zeros((len(kinds), len(tails_s[0])))
        return PartitionProblem(
            kinds=(0,) * self.total,
            strategies=("none",),
            schedule="1f1b",
            num_microbatches=1,
            costs=(_no_costs(self.total),),
            slots=_slots(kinds),
            static_bytes=(nothing,),
            tails_s=tails_s,
            edge_bytes=nothing,
            send_forward_s=sends,
            send_backward_s=sends,
            ideals=lattice,
        )

    def relaxed_bound_s(self, kinds: tuple[DeviceKind, ...]) -> float:
        """The linear program's bound: work only, blocks divisible."""
        n, p = self.total, len(kinds)
        nothing = np.zeros((n, n + 1))
        work = np.zeros((p, n))
        for stage, kind in enumerate(kinds):
            work[stage, : self.count] = self.work_s[kind][self.order]
        problem = self._problem(kinds, None, (nothing, nothing))
        needs = RankNeeds(
            owner=range(p),
            states=(np.zeros(n), np.zeros(n)),
            rise_bytes=np.zeros(n),
            tails_s=work,
            any_order=True,
        )
        return relaxed_bound(replace(problem, kinds=tuple(range(n))), needs)

    def shares(
        self, stages: list[tuple[int, ...]], kinds: tuple[DeviceKind, ...]
    ) -> tuple[Share, ...]:
        """Stages of the planner's blocks as shares of the graph's, without idle ones."""
        found = []
        for kind, stage in zip(kinds, stages, strict=True):
            blocks = tuple(sorted(self.order[at] for at in stage if at < self.count))
            if blocks:
                found.append(Share(kind=kind, blocks=blocks))
        return tuple(found)


def _no_costs(count: int) -> BlockCosts:
    one = np.zeros((count, 1))
    return BlockCosts(
        forward_s=np.zeros(count), backward_s=one, saved_bytes=one, transient_bytes=one
    )


def _slots(kinds: tuple[DeviceKind, ...]) -> tuple[StageSlot, ...]:
    return tuple(
        StageSlot(
            in_flight=1, capacity_bytes=float("inf"), loads=(), tail=int(kind is DeviceKind.HOST)
        )
        for kind in kinds
    )


def _why_none(problem: GraphProblem, *, complete: bool) -> str:
    for name, allowed, memory in zip(
        problem.names, problem.on_accelerator, problem.memory_bytes, strict=True
    ):
        if not problem.hosts and not allowed:
            return f"no split: {name} runs on hosts only, and there are none; add a host"
        if not problem.hosts and memory > problem.capacity_bytes:
            return (
                f"no split: {name} needs {memory:.0f} bytes, an accelerator has"
                f" {problem.capacity_bytes:.0f}; it needs more memory or a host"
            )
    if complete:
        return "no split: none fits the memory; it needs more memory, more accelerators or a host"
    return "no split was found; the graph has too many ideals to try all"
