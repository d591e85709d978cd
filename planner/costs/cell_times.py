"""Seconds of a cell from the simulator's own formulas: of its blocks and messages (`CellTimes`), of
each rank after its last backward (`CellTails`), and the least of both, for bounds (`CellTotals`).
What cells share is priced once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cell import Cell
from planner.chain.problem import Array, BlockCosts
from planner.costs.bound import (
    ChainTotals,
    least_busiest_s,
    near_even_busiest_s,
    unlike_busiest_s,
)
from planner.costs.cell_memory import CellMemory
from planner.costs.placement import Places
from planner.costs.priced_model import ChainCosts, PricedModel, beside_units, crossings_of, of_each
from planner.costs.split_problem import Ranges
from profiles.model.graph import ModelGraph
from simulator.memory.held import Held
from simulator.memory.sharded_units import unit_buffers
from simulator.traced.block_cost import BlockCost
from simulator.traced.comm_cost import price_collective
from simulator.traced.slowest_rank import slowest_rank
from simulator.traced.stage_cost import copy_seconds, gather_seconds, missing_overhead
from simulator.traced.step_tail import Tail, Tie


class CellTimes:
    """Prices of blocks and messages; what cells share is priced once.

    K kinds of block, S strategies.
    """

    def __init__(self, model: PricedModel, places: Places) -> None:
        self._model, self._places = model, places
        self._chains: dict[tuple[object, ...], ChainCosts] = {}
        self._gathered: dict[tuple[object, ...], tuple[Array, Array]] = {}
        self._sends: dict[tuple[object, ...], float] = {}

    def chain(self, cell: Cell, rank: int) -> ChainCosts:
        """What the kinds of block cost on a rank's devices; in a cell that shards weights without a
        pipeline, with FSDP2's buffers beside them."""
        place = self._places.of(cell, rank)[:2]
        key: tuple[object, ...] = (cell.micro_batch, cell.degrees.tp, place)
        if key not in self._chains:
            self._chains[key] = self._model.chain(
                cell.micro_batch, cell.degrees.group("tp", pp=rank)
            )
        if cell.degrees.pp > 1 or cell.zero_stage < 2 or cell.degrees.dp == 1:
            return self._chains[key]
        sharded = (*key, cell.zero_stage, cell.degrees.dp, cell.num_microbatches > 1)
        if sharded not in self._chains:
            buffers = unit_buffers(
                self._model.graph(cell.micro_batch, cell.degrees.tp),
                zero_stage=cell.zero_stage,
                dp=cell.degrees.dp,
                num_microbatches=cell.num_microbatches,
                sizes=self._model.stack.bytes_of(self._model.workload.precision),
                on_cpu=self._model.cluster.device_at(0).type == "cpu",
            )
            self._chains[sharded] = beside_units(self._chains[key], buffers)
        return self._chains[sharded]

    def gathers(self, cell: Cell, rank: int) -> tuple[Array, Array]:
        """[K, S] exposed seconds of gathering sharded parameters, and of a CPU's copies of them, in
        forward and in backward. The gathering is split evenly, as the simulator does."""
        chain = self.chain(cell, rank)
        group = cell.degrees.group("dp", pp=rank)
        device = self._model.cluster.device_at(group[0])
        sizes = self._model.stack.bytes_of(self._model.workload.precision)
        copied = device.type == "cpu" and sizes.working_copy_bytes > 0
        if not copied and (cell.zero_stage < 2 or len(group) < 2):
            return np.zeros_like(chain.backward_s), np.zeros_like(chain.backward_s)
        key = (
            (
                cell.micro_batch,
                cell.num_microbatches,
                cell.degrees.tp,
                cell.degrees.pp > 1,
                cell.zero_stage,
            ),
            self._places.of(cell, rank),
        )
        if key not in self._gathered:

            def parts(cost: BlockCost) -> tuple[float, float]:
                gather = gather_seconds(
                    cost,
                    zero_stage=cell.zero_stage,
                    group=group,
                    precision=self._model.workload.precision,
                    cluster=self._model.cluster,
                    stack=self._model.stack,
                    pipelined=cell.degrees.pp > 1,
                    sharing=cell.degrees.tp,
                )
                forward, backward = copy_seconds(
                    cost,
                    sizes,
                    device,
                    sharded=cell.zero_stage >= 2 and cell.degrees.dp > 1,
                    pipelined=cell.degrees.pp > 1,
                    num_microbatches=cell.num_microbatches,
                )
                return gather / 2 + forward, gather / 2 + backward

            both = np.asarray([[parts(cost) for cost in row] for row in chain.blocks])
            self._gathered[key] = both[:, :, 0], both[:, :, 1]
        return self._gathered[key]

    def seconds(self, cell: Cell, rank: int) -> Array:
        """[K, S] seconds of each kind, forward and backward."""
        chain = self.chain(cell, rank)
        mean = chain.forward_s[:, None] + chain.backward_s + sum(self.gathers(cell, rank))
        return np.asarray(self.slowest(cell, rank) * mean)

    def beside(self, cell: Cell, rank: int) -> tuple[float, float]:
        """Seconds of a stage's forward and of its backward that no block of it carries, at least:
        all of them where every kind of block or none was measured in a pipeline."""
        kinds = [row[0] for row in self.chain(cell, rank).blocks]
        measured = self._model.cluster.device_at(cell.degrees.rank(pp=rank)).measurements
        # A stage carries a mean over those of its blocks that were measured.
        alone = [
            missing_overhead(
                [kind],
                pp=cell.degrees.pp,
                vpp=cell.degrees.vpp,
                num_microbatches=cell.num_microbatches,
                measured=measured,
            )
            for kind in kinds
        ]
        slowest = self.slowest(cell, rank)
        return (
            slowest * min(each.forward_cpu_s + each.forward_outside_s for each in alone),
            slowest * min(each.backward_cpu_s + each.backward_outside_s for each in alone),
        )

    def slowest(self, cell: Cell, rank: int) -> float:
        """By which a rank's blocks take longer where it is the slowest (slowest_rank.py)."""
        work_s = 0.0
        if cell.degrees.pp == 1:
            blocks = self.chain(cell, rank).blocks
            kinds = self._model.kinds(cell.micro_batch, cell.degrees.tp)
            work_s = cell.num_microbatches * sum(blocks[kind][0].work_s for kind in kinds)
        return slowest_rank(
            self._model.cluster,
            cell.degrees.rank(pp=rank),
            cell.degrees.pp * cell.degrees.dp * cell.degrees.tp,
            pipelined=cell.degrees.pp > 1,
            work_s=work_s,
        )

    def block_costs(self, cell: Cell, rank: int, at: np.ndarray, *, last: int) -> BlockCosts:
        """Costs of the blocks whose kinds are `at` [n]; `last`: at the last stage, which sends
        nothing on."""
        chain = self.chain(cell, rank)
        before, behind = self.gathers(cell, rank)
        slowest = self.slowest(cell, rank)
        # The forward may not depend on the strategy. Under 1f1b only the sum counts; elsewhere what
        # is left out keeps the bound a bound.
        least = before.min(axis=1)
        parts = cell.schedule == "gpipe" or cell.splits_backward
        rest = behind if parts else before - least[:, None] + behind
        leaving: float | Array = chain.output_bytes[:, None]  # among what is kept
        if not chain.branched:
            leaving = 0.0 if last else float(chain.output_bytes[at[:-1]].min(initial=0.0))
        transient = np.maximum(
            chain.backward_transient_bytes, chain.forward_transient_bytes - leaving
        )
        return BlockCosts(
            forward_s=slowest * (chain.forward_s + least)[at],
            backward_s=slowest * (chain.backward_s + rest)[at],
            saved_bytes=np.ceil(chain.kept_bytes[at]),
            transient_bytes=np.ceil(transient[at]),
        )

    def send_s(self, cell: Cell, stage: int, size_bytes: float) -> float:
        """Seconds over the cut before a virtual stage."""
        if stage == 0:
            return 0.0
        source, target = cell.rank_of(stage - 1), cell.rank_of(stage)
        if source == target:
            return 0.0
        devices = (cell.degrees.rank(pp=source), cell.degrees.rank(pp=target))
        key = (cell.degrees.tp, cell.degrees.dp, source, target, size_bytes)
        if key not in self._sends:
            cost = price_collective(
                "send", size_bytes, devices, self._model.cluster, sharing=cell.degrees.tp
            )
            self._sends[key] = cost.time_s
        return self._sends[key]


