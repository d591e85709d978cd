"""The planner's prices, taken from the simulator: one cell's partition problem and its plan.

Everything that a cell's problem needs is priced by the functions that `traced.predict` uses, so
that a partition's step time is the prediction's: exactly for one pipeline rank and for 1f1b with
stages that differ by less than a third, never above it otherwise. The bytes of a stage are those of
its rank's predicted peak; where all micro-batches are in flight at once they may be less, and for
interleaved schedules they are an estimate, so that every plan is checked by its prediction.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from planner.cell import Cell
from planner.chain.problem import Array, Load, Partition, PartitionProblem, StageSlot
from planner.costs.bound import ChainTotals
from planner.costs.cell_memory import CellMemory, edges, in_flight
from planner.costs.cell_times import CellTails, CellTimes, CellTotals
from planner.costs.placement import Places
from planner.costs.priced_model import ChainCosts, PricedModel, crossings_of, kinds_to_tell
from planner.costs.split_problem import Ranges, SplitProblem
from profiles.document import content_hash
from profiles.sourced import Sourced
from simulator.memory.blocks import MESSAGE_COUNTS
from simulator.schedules.schedule import build_schedule
from simulator.traced.predict import predict
from simulator.traced.weight_gradients import weight_gradient_s
from simulator.values.plan import Plan, Stage
from simulator.values.prediction import Prediction


class SimulatorCosts:
    """Prices of cells by the simulator; what cells share is priced once.

    price  US dollars per device-hour;  seed  of the solver, as the plan names it
    """

    def __init__(
        self,
        model: PricedModel,
        *,
        price: Sourced | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self.price, self.seed = model, price, seed
        self.cluster_hash = content_hash(model.cluster)
        self.places = Places(model.cluster)
        self.memory = CellMemory(model)
        self._tails = CellTails(model, self.places, self.memory)
        self.times = CellTimes(model, self.places)
        self._totals = CellTotals(model, self.places, self.times, self.memory, self._tails)
        self.capacity_bytes = self.memory.capacity_bytes

    def missing_bytes(self, cell: Cell) -> float:
        """Bytes that some device lacks in every plan of the cell; 0 or less where none must."""
        return self.memory.missing_bytes(cell)

    def totals(self, cell: Cell) -> ChainTotals:
        """What the bound of a cell needs; the fastest of the cluster's places for everything."""
        return self._totals.of(cell)

    def tails_of_blocks(self, cell: Cell) -> Array:
        """[p, n] seconds that each block adds, at least, to a stage's after its last backward."""
        return np.asarray([self._tails.of_blocks(cell, rank) for rank in range(cell.degrees.pp)])

    def problem(self, cell: Cell) -> PartitionProblem:
        """The cell's partition problem; where ranks hold several stages, or split the backward,
        its slots are the virtual stages."""
        graph = self.model.graph(cell.micro_batch, cell.degrees.tp)
        kinds = kinds_to_tell(graph)
        at = np.asarray(self.model.kinds(cell.micro_batch, cell.degrees.tp))
        places = self.places.distinct(cell)
        position = {self.places.of(cell, rank): index for index, rank in enumerate(places)}
        stages = cell.degrees.num_stages
        at_rank = [position[self.places.of(cell, cell.rank_of(s))] for s in range(stages)]
        kept = in_flight(cell)
        # The last stage sends nothing on, so its forward peak may count for more.
        costs = [
            self.times.block_costs(cell, rank, at, last=last) for rank in places for last in (0, 1)
        ]
        beside = [self.times.beside(cell, rank) for rank in places]
        chain = self.times.chain(cell, 0)
        over = crossings_of(graph)
        arrives, leaves = over.arrives, over.leaves
        sizes, where = np.unique(arrives, return_inverse=True)
        sends = np.asarray(
            [[self.times.send_s(cell, s, size) for size in sizes.tolist()] for s in range(stages)]
        )[:, where]
        statics: tuple[Array, ...]
        loads: tuple[tuple[Load, ...], ...]
        if cell.degrees.vpp > 1 or cell.splits_backward:
            # What ranks hold is asked for by SplitProblem, not by stage.
            nothing = np.zeros((len(kinds), len(kinds) + 1))
            statics, tails = (nothing,), (nothing,) * len(places)
            loads = tuple((Load(in_flight=k),) for k in kept)
        else:
            statics, loads = self.memory.moments(cell, kept, arrives, leaves, chain.first_bytes[at])
            tails = tuple(self._tails.of_ranges(cell, rank) for rank in places)
        return PartitionProblem(
            kinds=kinds,
            strategies=tuple(str(strategy.value) for strategy in self.model.strategies),
            schedule="gpipe" if cell.schedule == "gpipe" else "1f1b",
            num_microbatches=cell.num_microbatches,
            costs=tuple(costs),
            slots=tuple(
                StageSlot(
                    in_flight=kept[s],
                    loads=loads[s],
                    capacity_bytes=self.model.cluster.device_at(
                        cell.degrees.rank(pp=cell.rank_of(s))
                    ).usable_bytes,
                    costs=2 * at_rank[s] + (s == stages - 1),
                    tail=at_rank[s],
                    forward_s=beside[at_rank[s]][0],
                    backward_s=beside[at_rank[s]][1],
                )
                for s in range(stages)
            ),
            static_bytes=statics,
            tails_s=tails,
            edge_bytes=edges(
                arrives,
                leaves,
                branched=chain.branched,
            ),
            send_forward_s=sends,
            send_backward_s=sends,
        )

    def split(self, cell: Cell) -> SplitProblem:
        """The problem of a cell whose step the timeline tells."""
        graph, ranks = (
            self.model.graph(cell.micro_batch, cell.degrees.tp),
            self.places.distinct(cell),
        )
        at = np.asarray(self.model.kinds(cell.micro_batch, cell.degrees.tp))
        trained = self.memory.trained(cell.degrees.tp)
        over = crossings_of(graph)

        @functools.cache
        def states(ranges: Ranges) -> tuple[float, float]:
            return self.memory.states(cell, self.memory.elements(cell.degrees.tp, ranges))

        def exchange(ranges: Ranges) -> float:
            return self.memory.exchange_bytes(cell, trained.of(ranges))

        @functools.cache
        def tail_s(rank: int, ranges: Ranges) -> float:
            return self._tails.of_rank(cell, rank, ranges)

        def of_costs(figure: Callable[[int], Array]) -> tuple[Array, ...]:
            """A figure [K] or [K, S] of each place's kinds, block by block, for each of `costs`."""
            return tuple(found for rank in ranks for found in (figure(rank)[at],) * 2)

        def weight_s(rank: int) -> Array:
            devices = cell.degrees.group("tp", pp=rank)
            seconds = (
                weight_gradient_s(kind, devices=devices, cluster=self.model.cluster)
                for kind in graph.kinds
            )
            return self.times.slowest(cell, rank) * np.asarray(list(seconds))

        def chain(rank: int) -> ChainCosts:
            return self.times.chain(cell, rank)

        return SplitProblem(
            chain=self.problem(cell),
            schedule=build_schedule(
                cell.schedule,
                num_ranks=cell.degrees.pp,
                num_microbatches=cell.num_microbatches,
                stages_per_rank=cell.degrees.vpp,
            ),
            states=states,
            exchange=exchange,
            tail_s=tail_s,
            received_bytes=over.arrives,
            sent_bytes=over.leaves,
            room_for_messages=MESSAGE_COUNTS,
            holds_sent=False,
            outputs_counted=bool(graph.branches),
            weight_s=of_costs(weight_s),
            weight_bytes=of_costs(lambda rank: chain(rank).weight_bytes),
            forward_transient_bytes=of_costs(lambda rank: chain(rank).forward_rise_bytes),
            backward_transient_bytes=of_costs(lambda rank: chain(rank).backward_transient_bytes),
        )

    def plan(self, cell: Cell, found: Partition) -> Plan:
        """The complete plan of a partition."""
        graph = self.model.graph(cell.micro_batch, cell.degrees.tp)
        kinds = [self.model.strategies[index] for index in found.strategies]
        return Plan(
            model=self.model.traced.name,
            model_hash=self.model.traced.content_hash,
            block_entries=tuple(ref.entry for ref in graph.chain),
            tied_parameters=self.model.traced.tied_parameters,
            tensor_parallel=self.model.traced.tensor_parallel if cell.degrees.tp > 1 else (),
            cluster=self.model.cluster.name,
            cluster_hash=self.cluster_hash,
            workload=self.model.workload,
            degrees=cell.degrees,
            zero_stage=cell.zero_stage,
            micro_batch=cell.micro_batch,
            schedule=cell.schedule,
            stages=tuple(
                Stage(first_block=i, last_block=j, recompute=tuple(kinds[i:j]))
                for i, j in zip(found.starts, found.ends(), strict=True)
            ),
            seed=self.seed,
        )

    def first_bytes(self, cell: Cell) -> Array:
        """[n] bytes while the backward of a stage runs that begins with a block, at least."""
        return self.times.chain(cell, 0).first_bytes[
            self.model.kinds(cell.micro_batch, cell.degrees.tp)
        ]

    def predict(self, plan: Plan) -> Prediction:
        """The simulator's prediction."""
        return predict(
            plan, self.model.traced, self.model.cluster, stack=self.model.stack, price=self.price
        )
