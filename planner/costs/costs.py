"""Costs of the search block by block, from the simulator: the partition problem of a cell, and the
plan and prediction of a partition.

The prices are computed by the functions that `traced.predict` calls, so that a partition's step
time equals its prediction for one pipeline rank, and for 1f1b if stages differ by less than a
third; otherwise it is a lower bound. The bytes of a stage are the predicted peak of its rank. They
may be lower if all micro-batches are in flight at once, and are an estimate for interleaved
schedules, so every plan is checked by its prediction.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np

from planner.cell import Cell
from planner.chain.ideals import BlockLattice, prefixes
from planner.chain.problem import Array, Load, Partition, PartitionProblem, StageSlot
from planner.chain.relaxed_bound import RankNeeds
from planner.costs.bound import ChainTotals, least_busiest_s
from planner.costs.cell_memory import CellMemory, Places, edges, in_flight, table_bytes
from planner.costs.cell_times import CellTails, CellTimes
from planner.costs.priced_model import Cache, PricedModel, kinds_by_cost, least_crossing, over_cuts
from planner.costs.split_problem import Ranges, SplitProblem
from profiles.model.graph import ModelGraph
from profiles.model.tied_gradients import pipeline_kinds
from profiles.sourced import Sourced
from simulator.schedules.schedule import build_schedule, schedule_kind
from simulator.traced.predict import predict
from simulator.traced.weight_gradients import weight_gradient_s
from simulator.values.plan import Plan, Stage
from simulator.values.prediction import Prediction


class SimulatorCosts:
    """Prices of cells by the simulator; values that cells share are computed once.

    price   US dollars per device-hour;  seed  of the solver, as recorded in the plan
    """

    def __init__(self, model: PricedModel, *, price: Sourced | None = None, seed: int = 0) -> None:
        self.model, self.price, self.seed = model, price, seed
        self.places = Places(model.cluster)
        self.memory = CellMemory(model)
        self.times = CellTimes(model, self.places)
        self.capacity_bytes = self.memory.capacity_bytes
        self._tails = CellTails(model, self.places, self.memory)
        self._lattice: BlockLattice | None = None
        self._known = Cache()

    def over_ideals(self, lattice: BlockLattice) -> SimulatorCosts:
        """The same prices with the cuts of `lattice` (any order of blocks) instead of a chain's."""
        other = SimulatorCosts(self.model, price=self.price, seed=self.seed)
        other.times, other._lattice = self.times, lattice
        other.memory = CellMemory(self.model, lattice)
        other._tails = CellTails(self.model, self.places, other.memory)
        return other

    def missing_bytes(self, cell: Cell) -> float:
        """Lower bound on the memory shortfall of every plan of the cell; 0 or less if one may
        fit."""
        return self.memory.missing_bytes(cell)

    def totals(self, cell: Cell) -> ChainTotals:
        """Input of the cell's lower bound: times at the cluster's fastest place."""
        graph = self.model.graph(cell.micro_batch, cell.degrees.tp)
        seconds, crossing_s, tail_s, any_tail_s = self._least(cell)
        times = seconds.min(axis=1)[self.times.chain(cell, 0).at]
        overhead_s = min(sum(self.times.overhead_s(cell, r)) for r in self.places.distinct(cell))
        return ChainTotals(
            total_s=float(times.sum()) + cell.degrees.num_stages * overhead_s,
            busiest_s=self._busiest_s(cell, times, graph) + cell.degrees.vpp * overhead_s,
            last_s=float(times[-1]) + overhead_s,
            send_s=crossing_s,
            # Blocks with branches may be reordered, and another one may be first.
            tail_s=any_tail_s if graph.branches else tail_s + self._tails.ties_s(cell),
            any_tail_s=any_tail_s,
        )

    def _least(self, cell: Cell) -> tuple[Array, float, float, float]:
        """Lower bounds over all places and schedules of a mesh: seconds [K, S] per kind of block
        and strategy, of one crossing forward and back, of the tail of rank 0 and of any rank."""
        degrees = cell.degrees

        def found() -> tuple[Array, float, float, float]:
            places = self.places.distinct(cell)
            single, trained = (
                np.diagonal(held.count, offset=1)
                for held in (self.memory.parameters(degrees.tp), self.memory.trained(degrees.tp))
            )
            # No block has fewer trained parameters, or fewer frozen ones.
            fewest = float(trained.min())
            least = fewest + float((single - trained).min())
            crossing = 0.0
            if degrees.pp > 1:
                size = least_crossing(self.model.graph(cell.micro_batch, degrees.tp))
                # The last crossing leads back to rank 0; only interleaved stages use it.
                crossing = 2 * min(
                    self.times.send_s(cell, s, size) for s in range(1, degrees.pp + 1)
                )
            return (
                np.min([self.times.seconds(cell, rank) for rank in places], axis=0),
                crossing,
                self._tails.of_count(cell, 0, float(single[0]), float(trained[0])),
                min(self._tails.of_count(cell, rank, least, fewest) for rank in places),
            )

        key = (cell.micro_batch, degrees.tp, degrees.pp, degrees.dp, cell.zero_stage, cell.shares)
        return self._known.computed(("least", *key), found)

    def _busiest_s(self, cell: Cell, times: Array, graph: ModelGraph) -> float:
        """R of `planner.costs.bound`; `times` [n] of blocks at the fastest place."""
        degrees, kinds = cell.degrees, [ref.kind for ref in graph.chain]
        sharded = (degrees.dp, cell.zero_stage, cell.shares) if cell.zero_stage else (0, 0, 0)
        key = (degrees.tp, cell.micro_batch, degrees.pp, *sharded, self.times.slowest(cell, 0))
        return self._known.computed(
            ("busiest", *key), lambda: least_busiest_s(times, kinds, degrees.pp)
        )

    def rank_needs(self, cell: Cell) -> RankNeeds:
        """Figures of the cell's ranks for its linear program."""
        graph, totals = self.model.graph(cell.micro_batch, cell.degrees.tp), self.totals(cell)
        owner = [cell.rank_of(stage) for stage in range(cell.degrees.num_stages)]
        tails = [self._tails.of_blocks(cell, rank) for rank in range(cell.degrees.pp)]
        chains = [self.times.chain(cell, rank) for rank in self.places.distinct(cell)]
        rise = np.min(
            [
                np.minimum(each.backward_transient_bytes, each.opening_backward_bytes)[each.at]
                for each in chains
            ],
            axis=(0, 2),
        )
        return RankNeeds(
            owner=owner,
            states=self.memory.least_states(cell),
            given_bytes=self.memory.given_bytes(cell),
            passed_bytes=float(over_cuts(graph).max()),
            rise_bytes=rise,
            crossing_s=totals.send_s,
            tail_s=totals.any_tail_s,
            tails_s=np.asarray(tails)[owner],
            closed=not cell.needs_timeline,
            splits_backward=cell.splits_backward,
            near_even=schedule_kind(cell.schedule).is_interleaved,
            any_order=bool(graph.branches),
        )

    def problem(self, cell: Cell) -> PartitionProblem:
        """The cell's partition problem. Its slots are stages; virtual stages if ranks have several
        or the backward is split."""
        degrees, stages = cell.degrees, range(cell.degrees.num_stages)
        graph = self.model.graph(cell.micro_batch, degrees.tp)
        lattice = self._lattice or prefixes(len(graph.chain))
        over, tables = self._over(cell, graph), table_bytes(graph, lattice)
        places = self.places.distinct(cell)
        position = {self.places.of(cell, rank): index for index, rank in enumerate(places)}
        at_rank = [position[self.places.of(cell, cell.rank_of(s))] for s in stages]
        kept = in_flight(cell)
        overhead_s = [self.times.overhead_s(cell, rank) for rank in places]
        chain = self.times.chain(cell, 0)
        at = chain.at
        sizes, where = np.unique(over[:-1], return_inverse=True)
        sends = np.asarray(
            [[self.times.send_s(cell, s, size) for size in sizes.tolist()] for s in stages]
        )[:, where]
        # During a forward, fewer messages are in transit than during steady backwards
        # (CellMemory.moments): at most `between` bytes less in inner stages, `most` in the last.
        early = self._receives_early(cell)
        most = float(over.max())
        between = most - least_crossing(graph) if early and degrees.pp > 1 else most

        def steady(stage: int) -> bool:
            return (stage > 0 or early) and cell.num_microbatches > kept[stage] + 1

        statics: tuple[Array, ...]
        loads: tuple[tuple[Load, ...], ...]
        if cell.needs_timeline:
            # SplitProblem has the memory of ranks; memory per stage is not used.
            statics = (np.zeros((lattice.count - 1, lattice.count)),)
            tails = statics * len(places)
            loads = tuple((Load(in_flight=k),) for k in kept)
        else:
            statics, loads = self.memory.moments(
                cell,
                kept,
                over,
                chain.first_bytes[at][lattice.first_blocks] + tables,
                early=early,
                branched=chain.branched,
            )
            tails = tuple(self._tails.of_ranges(cell, rank) for rank in places)
        return PartitionProblem(
            kinds=(
                tuple(at.tolist()) if self._lattice or not graph.branches else kinds_by_cost(graph)
            ),
            strategies=tuple(str(strategy.value) for strategy in self.model.strategies),
            schedule="gpipe" if cell.schedule == "gpipe" else "1f1b",
            num_microbatches=cell.num_microbatches,
            costs=tuple(
                self.times.block_costs(cell, rank, at, last=last, fewer_bytes=more * steady)
                for rank in places
                for steady in (False, True)
                for last, more in ((False, between), (True, most))
            ),
            slots=tuple(
                StageSlot(
                    in_flight=kept[s],
                    loads=loads[s],
                    capacity_bytes=self.model.cluster.device_at(
                        degrees.rank(pp=cell.rank_of(s))
                    ).tensor_bytes,
                    costs=4 * at_rank[s] + 2 * steady(s) + (s == stages[-1]),
                    tail=at_rank[s],
                    forward_s=overhead_s[at_rank[s]][0],
                    backward_s=overhead_s[at_rank[s]][1],
                )
                for s in stages
            ),
            static_bytes=statics,
            tails_s=tails,
            edge_bytes=edges(over, tables, branched=chain.branched),
            send_forward_s=sends,
            send_backward_s=sends,
            ideals=self._lattice,
        )

    def _over(self, cell: Cell, graph: ModelGraph) -> Array:
        """[m] bytes per micro-batch that cross each cut; 0 at both ends."""
        lattice = self._lattice
        if lattice is None:
            return over_cuts(graph)

        def found() -> Array:
            over = np.zeros(lattice.count)
            for branch in graph.branches:
                taken = lattice.holds[:, list(branch.consumers)].all(axis=1)
                over += branch.spec.memory_bytes * (lattice.holds[:, branch.producer] & ~taken)
            return over

        return self._known.computed(("over", cell.micro_batch, cell.degrees.tp), found)

    def _receives_early(self, cell: Cell) -> bool:
        """Whether receives are posted early: on CPUs."""
        return self.model.group(cell, 0).device.type == "cpu"

    def split(self, cell: Cell) -> SplitProblem:
        """The problem of a cell whose step time is computed by the event timeline."""
        graph = self.model.graph(cell.micro_batch, cell.degrees.tp)
        ranks = self.places.distinct(cell)
        kinds = self.model.kinds(cell.micro_batch, cell.degrees.tp)
        trained = self.memory.trained(cell.degrees.tp)

        @functools.cache
        def states(ranges: Ranges) -> tuple[float, float]:
            held, gradients = self.memory.states(cell, self.memory.elements(cell, ranges))
            return held + self.memory.given_bytes(cell), gradients

        def exchange(ranges: Ranges) -> float:
            return self.memory.exchange_bytes(cell, trained.of(ranges))

        @functools.cache
        def tail_s(rank: int, ranges: Ranges) -> float:
            return self._tails.of_rank(cell, rank, ranges)

        def weight_s(rank: int) -> Array:
            devices = cell.degrees.group("tp", pp=rank)
            seconds = (
                weight_gradient_s(kind, devices=devices, cluster=self.model.cluster)
                for kind in pipeline_kinds(graph)
            )
            return self.times.slowest(cell, rank) * np.asarray(list(seconds))[kinds]

        def of_costs(figures: Iterable[Array]) -> tuple[Array, ...]:
            """The figure of each place, [n] or [n, S], once for each of the place's four `costs` in
            the partition problem."""
            return tuple(found for figure in figures for found in (figure,) * 4)

        chains = [self.times.chain(cell, rank) for rank in ranks]
        return SplitProblem(
            chain=self.problem(cell),
            schedule=build_schedule(
                cell.schedule,
                num_ranks=cell.degrees.pp,
                num_microbatches=cell.num_microbatches,
                stages_per_rank=cell.degrees.vpp,
            ),
            early=self._receives_early(cell),
            states=states,
            exchange=exchange,
            tail_s=tail_s,
            over_bytes=over_cuts(graph),
            outputs_counted=bool(graph.branches),
            weight_s=of_costs(map(weight_s, ranks)),
            weight_bytes=of_costs(each.weight_bytes[each.at] for each in chains),
            forward_transient_bytes=of_costs(
                (each.forward_transient_bytes - each.outputs_kept)[each.at] for each in chains
            ),
            backward_transient_bytes=of_costs(
                each.backward_transient_bytes[each.at] for each in chains
            ),
            opening_forward_bytes=of_costs(
                (each.opening_forward_bytes - each.outputs_kept)[each.at] for each in chains
            ),
            opening_backward_bytes=of_costs(
                each.opening_backward_bytes[each.at] for each in chains
            ),
        )

    def plan(self, cell: Cell, found: Partition) -> Plan:
        """The complete plan of a partition."""
        kinds = [self.model.strategies[index] for index in found.strategies]
        stages = tuple(
            Stage(first_block=i, last_block=j, recompute=tuple(kinds[i:j]))
            for i, j in zip(found.starts, found.ends(), strict=True)
        )
        return self.model.plan(cell, stages, seed=self.seed)

    def predict(self, plan: Plan) -> Prediction:
        """The simulator's prediction."""
        return predict(
            plan, self.model.traced, self.model.cluster, stack=self.model.stack, price=self.price
        )
