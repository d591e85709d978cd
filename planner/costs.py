"""The planner's prices, taken from the simulator: one cell's partition problem and its plan.

Everything that a cell's problem needs is priced by the functions that `simulator.predict` uses,
so that the partition's step time is the prediction's (exactly so for one pipeline rank, gpipe and
1f1b with stages that differ by less than a third; never above it otherwise).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from planner.bound import ChainTotals, interleaved_fill_s, least_busiest_s
from planner.cell import Cell
from planner.chain_costs import ChainCosts, HeldParameters, held_in_ranges, price_chain
from planner.interleave import most_per_stage
from planner.memory_bound import least_longest_s
from planner.problem import Array, BlockCosts, Partition, PartitionProblem, StageSlot
from profiles.document import content_hash
from profiles.hardware.cluster import Cluster
from profiles.model.graph import ModelGraph
from profiles.sourced import Sourced
from simulator.comm_cost import price_collective
from simulator.memory import static_bytes
from simulator.plan import Plan, Recompute, Stage
from simulator.predict import gather_seconds, predict
from simulator.prediction import Prediction
from simulator.schedule import ActionKind, build_schedule
from simulator.stack import Stack
from simulator.step_tail import Tail, price_tail
from simulator.workload import Workload

_SETTLED_ROUNDS = (
    4  # of num_ranks micro-batches, after which an interleaved schedule repeats itself
)


class Traced(Protocol):
    """What the planner needs of a traced model (profiles.model.traced.TracedModel)."""

    name: str
    content_hash: str
    tp_degrees: tuple[int, ...]
    tensor_parallel: tuple[tuple[str, str], ...]
    tied_parameters: tuple[tuple[str, ...], ...]
    why_not_tensor_parallel: str

    def at(self, micro_batch: int, tp: int = 1) -> ModelGraph: ...


class SimulatorCosts:
    """Prices of cells by the simulator; what cells share is priced once.

    strategies    recompute kinds that a block may use
    micro_batches those that the search will ask for: memory grows with them, so that larger ones
                  are not priced once a smaller one holds no block
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
        self.cluster_hash = content_hash(cluster)
        self._sizes = sorted(set(micro_batches))
        self._chains: dict[tuple[object, ...], ChainCosts] = {}
        self._held: dict[int, HeldParameters] = {}
        self._tails: dict[tuple[object, ...], float] = {}
        self._sends: dict[tuple[object, ...], float] = {}
        self._repeats: dict[tuple[object, ...], Array] = {}
        self._cuts: dict[tuple[int, int], float] = {}
        self._shapes: dict[tuple[int, int, int, int], tuple[object, ...]] = {}
        self._gathered: dict[tuple[object, ...], Array] = {}
        self._activations: dict[tuple[int, int], Array] = {}
        self._busiest: dict[tuple[object, ...], float] = {}
        self.usable_bytes = max(group.device.usable_bytes for group in cluster.groups)

    # What a cell surely lacks, and its bound.

    def missing_bytes(self, cell: Cell) -> float:
        """Bytes that some device lacks in every plan of the cell; 0 or less where none must.

        Some rank holds the mean of the parameters or more; some rank runs the block that needs
        most with the strategy that needs least.
        """
        held = self._parameters(cell.tp)
        mean = self._static(cell, float(held.count[0, -1]) / cell.pp, 0.0)
        sides = min(_sides(cell, rank) for rank in range(cell.pp))
        if mean > self.usable_bytes:
            # Surely too much: what else it lacks is estimated from the smallest micro-batch.
            smallest = self._sizes[0]
            working = float(self._least_activations(cell.tp, smallest).max())
            buffers = sides * self._least_buffer(cell, smallest) * cell.micro_batch / smallest
            return mean + working + buffers - self.usable_bytes
        working_of = self._least_activations(cell.tp, cell.micro_batch)
        blocks = np.diagonal(held.count, offset=1).tolist()
        alone = {n: self._static(cell, n, n) for n in set(blocks)}
        running = max(alone[n] + w for n, w in zip(blocks, working_of.tolist(), strict=True))
        if working_of.max() <= self.usable_bytes:
            buffers = sides * self._least_buffer(cell, cell.micro_batch)
            return float(max(mean, running) + buffers - self.usable_bytes)
        return float(running - self.usable_bytes)

    def totals(self, cell: Cell) -> ChainTotals:
        """What the bound of a cell needs; the fastest of the cluster's places for everything."""
        graph = self.traced.at(cell.micro_batch, cell.tp)
        kinds = tuple(ref.kind for ref in graph.chain)
        places = self._places(cell)
        fastest = np.min([self._seconds(cell, rank).min(axis=1) for rank in places], axis=0)
        times = fastest[list(kinds)]
        busiest = max(self._busiest_s(cell, times, kinds), self._memory_bound_s(cell, kinds))
        crossing = 0.0
        if cell.pp > 1:
            size = min(float(self._chain(cell, 0).input_bytes[kind]) for kind in kinds[1:])
            crossing = 2 * min(self._send(cell, s, size) for s in range(1, cell.num_stages))
        single = np.diagonal(self._parameters(cell.tp).count, offset=1)
        return ChainTotals(
            total_s=float(times.sum()) if np.isfinite(busiest) else np.inf,
            busiest_s=busiest,
            last_s=float(times[-1]),
            send_s=crossing,
            fill_s=interleaved_fill_s(times, cell) if cell.vpp > 1 else 0.0,
            tail_s=self._tail(cell, 0, float(single[0])),
            any_tail_s=min(self._tail(cell, rank, float(single.min())) for rank in places),
        )

    def _busiest_s(self, cell: Cell, times: Array, kinds: tuple[int, ...]) -> float:
        key = (cell.tp, cell.micro_batch, cell.pp, cell.dp if cell.zero_stage == 3 else 0)
        if key not in self._busiest:
            self._busiest[key] = least_busiest_s(times, kinds, cell.pp)
        return self._busiest[key]

    def _memory_bound_s(self, cell: Cell, kinds: tuple[int, ...]) -> float:
        """Seconds of the busiest rank in view of memory, on the fastest of the cluster's places."""
        kind, number = Counter(kinds).most_common(1)[0]
        chain = self._chain(cell, 0)
        whole = np.min([self._seconds(cell, rank)[kind] for rank in self._places(cell)], axis=0)
        in_flight = _in_flight(cell)
        room = self.usable_bytes - float(chain.backward_transient_bytes.min())
        buffer = self._least_buffer(cell, cell.micro_batch)
        sides = [_sides(cell, rank) for rank in range(cell.pp)]
        return least_longest_s(
            seconds=whole,
            saved_bytes=chain.kept_bytes[kind],
            static_bytes=self._static_of_repeats(cell, kind, number),
            room_bytes=[room - count * buffer for count in sides],
            edge_bytes=float(chain.input_bytes.max()),
            in_flight=[in_flight[rank :: cell.pp] for rank in range(cell.pp)],
            most_per_stage=most_per_stage(len(kinds), cell.num_stages) if cell.vpp > 1 else number,
        )

    def _static_of_repeats(self, cell: Cell, kind: int, number: int) -> Array:
        """[number] static bytes of 1, 2, ... blocks of a kind."""
        several = cell.num_microbatches > 1 or cell.pp > 1
        key = (cell.tp, cell.zero_stage, cell.dp, several, kind)
        if key not in self._repeats:
            block = self.traced.at(self._sizes[0], cell.tp).kinds[kind]
            size = float(sum(p.spec.num_elements for p in block.parameters if not p.tied_to))
            counts = range(1, number + 1)
            static = [self._static(cell, count * size, size) for count in counts]
            self._repeats[key] = np.asarray(static)
        return self._repeats[key]

    # The problem of a cell.

    def problem(self, cell: Cell) -> PartitionProblem:
        """The cell's partition problem; for `interleaved` its slots are the virtual stages."""
        graph = self.traced.at(cell.micro_batch, cell.tp)
        kinds = tuple(ref.kind for ref in graph.chain)
        at = np.asarray(kinds)
        places = self._places(cell)
        position = {self._place(cell, rank): index for index, rank in enumerate(places)}
        stages = cell.num_stages
        at_rank = [position[self._place(cell, s % cell.pp)] for s in range(stages)]
        in_flight = _in_flight(cell)
        # The last stage sends nothing on, so its forward peak may count for more.
        costs = [self._block_costs(cell, rank, at, last=last) for rank in places for last in (0, 1)]
        chain = self._chain(cell, 0)
        arrives, leaves = chain.input_bytes[at], chain.output_bytes[at]
        sends = np.asarray(
            [[self._send(cell, s, size) for size in arrives.tolist()] for s in range(stages)]
        )
        return PartitionProblem(
            kinds=kinds,
            strategies=tuple(str(strategy.value) for strategy in self.strategies),
            schedule="gpipe" if cell.schedule == "gpipe" else "1f1b",
            num_microbatches=cell.num_microbatches,
            costs=tuple(costs),
            slots=tuple(
                StageSlot(
                    in_flight=in_flight[s],
                    capacity_bytes=self.cluster.device_at(_first(cell, s % cell.pp)).usable_bytes,
                    costs=2 * at_rank[s] + (s == stages - 1),
                    tail=at_rank[s],
                )
                for s in range(stages)
            ),
            static_bytes=self._static_ranges(cell, arrives, leaves),
            tails_s=tuple(self._tail_ranges(cell, rank) for rank in places),
            edge_bytes=_edges(arrives, leaves),
            send_forward_s=sends,
            send_backward_s=sends,
            reshard_s=np.zeros((len(self.strategies), len(self.strategies))),
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

    def predict(self, plan: Plan) -> Prediction:
        """The simulator's prediction."""
        return predict(plan, self.traced, self.cluster, stack=self.stack, price=self.price)

    # Places: pipeline ranks whose devices and links are alike are priced once.

    def _places(self, cell: Cell) -> list[int]:
        first: dict[tuple[object, ...], int] = {}
        for rank in range(cell.pp):
            first.setdefault(self._place(cell, rank), rank)
        return list(first.values())

    def _place(self, cell: Cell, rank: int) -> tuple[object, ...]:
        """Device and the shape of a rank's tp and dp groups on the levels of the cluster."""
        key = (cell.pp, cell.dp, cell.tp, rank)
        if key not in self._shapes:
            device = self.cluster.device_at(_first(cell, rank)).name
            groups = (_tp_group(cell, rank), _dp_group(cell, rank))
            self._shapes[key] = (device, *(self._shape(group) for group in groups))
        return self._shapes[key]

    def _shape(self, devices: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Members of a group in each domain of each level."""
        found = []
        for level in self.cluster.levels:
            counts: dict[int, int] = {}
            for index in devices:
                counts[index // level.domain_size] = counts.get(index // level.domain_size, 0) + 1
            found.append(tuple(counts.values()))
        return tuple(found)

    def _chain(self, cell: Cell, rank: int) -> ChainCosts:
        key = (cell.micro_batch, cell.tp, self._place(cell, rank)[:2])
        if key not in self._chains:
            graph = self.traced.at(cell.micro_batch, cell.tp)
            group = _tp_group(cell, rank)
            self._chains[key] = price_chain(graph, self.strategies, group, self.cluster)
        return self._chains[key]

    # Times.

    def _gathers(self, cell: Cell, rank: int) -> Array:
        """[K, S] exposed seconds of gathering sharded parameters."""
        chain = self._chain(cell, rank)
        group = _dp_group(cell, rank)
        if cell.zero_stage < 3 or len(group) < 2:
            return np.zeros_like(chain.backward_s)
        key = (cell.micro_batch, cell.tp, self._place(cell, rank))
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
        # Under 1f1b only the sum counts; for gpipe what is left out keeps the bound a bound.
        least = gathers.min(axis=1)
        rest = gathers / 2 if cell.schedule == "gpipe" else gathers - least[:, None] / 2
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

    def _send(self, cell: Cell, stage: int, size_bytes: float) -> float:
        """Seconds over the cut before a virtual stage."""
        source, target = (stage - 1) % cell.pp, stage % cell.pp
        if source == target or stage == 0:
            return 0.0
        devices = (_first(cell, source), _first(cell, target))
        key = (cell.pp, cell.dp * cell.tp, source, target, size_bytes)
        if key not in self._sends:
            cost = price_collective("send", size_bytes, devices, self.cluster)
            self._sends[key] = cost.time_s
        return self._sends[key]

    def _tail(self, cell: Cell, rank: int, count: float) -> float:
        """Seconds after the last backward of a rank with so many parameters, apart from the
        optimizer on a CPU, which takes one parameter after the other (`_cpu_optimizer`)."""
        place = self._place(cell, rank)
        key = (place[0], place[2], cell.zero_stage, count)
        if key not in self._tails:
            tail = self._price_tail(cell, rank, int(count))
            on_cpu = self.cluster.device_at(_first(cell, rank)).type == "cpu"
            self._tails[key] = tail.data_parallel_s if on_cpu else tail.total_s
        return self._tails[key]

    def _price_tail(self, cell: Cell, rank: int, count: int) -> Tail:
        return price_tail(
            (count,),
            group=_dp_group(cell, rank),
            zero_stage=cell.zero_stage,
            precision=self.workload.precision,
            optimizer=self.workload.optimizer,
            cluster=self.cluster,
            stack=self.stack,
        )

    def _cpu_optimizer(self, cell: Cell, rank: int) -> Array:
        """[n, n+1] seconds of the optimizer on a CPU; zero elsewhere."""
        held = self._parameters(cell.tp)
        if self.cluster.device_at(_first(cell, rank)).type != "cpu":
            return np.zeros_like(held.count)
        return held.ranged(lambda size: self._price_tail(cell, rank, size).optimizer_s)

    def _tail_ranges(self, cell: Cell, rank: int) -> Array:
        """[n, n+1] seconds after the last backward of a stage of blocks [i, j)."""
        count = self._parameters(cell.tp).count
        sizes, where = np.unique(count, return_inverse=True)
        times = np.asarray([self._tail(cell, rank, float(size)) for size in sizes])
        return np.asarray(times[where].reshape(count.shape) + self._cpu_optimizer(cell, rank))

    # Memory.

    def _parameters(self, tp: int) -> HeldParameters:
        if tp not in self._held:
            self._held[tp] = held_in_ranges(self.traced.at(self._sizes[0], tp))
        return self._held[tp]

    def _static(self, cell: Cell, count: float, largest: float) -> float:
        return static_bytes(
            count,
            largest,
            stack=self.stack,
            precision=self.workload.precision,
            optimizer=self.workload.optimizer,
            zero_stage=cell.zero_stage,
            dp=cell.dp,
            num_microbatches=cell.num_microbatches,
            pp=cell.pp,
        ).total

    def _static_ranges(self, cell: Cell, arrives: Array, leaves: Array) -> Array:
        """[n, n+1] bytes that are there all step long: states and receive buffers."""
        held = self._parameters(cell.tp)
        pairs = np.stack([held.count.ravel(), held.largest.ravel()], axis=1)
        distinct, where = np.unique(pairs, axis=0, return_inverse=True)
        sizes = np.asarray([self._static(cell, float(n), float(most)) for n, most in distinct])
        static = np.asarray(sizes[where].reshape(held.count.shape))
        if cell.pp > 1 and self.stack.behaviour.receive_buffers_per_microbatch:
            received = np.concatenate([[0.0], arrives[1:]])
            static = static + cell.num_microbatches * (received[:, None] + _leaving(leaves)[None])
        return np.asarray(np.ceil(static))

    def _least_activations(self, tp: int, micro_batch: int) -> Array:
        """[n] bytes that running a block alone needs with the strategy that needs least; of a
        smaller micro-batch where that is too much already."""
        key = (tp, micro_batch)
        if key not in self._activations:
            smaller = [size for size in self._sizes if size < micro_batch]
            if smaller:
                least = self._least_activations(tp, smaller[-1])
                if least.max() > self.usable_bytes:
                    return least
            graph = self.traced.at(micro_batch, tp)
            chain = price_chain(graph, self.strategies, tuple(range(tp)), self.cluster)
            kinds = [ref.kind for ref in graph.chain]
            bytes_of = chain.kept_bytes + chain.backward_transient_bytes
            self._activations[key] = (bytes_of.min(axis=1) - chain.input_bytes)[kinds]
        return self._activations[key]

    def _least_buffer(self, cell: Cell, micro_batch: int) -> float:
        """Receive buffers of one side of a stage, at least, for messages of that size."""
        if cell.pp == 1 or not self.stack.behaviour.receive_buffers_per_microbatch:
            return 0.0
        key = (cell.tp, micro_batch)
        if key not in self._cuts:
            graph = self.traced.at(micro_batch, cell.tp)
            self._cuts[key] = min(
                float(sum(spec.memory_bytes for spec in graph.kinds[ref.kind].inputs))
                for ref in graph.chain[1:]
            )
        return cell.num_microbatches * self._cuts[key]


def _sides(cell: Cell, rank: int) -> int:
    """Cuts at a rank's stages: two each, but one at either end of the chain."""
    return 2 * cell.vpp - (rank == 0) - (rank == cell.pp - 1)


def _first(cell: Cell, rank: int) -> int:
    """First device of a pipeline rank (simulator.plan: tp innermost, then dp, then pp)."""
    return rank * cell.dp * cell.tp


def _tp_group(cell: Cell, rank: int) -> tuple[int, ...]:
    return tuple(range(_first(cell, rank), _first(cell, rank) + cell.tp))


def _dp_group(cell: Cell, rank: int) -> tuple[int, ...]:
    return tuple(_first(cell, rank) + d * cell.tp for d in range(cell.dp))


def _leaving(leaves: Array) -> Array:
    """[n + 1] what a stage that ends before block j hands on; nothing where it is the last."""
    return np.concatenate([[0.0], leaves[:-1], [0.0]])


def _edges(arrives: Array, leaves: Array) -> Array:
    """[n, n+1] per micro-batch: the first block's inputs lie in the receive buffer, and what a
    stage hands on is kept (simulator/memory.py, stage_bytes)."""
    return np.asarray(np.ceil(_leaving(leaves)[None, :] - arrives[:, None]))


def _in_flight(cell: Cell) -> tuple[int, ...]:
    """Micro-batches that each virtual stage keeps when its rank keeps most."""
    m, p = cell.num_microbatches, cell.pp
    if cell.schedule == "none":
        return (1,)
    if cell.schedule == "gpipe":
        return (m,) * p
    if cell.schedule == "1f1b":
        return tuple(min(m, p - s) for s in range(p))
    return _kept_at_peak(p, min(m, _SETTLED_ROUNDS * p), cell.vpp)


@functools.cache
def _kept_at_peak(num_ranks: int, num_microbatches: int, stages_per_rank: int) -> tuple[int, ...]:
    """Per virtual stage of an interleaved schedule, when the rank's sum is highest."""
    schedule = build_schedule(
        "interleaved",
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        stages_per_rank=stages_per_rank,
    )
    found = [0] * schedule.num_stages
    for row in schedule.ranks:
        held: Counter[int] = Counter()
        most = 0
        for action in row:
            if action.kind is ActionKind.FORWARD:
                held[action.stage] += 1
                if held.total() > most:
                    most = held.total()
                    peak = dict(held)
            else:
                held[action.stage] -= 1
        for stage, count in peak.items():
            found[stage] = count
    return tuple(found)
