"""The planner's prices, taken from the simulator: one cell's partition problem and its plan.

Everything that a cell's problem needs is priced by the functions that `simulator.predict` uses, so
that a partition's step time is the prediction's: exactly for one pipeline rank and for 1f1b with
stages that differ by less than a third, never above it otherwise. The bytes of a stage are those of
its rank's predicted peak; where all micro-batches are in flight at once they may be less, and for
interleaved schedules they are an estimate, so that every plan is checked by its prediction.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.bound import ChainTotals, interleaved_fill_s, least_busiest_s
from planner.cell import Cell
from planner.cell_memory import CellMemory, edges
from planner.cell_tails import CellTails
from planner.chain_costs import ChainCosts, crossings_of, kinds_to_tell, price_chain
from planner.in_flight import in_flight
from planner.interleaved_problem import InterleavedProblem, Ranges, most_per_stage
from planner.memory_bound import least_longest_s
from planner.placement import Places, dp_group, first_device, sides, tp_group
from planner.problem import Array, BlockCosts, Load, Partition, PartitionProblem, StageSlot
from planner.split_problem import SplitProblem
from planner.traced import Traced
from profiles.document import content_hash
from profiles.hardware.cluster import Cluster
from profiles.sourced import Sourced
from simulator.comm_cost import price_collective
from simulator.memory import message_counts
from simulator.plan import Plan, Recompute, Stage
from simulator.predict import predict
from simulator.prediction import Prediction
from simulator.schedule import build_schedule
from simulator.stack import Stack
from simulator.stage_cost import gather_seconds
from simulator.weight_gradients import weight_gradient_s
from simulator.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class _Least:
    """Figures of a mesh that no place undercuts: seconds [K, S] per kind of block and strategy, of
    one crossing there and back, and of the tail of rank 0 and of any."""

    seconds: Array
    crossing_s: float
    tail_s: float
    any_tail_s: float


class SimulatorCosts:
    """Prices of cells by the simulator; what cells share is priced once.

    strategies    recompute kinds that a block may use
    micro_batches those that the search will ask for
    """

    def __init__(
        self,
        traced: Traced,
        cluster: Cluster,
        workload: Workload,
        *,
        stack: Stack,
        strategies: tuple[Recompute, ...],
        micro_batches: Sequence[int],
        price: Sourced | None = None,
        seed: int = 0,
        workers: int = 1,
    ) -> None:
        self.traced, self.cluster, self.workload = traced, cluster, workload
        self.stack, self.strategies, self.price = stack, strategies, price
        self.seed, self.workers = seed, workers
        self.micro_batches = tuple(micro_batches)
        self.cluster_hash = content_hash(cluster)
        self._chains: dict[tuple[object, ...], ChainCosts] = {}
        self._sends: dict[tuple[object, ...], float] = {}
        self._gathered: dict[tuple[object, ...], Array] = {}
        self._leasts: dict[tuple[object, ...], _Least] = {}
        self._busiest: dict[tuple[object, ...], float] = {}
        self.places = Places(cluster)
        self.memory = CellMemory(
            traced,
            cluster,
            workload,
            stack=stack,
            strategies=strategies,
            micro_batches=micro_batches,
        )
        self._tails = CellTails(
            cluster, workload, stack=stack, places=self.places, parameters=self.memory.parameters
        )
        self.capacity_bytes = self.memory.capacity_bytes

    def missing_bytes(self, cell: Cell) -> float:
        """Bytes that some device lacks in every plan of the cell; 0 or less where none must."""
        return self.memory.missing_bytes(cell)

    def totals(self, cell: Cell) -> ChainTotals:
        """What the bound of a cell needs; the fastest of the cluster's places for everything."""
        graph = self.traced.at(cell.micro_batch, cell.tp)
        kinds = tuple(ref.kind for ref in graph.chain)
        least = self._least(cell)
        times = least.seconds.min(axis=1)[list(kinds)]
        busiest = max(
            self._busiest_s(cell, times, kinds), self._memory_bound_s(cell, kinds, least.seconds)
        )
        return ChainTotals(
            total_s=float(times.sum()) if np.isfinite(busiest) else np.inf,
            busiest_s=busiest,
            last_s=float(times[-1]),
            send_s=least.crossing_s,
            # Blocks with branches may stand in another order, and another one first.
            fill_s=(
                interleaved_fill_s(times, cell, any_order=bool(graph.branches))
                if cell.schedule == "interleaved"
                else 0.0
            ),
            tail_s=least.any_tail_s if graph.branches else least.tail_s,
            any_tail_s=least.any_tail_s,
        )

    def _least(self, cell: Cell) -> _Least:
        """The least figures over the cluster's places, whatever the schedule."""
        key = (cell.micro_batch, cell.tp, cell.pp, cell.dp, cell.zero_stage)
        if key not in self._leasts:
            places = self.places.distinct(cell)
            single = np.diagonal(self.memory.parameters(cell.tp).count, offset=1)
            crossing = 0.0
            if cell.pp > 1:
                size = crossings_of(self.traced.at(cell.micro_batch, cell.tp)).least
                # The last is the way back to rank 0, which only interleaved stages take.
                crossing = 2 * min(self.send_s(cell, s, size) for s in range(1, cell.pp + 1))
            self._leasts[key] = _Least(
                seconds=np.min([self._seconds(cell, rank) for rank in places], axis=0),
                crossing_s=crossing,
                tail_s=self._tails.of_count(cell, 0, float(single[0])),
                any_tail_s=min(
                    self._tails.of_count(cell, rank, float(single.min())) for rank in places
                ),
            )
        return self._leasts[key]

    def _busiest_s(self, cell: Cell, times: Array, kinds: tuple[int, ...]) -> float:
        sharded = (cell.dp, cell.zero_stage) if cell.zero_stage > 1 else (0, 0)
        key = (cell.tp, cell.micro_batch, cell.pp, *sharded)
        if key not in self._busiest:
            self._busiest[key] = least_busiest_s(times, kinds, cell.pp)
        return self._busiest[key]

    def _memory_bound_s(self, cell: Cell, kinds: tuple[int, ...], seconds: Array) -> float:
        """Seconds of the busiest rank in view of memory; `seconds` [K, S] of each kind."""
        kind, number = Counter(kinds).most_common(1)[0]
        chain = self._chain(cell, 0)
        kept = in_flight(cell)
        free = self.capacity_bytes - float(chain.backward_transient_bytes.min())
        crossing = [
            self.memory.crossing_bytes(
                cell,
                cell.micro_batch,
                # Of a split backward's moments is only known what is in flight, not what is done.
                0 if cell.splits_backward else cell.num_microbatches - k,
            )
            for k in kept[: cell.pp]
        ]
        rooms = [free - bytes_ * sides(cell, rank) for rank, bytes_ in enumerate(crossing)]
        # What a stage receives is among what it keeps, unless it lies in a buffer of its own.
        apart = self.stack.behaviour.receive_buffers_per_microbatch
        return least_longest_s(
            seconds=seconds[kind],
            saved_bytes=chain.kept_bytes[kind],
            static_bytes=self.memory.static_of_repeats(
                cell,
                kind,
                number,
                cell.num_microbatches if cell.splits_backward else max(kept),
            ),
            room_bytes=rooms,
            edge_bytes=float(chain.input_bytes.max()) if apart else 0.0,
            in_flight=[
                tuple(kept[stage] for stage in cell.stages_of(rank)) for rank in range(cell.pp)
            ],
            most_per_stage=(
                most_per_stage(len(kinds), cell.num_stages)
                if cell.schedule == "interleaved"
                else number
            ),
        )

    # The problem of a cell.

    def problem(self, cell: Cell) -> PartitionProblem:
        """The cell's partition problem; where ranks hold several stages, or split the backward,
        its slots are the virtual stages."""
        graph = self.traced.at(cell.micro_batch, cell.tp)
        kinds = kinds_to_tell(graph)
        at = np.asarray([ref.kind for ref in graph.chain])
        places = self.places.distinct(cell)
        position = {self.places.of(cell, rank): index for index, rank in enumerate(places)}
        stages = cell.num_stages
        at_rank = [position[self.places.of(cell, cell.rank_of(s))] for s in range(stages)]
        kept = in_flight(cell)
        # The last stage sends nothing on, so its forward peak may count for more.
        costs = [self._block_costs(cell, rank, at, last=last) for rank in places for last in (0, 1)]
        chain = self._chain(cell, 0)
        over = crossings_of(graph)
        arrives, leaves = over.arrives, over.leaves
        sizes, where = np.unique(arrives, return_inverse=True)
        sends = np.asarray(
            [[self.send_s(cell, s, size) for size in sizes.tolist()] for s in range(stages)]
        )[:, where]
        statics: tuple[Array, ...]
        loads: tuple[tuple[Load, ...], ...]
        if cell.vpp > 1 or cell.splits_backward:
            # What ranks hold is asked for by InterleavedProblem, not by stage.
            nothing = np.zeros((len(kinds), len(kinds) + 1))
            statics, tails = (nothing,), (nothing,) * len(places)
            loads = tuple((Load(in_flight=k),) for k in kept)
        else:
            statics, loads = self.memory.moments(cell, kept, arrives, leaves, chain.first_bytes[at])
            tails = tuple(self._tails.of_ranges(cell, rank) for rank in places)
        return PartitionProblem(
            kinds=kinds,
            strategies=tuple(str(strategy.value) for strategy in self.strategies),
            schedule="gpipe" if cell.schedule == "gpipe" else "1f1b",
            num_microbatches=cell.num_microbatches,
            costs=tuple(costs),
            slots=tuple(
                StageSlot(
                    in_flight=kept[s],
                    loads=loads[s],
                    capacity_bytes=self.cluster.device_at(
                        first_device(cell, cell.rank_of(s))
                    ).usable_bytes,
                    costs=2 * at_rank[s] + (s == stages - 1),
                    tail=at_rank[s],
                )
                for s in range(stages)
            ),
            static_bytes=statics,
            tails_s=tails,
            edge_bytes=edges(
                arrives,
                leaves,
                buffers_apart=self.stack.behaviour.receive_buffers_per_microbatch,
                branched=chain.branched,
            ),
            send_forward_s=sends,
            send_backward_s=sends,
            reshard_s=np.zeros((len(self.strategies), len(self.strategies))),
        )

    def interleaved(self, cell: Cell) -> InterleavedProblem:
        """The problem of an interleaved cell."""
        chain = self.problem(cell)
        graph = self.traced.at(cell.micro_batch, cell.tp)
        at = np.asarray([ref.kind for ref in graph.chain])
        held, habits = self.memory.parameters(cell.tp), self.stack.behaviour
        over = crossings_of(graph)

        @functools.cache
        def states(ranges: Ranges) -> tuple[float, float]:
            largest = max(float(held.largest[i, j]) for i, j in ranges)
            return self.memory.states(cell, held.of(ranges), largest)

        @functools.cache
        def tail_s(rank: int, ranges: Ranges) -> float:
            return self._tails.of_rank(cell, rank, ranges)

        return InterleavedProblem(
            chain=chain,
            num_ranks=cell.pp,
            states=states,
            tail_s=tail_s,
            backward_transient_bytes=tuple(
                self._chain(cell, rank).backward_transient_bytes[at]
                for rank in self.places.distinct(cell)
                for _ in (0, 1)
            ),
            longest_forward_s=tuple(
                self._chain(cell, rank).forward_s[at]
                + self._gathers(cell, rank).max(axis=1)[at] / 2
                for rank in self.places.distinct(cell)
                for _ in (0, 1)
            ),
            received_bytes=over.arrives,
            sent_bytes=over.leaves,
            room_for_messages=message_counts(self.stack, cell.num_microbatches),
            holds_sent=habits.sent_tensors_held_until_end,
            outputs_counted=bool(graph.branches),
        )

    def split(self, cell: Cell) -> SplitProblem:
        """The problem of a cell that splits the backward."""
        held = self.interleaved(cell)
        places = self.places.distinct(cell)
        graph = self.traced.at(cell.micro_batch, cell.tp)
        at = np.asarray([ref.kind for ref in graph.chain])
        weight_s = [
            np.asarray(
                [
                    weight_gradient_s(kind, devices=tp_group(cell, rank), cluster=self.cluster)
                    for kind in graph.kinds
                ]
            )[at]
            for rank in places
        ]
        return SplitProblem(
            held=held,
            schedule=build_schedule(
                cell.schedule,
                num_ranks=cell.pp,
                num_microbatches=cell.num_microbatches,
                stages_per_rank=cell.vpp,
            ),
            weight_s=tuple(seconds for seconds in weight_s for _ in (0, 1)),
            weight_bytes=tuple(
                self._chain(cell, rank).weight_bytes[at] for rank in places for _ in (0, 1)
            ),
            forward_transient_bytes=tuple(
                self._chain(cell, rank).forward_rise_bytes[at] for rank in places for _ in (0, 1)
            ),
        )

    def plan(self, cell: Cell, found: Partition) -> Plan:
        """The complete plan of a partition."""
        graph = self.traced.at(cell.micro_batch, cell.tp)
        kinds = [self.strategies[index] for index in found.strategies]
        return Plan(
            model=self.traced.name,
            model_hash=self.traced.content_hash,
            block_entries=tuple(ref.entry for ref in graph.chain),
            tied_parameters=self.traced.tied_parameters,
            tensor_parallel=self.traced.tensor_parallel if cell.tp > 1 else (),
            cluster=self.cluster.name,
            cluster_hash=self.cluster_hash,
            workload=self.workload,
            pp=cell.pp,
            dp=cell.dp,
            tp=cell.tp,
            vpp=cell.vpp,
            zero_stage=cell.zero_stage,
            micro_batch=cell.micro_batch,
            schedule=cell.schedule,
            stages=tuple(
                Stage(first_block=i, last_block=j, recompute=tuple(kinds[i:j]))
                for i, j in zip(found.starts, found.ends(), strict=True)
            ),
            seed=self.seed,
            solver_workers=self.workers,
        )

    def first_bytes(self, cell: Cell) -> Array:
        """[n] bytes while the backward of a stage runs that begins with a block, at least."""
        graph = self.traced.at(cell.micro_batch, cell.tp)
        return self._chain(cell, 0).first_bytes[[ref.kind for ref in graph.chain]]

    def predict(self, plan: Plan) -> Prediction:
        """The simulator's prediction."""
        return predict(plan, self.traced, self.cluster, stack=self.stack, price=self.price)

    def _chain(self, cell: Cell, rank: int) -> ChainCosts:
        key = (cell.micro_batch, cell.tp, self.places.of(cell, rank)[:2])
        if key not in self._chains:
            graph = self.traced.at(cell.micro_batch, cell.tp)
            group = tp_group(cell, rank)
            self._chains[key] = price_chain(graph, self.strategies, group, self.cluster)
        return self._chains[key]

    # Times.

    def _gathers(self, cell: Cell, rank: int) -> Array:
        """[K, S] exposed seconds of gathering sharded parameters."""
        chain = self._chain(cell, rank)
        group = dp_group(cell, rank)
        if cell.zero_stage < 2 or len(group) < 2:
            return np.zeros_like(chain.backward_s)
        key = (cell.micro_batch, cell.tp, cell.pp > 1, cell.zero_stage, self.places.of(cell, rank))
        if key not in self._gathered:
            self._gathered[key] = np.asarray(
                [
                    [
                        gather_seconds(
                            cost,
                            zero_stage=cell.zero_stage,
                            group=group,
                            precision=self.workload.precision,
                            cluster=self.cluster,
                            stack=self.stack,
                            pipelined=cell.pp > 1,
                            sharing=cell.tp,
                        )
                        for cost in row
                    ]
                    for row in chain.blocks
                ]
            )
        return self._gathered[key]

    def _seconds(self, cell: Cell, rank: int) -> Array:
        """[K, S] seconds of each kind, forward and backward."""
        chain = self._chain(cell, rank)
        return np.asarray(chain.forward_s[:, None] + chain.backward_s + self._gathers(cell, rank))

    def _block_costs(self, cell: Cell, rank: int, at: np.ndarray, *, last: int) -> BlockCosts:
        chain = self._chain(cell, rank)
        gathers = self._gathers(cell, rank)
        # The simulator splits the gathering evenly; the forward may not depend on the strategy.
        # Under 1f1b only the sum counts; elsewhere what is left out keeps the bound a bound.
        least = gathers.min(axis=1)
        parts = cell.schedule == "gpipe" or cell.splits_backward
        rest = gathers / 2 if parts else gathers - least[:, None] / 2
        leaving: float | Array = chain.output_bytes[:, None]  # among what is kept
        if not chain.branched:
            leaving = 0.0 if last else float(chain.output_bytes[at[:-1]].min(initial=0.0))
        transient = np.maximum(
            chain.backward_transient_bytes, chain.forward_transient_bytes - leaving
        )
        return BlockCosts(
            forward_s=(chain.forward_s + least / 2)[at],
            backward_s=(chain.backward_s + rest)[at],
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
        devices = (first_device(cell, source), first_device(cell, target))
        key = (cell.tp, cell.dp, source, target, size_bytes)
        if key not in self._sends:
            cost = price_collective("send", size_bytes, devices, self.cluster, sharing=cell.tp)
            self._sends[key] = cost.time_s
        return self._sends[key]
