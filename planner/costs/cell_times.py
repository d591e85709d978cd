"""Seconds of a cell, from the simulator's formulas: blocks and messages (`CellTimes`), and each
rank's work after its last backward (`CellTails`). Values shared by cells are cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.cell import Cell
from planner.chain.ideals import Index
from planner.chain.problem import Array, BlockCosts
from planner.costs.cell_memory import CellMemory, Places
from planner.costs.priced_model import (
    Blocks,
    Cache,
    ChainCosts,
    PricedModel,
    chain_costs,
    elementwise,
)
from planner.costs.split_problem import Ranges
from simulator.memory.held import Held
from simulator.memory.sharded_units import UnitBuffers, largest_by_kind, unit_buffers
from simulator.traced.block_cost import BlockCost
from simulator.traced.in_step import message_in_step
from simulator.traced.slowest_rank import slowest_rank
from simulator.traced.stage_cost import copy_seconds, gather_seconds, missing_overhead
from simulator.traced.step_tail import Tail, Tie, price_tail, price_tie


class CellTimes:
    """Seconds of blocks and messages; values that cells share are computed once.

    K kinds of block, S strategies.
    """

    def __init__(self, model: PricedModel, places: Places) -> None:
        self._model, self._places, self._known = model, places, Cache()

    def chain(self, cell: Cell, rank: int) -> ChainCosts:
        """Costs of the kinds of block on a rank's devices, including the buffers that FSDP2
        allocates for gathering parameters and reducing gradients."""
        degrees = cell.degrees
        place = self._places.of(cell, rank)[:2]
        key = ("chain", cell.micro_batch, degrees.tp, cell.pipelined, place)
        devices = degrees.group("tp", pp=rank)
        alone = self._known.computed(
            key,
            lambda: self._model.chain(cell.micro_batch, devices, pipelined=cell.pipelined),
        )
        group = self._model.group(cell, rank)
        if not group.moves_blocks:
            return alone

        def sharded() -> ChainCosts:
            graph = self._model.graph(cell.micro_batch, degrees.tp)
            tied = self._model.traced.tied_parameters
            every = range(len(graph.chain)) if cell.pipelined else ()
            opening = unit_buffers(graph, group, tied=tied, openings=every)
            if cell.pipelined and not alone.branched:
                return _with_ordered_buffers(alone, unit_buffers(graph, group, tied=tied), opening)
            # Blocks with branches may be reordered: each is priced as the first of a stage.
            blocks = _with_units(largest_by_kind(graph, opening), alone.blocks)
            return chain_costs(alone.at.tolist(), blocks, branched=alone.branched)

        several = cell.num_microbatches > 1
        of_cell = (cell.zero_stage, degrees.dp, cell.shares, several)
        return self._known.computed((*key, *of_cell), sharded)

    def gathers(self, cell: Cell, rank: int) -> tuple[Array, Array]:
        """[K, S] exposed seconds of gathering sharded parameters, plus a CPU's copies of them, in
        forward and in backward. Each gets half of the gathering, as in the simulator."""
        chain, group = self.chain(cell, rank), self._model.group(cell, rank)
        copied = group.device.type == "cpu" and group.sizes.working_copy_bytes > 0
        if not copied and not group.gathers:
            return np.zeros_like(chain.backward_s), np.zeros_like(chain.backward_s)

        def parts(cost: BlockCost) -> tuple[float, float]:
            gather = gather_seconds(cost, group)
            forward, backward = copy_seconds(cost, group)
            return gather / 2 + forward, gather / 2 + backward

        def both() -> tuple[Array, Array]:
            found = np.asarray([[parts(cost) for cost in row] for row in chain.blocks])
            return found[:, :, 0], found[:, :, 1]

        of_cell = (cell.micro_batch, cell.num_microbatches, cell.pipelined, cell.zero_stage)
        return self._known.computed(
            ("gathers", *of_cell, cell.shares, cell.degrees.tp, self._places.of(cell, rank)), both
        )

    def seconds(self, cell: Cell, rank: int) -> Array:
        """[K, S] seconds of each kind of block, forward plus backward."""
        chain = self.chain(cell, rank)
        mean = chain.forward_s[:, None] + chain.backward_s + sum(self.gathers(cell, rank))
        return np.asarray(self.slowest(cell, rank) * mean)

    def overhead_s(self, cell: Cell, rank: int) -> tuple[float, float]:
        """Lower bound on a stage's overhead that is in no block's time: seconds of its forward and
        of its backward. Exact if all kinds of block, or none, were measured in a pipeline."""
        kinds = [row[0] for row in self.chain(cell, rank).blocks]
        group = self._model.group(cell, rank)
        # A stage's overhead is the mean over its measured blocks.
        alone = [missing_overhead([kind], group) for kind in kinds]
        slowest = self.slowest(cell, rank)
        return (
            slowest * min(each.forward_cpu_s + each.forward_outside_s for each in alone),
            slowest * min(each.backward_cpu_s + each.backward_outside_s for each in alone),
        )

    def slowest(self, cell: Cell, rank: int) -> float:
        """Factor on the time of a rank's blocks if it is the slowest rank (slowest_rank.py)."""
        work_s = 0.0
        if cell.degrees.pp == 1:
            blocks = self.chain(cell, rank).blocks
            at = self.chain(cell, rank).at
            work_s = cell.num_microbatches * sum(blocks[kind][0].work_s for kind in at)
        return slowest_rank(self._model.group(cell, rank), work_s)

    def block_costs(
        self, cell: Cell, rank: int, at: Index, *, last: bool, fewer_bytes: float
    ) -> BlockCosts:
        """Costs of blocks of the kinds `at` [n] on a rank, with its gathering of parameters.

        last, fewer_bytes  as in ChainCosts.block_costs
        """
        chain = self.chain(cell, rank)
        before, behind = self.gathers(cell, rank)
        slowest = self.slowest(cell, rank)
        # The forward may not depend on the strategy. Under 1f1b only the sum of both counts; for
        # other schedules, leaving out the rest keeps the result a lower bound.
        least = before.min(axis=1)
        parts = cell.schedule == "gpipe" or cell.splits_backward
        rest = behind if parts else before - least[:, None] + behind
        return replace(
            chain.block_costs(at, last=last, fewer_bytes=fewer_bytes),
            forward_s=slowest * (chain.forward_s + least)[at],
            backward_s=slowest * (chain.backward_s + rest)[at],
        )

    def send_s(self, cell: Cell, stage: int, size_bytes: float) -> float:
        """Seconds of a message from the previous virtual stage to this one."""
        if stage == 0:
            return 0.0
        source, target = cell.rank_of(stage - 1), cell.rank_of(stage)
        if source == target:
            return 0.0
        devices = (cell.degrees.rank(pp=source), cell.degrees.rank(pp=target))
        cluster, sharing = self._model.cluster, cell.degrees.tp
        return self._known.computed(
            ("send", sharing, cell.degrees.dp, source, target, size_bytes),
            lambda: message_in_step("send", size_bytes, devices, cluster, sharing=sharing).time_s,
        )


