"""Memory of a cell, from the simulator's own formulas: what every range of blocks holds, and what
any plan must at least."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.cell import Cell
from planner.chain_costs import HeldParameters, held_in_ranges, price_chain
from planner.placement import sides
from planner.problem import Array
from planner.traced import Traced
from profiles.hardware.cluster import Cluster
from simulator.memory import static_bytes
from simulator.plan import Recompute
from simulator.stack import Stack
from simulator.workload import Workload


class CellMemory:
    """Bytes that cells need; what they share is priced once.

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
    ) -> None:
        self._traced, self._cluster, self._workload = traced, cluster, workload
        self._stack, self._strategies = stack, strategies
        self._sizes = sorted(set(micro_batches))
        self._held: dict[int, HeldParameters] = {}
        self._repeats: dict[tuple[object, ...], Array] = {}
        self._cuts: dict[tuple[int, int], float] = {}
        self._activations: dict[tuple[int, int], Array] = {}
        self.capacity_bytes = max(group.device.usable_bytes for group in cluster.groups)

    def missing_bytes(self, cell: Cell) -> float:
        """Bytes that some device lacks in every plan of the cell; 0 or less where none must.

        Some rank holds the mean of the parameters or more; some rank runs the block that needs
        most with the strategy that needs least.
        """
        held = self.parameters(cell.tp)
        mean = self._static(cell, float(held.count[0, -1]) / cell.pp, 0.0)
        cuts = min(sides(cell, rank) for rank in range(cell.pp))
        if mean > self.capacity_bytes:
            # Surely too much: what else it lacks is estimated from the smallest micro-batch.
            smallest = self._sizes[0]
            working = float(self._least_activations(cell.tp, smallest).max())
            buffers = cuts * self.least_buffer(cell, smallest) * cell.micro_batch / smallest
            return mean + working + buffers - self.capacity_bytes
        working_of = self._least_activations(cell.tp, cell.micro_batch)
        blocks = np.diagonal(held.count, offset=1).tolist()
        alone = {n: self._static(cell, n, n) for n in set(blocks)}
        running = max(alone[n] + w for n, w in zip(blocks, working_of.tolist(), strict=True))
        if working_of.max() <= self.capacity_bytes:
            buffers = cuts * self.least_buffer(cell, cell.micro_batch)
            return float(max(mean, running) + buffers - self.capacity_bytes)
        return float(running - self.capacity_bytes)

    # Memory.

    def parameters(self, tp: int) -> HeldParameters:
        if tp not in self._held:
            self._held[tp] = held_in_ranges(self._traced.at(self._sizes[0], tp))
        return self._held[tp]

    def _static(self, cell: Cell, count: float, largest: float) -> float:
        return static_bytes(
            count,
            largest,
            stack=self._stack,
            precision=self._workload.precision,
            optimizer=self._workload.optimizer,
            zero_stage=cell.zero_stage,
            dp=cell.dp,
            num_microbatches=cell.num_microbatches,
            pp=cell.pp,
        ).total

    def static_ranges(self, cell: Cell, arrives: Array, leaves: Array) -> Array:
        """[n, n+1] bytes that are there all step long: states and receive buffers."""
        held = self.parameters(cell.tp)
        pairs = np.stack([held.count.ravel(), held.largest.ravel()], axis=1)
        distinct, where = np.unique(pairs, axis=0, return_inverse=True)
        sizes = np.asarray([self._static(cell, float(n), float(most)) for n, most in distinct])
        static = np.asarray(sizes[where].reshape(held.count.shape))
        if cell.pp > 1 and self._stack.behaviour.receive_buffers_per_microbatch:
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
                if least.max() > self.capacity_bytes:
                    return least
            graph = self._traced.at(micro_batch, tp)
            chain = price_chain(graph, self._strategies, tuple(range(tp)), self._cluster)
            kinds = [ref.kind for ref in graph.chain]
            bytes_of = chain.kept_bytes + chain.backward_transient_bytes
            self._activations[key] = (bytes_of.min(axis=1) - chain.input_bytes)[kinds]
        return self._activations[key]

    def least_buffer(self, cell: Cell, micro_batch: int) -> float:
        """Receive buffers of one side of a stage, at least, for messages of that size."""
        if cell.pp == 1 or not self._stack.behaviour.receive_buffers_per_microbatch:
            return 0.0
        key = (cell.tp, micro_batch)
        if key not in self._cuts:
            graph = self._traced.at(micro_batch, cell.tp)
            self._cuts[key] = min(
                float(sum(spec.memory_bytes for spec in graph.kinds[ref.kind].inputs))
                for ref in graph.chain[1:]
            )
        return cell.num_microbatches * self._cuts[key]

    def static_of_repeats(self, cell: Cell, kind: int, number: int) -> Array:
        """[number] static bytes of 1, 2, ... blocks of a kind."""
        several = cell.num_microbatches > 1 or cell.pp > 1
        key = (cell.tp, cell.micro_batch, cell.zero_stage, cell.dp, several, kind)
        if key not in self._repeats:
            block = self._traced.at(cell.micro_batch, cell.tp).kinds[kind]
            size = float(sum(p.spec.num_elements for p in block.parameters if not p.tied_to))
            counts = range(1, number + 1)
            static = [self._static(cell, count * size, size) for count in counts]
            self._repeats[key] = np.asarray(static)
        return self._repeats[key]


def _leaving(leaves: Array) -> Array:
    """[n + 1] what a stage that ends before block j hands on; nothing where it is the last."""
    return np.concatenate([[0.0], leaves[:-1], [0.0]])


def edges(arrives: Array, leaves: Array) -> Array:
    """[n, n+1] per micro-batch: the first block's inputs lie in the receive buffer, and what a
    stage hands on is kept (simulator/memory.py, stage_bytes)."""
    return np.asarray(np.ceil(_leaving(leaves)[None, :] - arrives[:, None]))