class CellTails:
    """Seconds after the last backward; what cells share is priced once.

    memory   knows what every range of blocks holds at a tp degree
    """

    def __init__(self, model: PricedModel, places: Places, memory: CellMemory) -> None:
        self._model, self._places, self._memory = model, places, memory
        self._known: dict[tuple[object, ...], float] = {}
        self._ranges: dict[tuple[object, ...], Array] = {}

    def of_count(self, cell: Cell, rank: int, count: float, trained: float) -> float:
        """Seconds of a rank with so many parameters, of which so many are trained, apart from the
        optimizer on a CPU, which takes one parameter after the other."""
        place = self._places.of(cell, rank)
        key = (
            place[0],
            place[2],
            cell.degrees.tp,
            cell.degrees.pp > 1,
            cell.zero_stage,
            count,
            trained,
        )
        if key not in self._known:
            tail = self._price(cell, rank, int(trained), int(count - trained))
            on_cpu = self._on_cpu(cell, rank)
            self._known[key] = tail.data_parallel_s if on_cpu else tail.total_s
        return self._known[key]

    def of_ranges(self, cell: Cell, rank: int) -> Array:
        """[n, n+1] seconds of a stage of blocks [i, j)."""
        ties_s = self.ties_s(cell)
        place = self._places.of(cell, rank)
        key = (
            place,
            cell.degrees.tp,
            cell.degrees.dp,
            cell.degrees.pp > 1,
            cell.zero_stage,
            ties_s,
        )
        if key not in self._ranges:
            found = of_each(
                lambda count, trained: self.of_count(cell, rank, count, trained),
                self._memory.parameters(cell.degrees.tp).count,
                self._memory.trained(cell.degrees.tp).count,
            )
            if self._on_cpu(cell, rank):
                found = found + self._cpu_optimizer(cell, rank)
            found[0, :-1] += ties_s
            found[1:, -1] += ties_s
            self._ranges[key] = found
        return self._ranges[key]

    def of_blocks(self, cell: Cell, rank: int) -> Array:
        """[n] seconds that each block adds, at least, to those of the rank that holds it: a CPU's
        optimizer, with what several blocks hold counted with the first of them."""
        trained = self._memory.trained(cell.degrees.tp)
        seconds = np.zeros(len(trained.elements))
        if self._on_cpu(cell, rank):
            seconds = np.diagonal(self._cpu_optimizer(cell, rank), offset=1).copy()
            for _, again, size in trained.repeated:
                seconds[again] -= self._price(cell, rank, size).optimizer_s
        return np.maximum(seconds, 0.0)

    def of_rank(self, cell: Cell, rank: int, ranges: Ranges) -> float:
        """Seconds of a rank that holds several ranges of blocks."""
        trained = self._memory.trained(cell.degrees.tp)
        count = self._memory.parameters(cell.degrees.tp).of(ranges)
        seconds = self.of_count(cell, rank, count, trained.of(ranges))
        if self._on_cpu(cell, rank):
            optimizer = self._cpu_optimizer(cell, rank)
            seconds += sum(float(optimizer[i, j]) for i, j in ranges)
        last = len(trained.elements)
        if any(i == 0 for i, _ in ranges) != any(j == last for _, j in ranges):
            seconds += self.ties_s(cell)
        return seconds

    def ties_s(self, cell: Cell) -> float:
        """Seconds in which the ranks at the chain's two ends sum the gradients of what both hold; a
        tie of other ranks is in predictions alone, which no price of a cell may exceed."""
        ends = (cell.rank_of(0), cell.rank_of(cell.degrees.num_stages - 1))
        sizes = self._memory.trained(cell.degrees.tp).at_ends if ends[0] != ends[1] else ()
        devices = tuple(cell.degrees.rank(pp=rank) for rank in ends)
        return sum(
            self._model.tie_s(
                Tie(elements=size, devices=devices),
                shards=cell.degrees.dp if cell.zero_stage >= 2 else 1,
                tp=cell.degrees.tp,
            )
            for size in sizes
        )

    def _on_cpu(self, cell: Cell, rank: int) -> bool:
        return self._model.cluster.device_at(cell.degrees.rank(pp=rank)).type == "cpu"

    def _cpu_optimizer(self, cell: Cell, rank: int) -> Array:
        """[n, n+1] seconds of the optimizer on a CPU."""
        return self._memory.trained(cell.degrees.tp).ranged(
            lambda size: self._price(cell, rank, size).optimizer_s
        )

    def _price(self, cell: Cell, rank: int, trained: int, frozen: int = 0) -> Tail:
        return self._model.tail(
            Held(trained=(trained,), frozen=frozen),
            cell.degrees.group("dp", pp=rank),
            zero_stage=cell.zero_stage,
            tp=cell.degrees.tp,
            pipelined=cell.degrees.pp > 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Least:
    """Figures of a mesh that no place undercuts: seconds [K, S] per kind of block and strategy, of
    one crossing there and back, and of the tail of rank 0 and of any."""

    seconds: Array
    crossing_s: float
    tail_s: float
    any_tail_s: float


class CellTotals:
    """Figures of cells that no plan undercuts; what cells share is found once."""

    def __init__(
        self,
        model: PricedModel,
        places: Places,
        times: CellTimes,
        memory: CellMemory,
        tails: CellTails,
    ) -> None:
        self._model, self._places = model, places
        self._times, self._memory, self._tails = times, memory, tails
        self._mixed = not model.cluster.homogeneous
        self._leasts: dict[tuple[object, ...], _Least] = {}
        self._busiest: dict[tuple[object, ...], float] = {}

    def of(self, cell: Cell) -> ChainTotals:
        """What the bound of a cell needs; the fastest of the cluster's places for everything but
        the busiest rank of devices of several types."""
        graph = self._model.graph(cell.micro_batch, cell.degrees.tp)
        least = self._least(cell)
        times = least.seconds.min(axis=1)[[ref.kind for ref in graph.chain]]
        beside = min(sum(self._times.beside(cell, r)) for r in self._places.distinct(cell))
        return ChainTotals(
            total_s=float(times.sum()) + cell.degrees.num_stages * beside,
            busiest_s=self._busiest_s(cell, times, graph) + cell.degrees.vpp * beside,
            last_s=float(times[-1]) + beside,
            send_s=least.crossing_s,
            # Blocks with branches may stand in another order, and another one first.
            tail_s=least.any_tail_s if graph.branches else least.tail_s + self._tails.ties_s(cell),
            any_tail_s=least.any_tail_s,
        )

    def _least(self, cell: Cell) -> _Least:
        """The least figures over the cluster's places, whatever the schedule."""
        key = (cell.micro_batch, cell.degrees.tp, cell.degrees.pp, cell.degrees.dp, cell.zero_stage)
        if key not in self._leasts:
            places = self._places.distinct(cell)
            single, trained = (
                np.diagonal(held.count, offset=1)
                for held in (
                    self._memory.parameters(cell.degrees.tp),
                    self._memory.trained(cell.degrees.tp),
                )
            )
            # No block has fewer trained parameters, nor fewer frozen ones beside them.
            fewest = float(trained.min())
            least = fewest + float((single - trained).min())
            crossing = 0.0
            if cell.degrees.pp > 1:
                size = crossings_of(self._model.graph(cell.micro_batch, cell.degrees.tp)).least
                # The last is the way back to rank 0, which only interleaved stages take.
                crossing = 2 * min(
                    self._times.send_s(cell, s, size) for s in range(1, cell.degrees.pp + 1)
                )
            self._leasts[key] = _Least(
                seconds=np.min([self._times.seconds(cell, rank) for rank in places], axis=0),
                crossing_s=crossing,
                tail_s=self._tails.of_count(cell, 0, float(single[0]), float(trained[0])),
                any_tail_s=min(self._tails.of_count(cell, rank, least, fewest) for rank in places),
            )
        return self._leasts[key]

    def _busiest_s(self, cell: Cell, times: Array, graph: ModelGraph) -> float:
        """R of `planner.costs.bound`; `times` [n] of the blocks at the fastest place."""
        degrees, kinds = cell.degrees, [ref.kind for ref in graph.chain]
        sharded = (degrees.dp, cell.zero_stage) if cell.zero_stage > 1 else (0, 0)
        # Interleaved stages are near even, so that every rank holds so many blocks at least.
        even = self._mixed and cell.schedule == "interleaved"
        fewest = degrees.vpp * (len(kinds) // degrees.num_stages) if even else 0
        slowest = self._times.slowest(cell, 0)
        key = (degrees.tp, cell.micro_batch, degrees.pp, *sharded, fewest, slowest)
        if key not in self._busiest:
            found = least_busiest_s(times, kinds, degrees.pp)
            if self._mixed:
                places = [self._times.seconds(cell, rank).min(axis=1) for rank in range(degrees.pp)]
                each = np.asarray(places)[:, kinds]
                found = max(found, unlike_busiest_s(each))
                if fewest:
                    branched = bool(graph.branches)
                    found = max(found, near_even_busiest_s(each, fewest, any_order=branched))
            self._busiest[key] = found
        return self._busiest[key]