def _with_units(buffers: Sequence[UnitBuffers], blocks: Blocks) -> Blocks:
    return tuple(
        tuple(unit.add_to(cost) for cost in row) for unit, row in zip(buffers, blocks, strict=True)
    )


def _with_ordered_buffers(
    alone: ChainCosts, buffers: Sequence[UnitBuffers], opening: Sequence[UnitBuffers]
) -> ChainCosts:
    """Costs of a pipeline's blocks with FSDP2's buffers, which depend on the preceding block: one
    kind per pair of block and predecessor."""
    kinds = alone.at.tolist()
    pairs = list(zip([-1, *kinds[:-1]], kinds, strict=True))
    first = {pair: at for at, pair in reversed(list(enumerate(pairs)))}
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    rows = tuple(alone.blocks[kind] for _, kind in numbers)
    placed = [first[pair] for pair in numbers]
    return chain_costs(
        [numbers[pair] for pair in pairs],
        _with_units([buffers[at] for at in placed], rows),
        opening=_with_units([opening[at] for at in placed], rows),
        branched=False,
    )


class CellTails:
    """Seconds of ranks after their last backward; values that cells share are computed once.

    memory   gives the parameters of every range of blocks at a tp degree
    """

    def __init__(self, model: PricedModel, places: Places, memory: CellMemory) -> None:
        self._model, self._places, self._memory, self._known = model, places, memory, Cache()

    def of_count(self, cell: Cell, rank: int, count: float, trained: float) -> float:
        """Seconds of a rank with `count` parameters, of which `trained` are trained; without the
        optimizer on a CPU, whose time depends on the size of each parameter."""
        place, degrees = self._places.of(cell, rank), cell.degrees
        sharing = (cell.zero_stage, cell.shares)
        key = (place[0], place[2], degrees.tp, degrees.pp > 1, *sharing, count, trained)
        tail = self._known.computed(
            key, lambda: self._price(cell, rank, int(trained), int(count - trained))
        )
        return tail.exchange.value if self._on_cpu(cell, rank) else tail.total_s

    def of_ranges(self, cell: Cell, rank: int) -> Array:
        """[m - 1, m] seconds of a stage between two cuts."""
        ties_s, degrees = self.ties_s(cell), cell.degrees

        def found() -> Array:
            seconds = elementwise(
                lambda count, trained: self.of_count(cell, rank, count, trained),
                self._memory.parameters(degrees.tp, cell.shares).count,
                self._memory.trained(degrees.tp, cell.shares).count,
            )
            if self._on_cpu(cell, rank):
                seconds = seconds + self._cpu_optimizer(cell, rank)
            seconds[0, :-1] += ties_s
            seconds[1:, -1] += ties_s
            return seconds

        of_cell = (degrees.tp, cell.zero_stage, cell.shares, degrees.pp > 1, ties_s)
        return self._known.computed((self._places.of(cell, rank), *of_cell), found)

    def of_blocks(self, cell: Cell, rank: int) -> Array:
        """[n] minimum seconds that each block adds to the tail of its rank: the optimizer on a CPU.
        Parameters shared by several blocks count for the first of them."""
        trained = self._memory.trained(cell.degrees.tp, cell.shares)
        seconds = np.zeros(len(trained.own))
        if self._on_cpu(cell, rank):
            seconds = np.diagonal(self._cpu_optimizer(cell, rank), offset=1).copy()
            for size, (_, *others) in trained.tied:
                seconds[others] -= self._price(cell, rank, size).optimizer.value
        return np.maximum(seconds, 0.0)

    def of_rank(self, cell: Cell, rank: int, ranges: Ranges) -> float:
        """Seconds of a rank with several ranges of blocks."""
        trained = self._memory.trained(cell.degrees.tp, cell.shares)
        count = self._memory.parameters(cell.degrees.tp, cell.shares).of(ranges)
        seconds = self.of_count(cell, rank, count, trained.of(ranges))
        if self._on_cpu(cell, rank):
            optimizer = self._cpu_optimizer(cell, rank)
            seconds += sum(float(optimizer[i, j]) for i, j in ranges)
        last = len(trained.own)
        if any(i == 0 for i, _ in ranges) != any(j == last for _, j in ranges):
            seconds += self.ties_s(cell)
        return seconds

    def ties_s(self, cell: Cell) -> float:
        """Seconds in which the first and the last rank sum the gradients of parameters that both
        have. Ties of other ranks are left out here (predictions include them): costs are lower
        bounds."""
        ends = (cell.rank_of(0), cell.rank_of(cell.degrees.num_stages - 1))
        trained = self._memory.trained(cell.degrees.tp, cell.shares)
        sizes = trained.at_ends if ends[0] != ends[1] else ()
        devices = tuple(cell.degrees.rank(pp=rank) for rank in ends)
        group = self._model.group(cell, ends[0])
        return sum(price_tie(Tie(elements=size, devices=devices), group).time_s for size in sizes)

    def _on_cpu(self, cell: Cell, rank: int) -> bool:
        return self._model.cluster.device_at(cell.degrees.rank(pp=rank)).type == "cpu"

    def _cpu_optimizer(self, cell: Cell, rank: int) -> Array:
        """[m - 1, m] seconds of the optimizer on a CPU."""
        return self._memory.trained(cell.degrees.tp, cell.shares).ranged(
            lambda size: self._price(cell, rank, size).optimizer.value
        )

    def _price(self, cell: Cell, rank: int, trained: int, frozen: int = 0) -> Tail:
        held = Held(trained=(trained,), frozen=frozen)
        return price_tail(held, self._model.group(cell, rank))
