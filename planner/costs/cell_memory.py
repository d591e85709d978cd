"""Memory of a cell, from the simulator's own formulas: what every range of blocks holds, what any
plan must hold at least, and how many micro-batches each stage keeps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cell import Cell
from planner.chain.problem import Array, Load
from planner.costs.placement import sides
from planner.costs.priced_model import (
    HeldParameters,
    PricedModel,
    crossings_of,
    held_in_ranges,
    of_each,
)
from profiles.model.graph import ModelGraph
from simulator.memory.blocks import message_counts
from simulator.memory.held import Elements, Figures, exchange_bytes, executor_static_bytes
from simulator.schedules.in_flight import in_flight as held_by_ranks


class CellMemory:
    """Bytes that cells need; what they share is priced once. They grow with the micro-batch, so
    that larger ones are not priced once a smaller one holds no block."""

    def __init__(self, model: PricedModel) -> None:
        self.model = model
        self._held: dict[tuple[int, bool], HeldParameters] = {}
        self._cuts: dict[tuple[int, int], float] = {}
        self._singles: dict[tuple[object, ...], Array] = {}
        self._ranges: dict[tuple[object, ...], tuple[Array, Array]] = {}
        self._missing: dict[tuple[int, ...], tuple[tuple[float, float], ...]] = {}
        self._needs: dict[tuple[object, ...], tuple[float, float]] = {}
        self._activations: dict[tuple[int, int], Array] = {}
        self.capacity_bytes = max(group.device.usable_bytes for group in model.cluster.groups)

    def missing_bytes(self, cell: Cell) -> float:
        """Bytes that some device lacks in every plan of the cell; 0 or less where none must.

        At the end of the step some rank holds the mean of the parameters or more, with gradients
        and what it sent; and some rank runs the block that needs most with the strategy that needs
        least.
        """
        degrees = cell.degrees
        cuts = min(sides(cell, 0), sides(cell, degrees.pp - 1))
        key = (degrees.tp, cell.micro_batch, cell.zero_stage, degrees.dp, degrees.pp)
        if key not in self._missing:
            self._missing[key] = self._lacks(cell)
        return max(alone + cuts * of_cut for alone, of_cut in self._missing[key])

    def _lacks(self, cell: Cell) -> tuple[tuple[float, float], ...]:
        """Bytes lacking at the moments of `missing_bytes`: without messages, and for each cut."""
        degrees = cell.degrees
        room = self.capacity_bytes
        total, trained = (
            float(held.count[0, -1]) / degrees.pp
            for held in (self.parameters(degrees.tp), self.trained(degrees.tp))
        )
        whole = Elements(total=total, trained=trained)
        mean = sum(self.states(cell, whole))
        if mean > room:
            # Surely too much: what else it lacks is estimated from the smallest micro-batch.
            smallest = self.model.micro_batches[0]
            working = float(self._least_activations(degrees.tp, smallest).max())
            buffers = self.crossing_bytes(cell, smallest, cell.num_microbatches)
            return ((mean + working - room, buffers * cell.micro_batch / smallest),)
        running, working = self._running(cell)
        if working > room:
            return ((max(mean, running) - room, 0.0),)
        last = cell.num_microbatches - 1
        return (
            (mean - room, self.crossing_bytes(cell, cell.micro_batch, last + 1)),
            (running - room, self.crossing_bytes(cell, cell.micro_batch, last)),
        )

    def _running(self, cell: Cell) -> tuple[float, float]:
        """Bytes while the block runs that needs most, with its states and without."""
        degrees = cell.degrees
        several = cell.num_microbatches > 1
        key = (degrees.tp, cell.micro_batch, cell.zero_stage, degrees.dp, several, degrees.pp > 1)
        if key not in self._needs:
            working = self._least_activations(degrees.tp, cell.micro_batch)
            self._needs[key] = (float((self._alone(cell) + working).max()), float(working.max()))
        return self._needs[key]

    def parameters(self, tp: int) -> HeldParameters:
        """What every range of blocks holds at a tp degree."""
        return self._parameters(tp, trained=False)

    def trained(self, tp: int) -> HeldParameters:
        """The same of those that are not frozen."""
        return self._parameters(tp, trained=True)

    def _parameters(self, tp: int, *, trained: bool) -> HeldParameters:
        if (tp, trained) not in self._held:
            graph = self.model.graph(self.model.micro_batches[0], tp)
            every = all(p.trainable for kind in graph.kinds for p in kind.parameters)
            self._held[tp, trained] = (
                self.parameters(tp) if trained and every else self.find_held(graph, trained=trained)
            )
        return self._held[tp, trained]

    def find_held(self, graph: ModelGraph, *, trained: bool) -> HeldParameters:
        """The parameters of every range of a graph's blocks, or the trained ones."""
        return held_in_ranges(graph, trained=trained)

    def elements(self, tp: int, ranges: tuple[tuple[int, int], ...]) -> Elements:
        """What a rank with these ranges of blocks holds."""
        total, trained = self.parameters(tp), self.trained(tp)
        return Elements(
            total=total.of(ranges),
            trained=trained.of(ranges),
            largest=max(float(total.largest[i, j]) for i, j in ranges),
            largest_trained=max(float(trained.largest[i, j]) for i, j in ranges),
        )

    def moments(
        self, cell: Cell, kept: tuple[int, ...], arrives: Array, leaves: Array, first_bytes: Array
    ) -> tuple[tuple[Array, ...], tuple[tuple[Load, ...], ...]]:
        """Static bytes [n, n+1] at the moments of a step, and the loads of every stage.

        kept   in flight per stage;  arrives, leaves  [n] bytes over the cuts of each block
        first_bytes  [n] while the backward of a stage's first block runs, beyond other
                     micro-batches, at least

        The moments of memory/blocks.py, rank_memory: gradients come with the first backward, and
        what was sent over the cuts stays from each backward to the end of the step.
            more micro-batches than in flight   the last time that all are in flight
            all in flight at once               the last forward; the end of the first backward,
                                                when gradients come; the second backward
            always                              the last backward; the end
        """
        return self.moments_at(
            cell,
            kept,
            np.concatenate([[0.0], arrives[1:]])[:, None],
            _leaving(leaves)[None, :],
            first_bytes[:, None],
        )

    def moments_at(
        self,
        cell: Cell,
        kept: tuple[int, ...],
        arriving: Array,
        leaving: Array,
        first_bytes: Array,
    ) -> tuple[tuple[Array, ...], tuple[tuple[Load, ...], ...]]:
        """The same of stages between any two cuts: what crosses the cut before (a column) and
        behind them (a row), and what their first block needs."""
        micro = cell.num_microbatches
        crossing = arriving + leaving
        habits, piped = self.model.stack.behaviour, cell.degrees.pp > 1
        fixed, gradients = self._state_ranges(cell)
        if piped:
            incoming, outgoing = message_counts(self.model.stack, micro)
            fixed = fixed + incoming * arriving + outgoing * leaving
        own = 0.0 if habits.receive_buffers_per_microbatch else arriving
        sent = crossing * (piped and habits.sent_tensors_held_until_end)
        exchange = self._exchange(cell)
        statics: list[Array] = []
        known: dict[tuple[str, int], int] = {}

        def static(name: str, number: int) -> int:
            if (name, number) not in known:
                extra = {
                    "before": np.zeros_like(fixed),
                    "first": gradients + own + first_bytes,
                    "after": gradients + number * sent,
                    "end": gradients + number * sent + exchange,
                }[name]
                known[name, number] = len(statics)
                statics.append(np.ceil(fixed + extra))
            return known[name, number]

        def loads(k: int) -> tuple[Load, ...]:
            if cell.degrees.vpp > 1:
                return (
                    Load(in_flight=k, static=static("after", micro - k)),
                    Load(in_flight=0, static=static("end", micro), rises=False),
                )
            found = [Load(in_flight=0, static=static("end", micro), rises=False)]
            if micro > 1:
                found.append(Load(in_flight=1, static=static("after", micro - 1)))
            if micro > k:
                found.append(Load(in_flight=k, static=static("after", micro - k)))
                return tuple(found)
            found.append(Load(in_flight=k, static=static("before", 0)))
            found.append(Load(in_flight=k - 1, static=static("first", 0), rises=False))
            if k > 1:
                found.append(Load(in_flight=k - 1, static=static("after", 1)))
            return tuple(found)

        every = tuple(loads(k) for k in kept)
        return tuple(statics), every

    def crossing_bytes(self, cell: Cell, micro_batch: int, done: int) -> float:
        """Over one side of a stage at least: receive buffers, and what was sent for so many
        micro-batches that are done, in messages of micro-batches of that size."""
        degrees = cell.degrees
        if degrees.pp == 1:
            return 0.0
        key = (degrees.tp, micro_batch)
        if key not in self._cuts:
            graph = self.model.graph(micro_batch, degrees.tp)
            self._cuts[key] = crossings_of(graph).least
        habits = self.model.stack.behaviour
        messages = cell.num_microbatches if habits.receive_buffers_per_microbatch else 1
        return self._cuts[key] * (messages + max(0, done) * habits.sent_tensors_held_until_end)

    def states(self, cell: Cell, held: Elements) -> tuple[float, float]:
        """Bytes of parameters and optimizer states, and of gradients."""
        degrees = cell.degrees
        if degrees.pp == 1:
            # What FSDP2 gathers and sums goes with the blocks (CellTimes.chain).
            held = replace(held, largest=0.0, largest_trained=0.0)
        found = executor_static_bytes(
            held,
            stack=self.model.stack,
            precision=self.model.workload.precision,
            optimizer=self.model.workload.optimizer,
            zero_stage=cell.zero_stage,
            dp=degrees.dp,
            pp=degrees.pp,
        )
        return found.parameters + found.optimizer, found.gradients

    def _state_ranges(self, cell: Cell) -> tuple[Array, Array]:
        """[n, n+1] each: the states of a stage of blocks [i, j)."""
        degrees = cell.degrees
        several = cell.num_microbatches > 1
        key = (degrees.tp, cell.zero_stage, degrees.dp, several, degrees.pp > 1)
        if key not in self._ranges:
            held, trained = self.parameters(degrees.tp), self.trained(degrees.tp)
            found = of_each(
                lambda total, largest, own, widest: self.states(
                    cell,
                    Elements(total=total, trained=own, largest=largest, largest_trained=widest),
                ),
                *(held.count, held.largest, trained.count, trained.largest),
            )
            self._ranges[key] = (found[..., 0], found[..., 1])
        return self._ranges[key]

    def _exchange(self, cell: Cell) -> Array:
        """[n, n+1]: `exchange_bytes` of a stage of blocks [i, j)."""
        return self.exchange_bytes(cell, self.trained(cell.degrees.tp).count)

    def exchange_bytes(self, cell: Cell, total: Figures) -> Figures:
        """Bytes that come and go behind the last backward (memory/held.py)."""
        return exchange_bytes(total, zero_stage=cell.zero_stage, dp=cell.degrees.dp)

    def _alone(self, cell: Cell) -> Array:
        """[n] bytes of the states of each block alone; its gradients from the second backward."""
        degrees = cell.degrees
        several = cell.num_microbatches > 1
        key = (degrees.tp, cell.zero_stage, degrees.dp, several, degrees.pp > 1)
        if key not in self._singles:
            blocks = range(len(self.parameters(degrees.tp).count))
            alone = (self.elements(degrees.tp, ((block, block + 1),)) for block in blocks)
            states = [self.states(cell, held) for held in alone]
            self._singles[key] = np.asarray([f + (g if several else 0.0) for f, g in states])
        return self._singles[key]

    def _least_activations(self, tp: int, micro_batch: int) -> Array:
        """[n] bytes that running a block alone needs with the strategy that needs least; of a
        smaller micro-batch where that is too much already."""
        key = (tp, micro_batch)
        if key not in self._activations:
            smaller = [size for size in self.model.micro_batches if size < micro_batch]
            if smaller:
                least = self._least_activations(tp, smaller[-1])
                if least.max() > self.capacity_bytes:
                    return least
            chain = self.model.chain(micro_batch, tuple(range(tp)))
            self._activations[key] = chain.first_bytes[self.model.kinds(micro_batch, tp)]
        return self._activations[key]


def _leaving(leaves: Array) -> Array:
    """[n + 1] what a stage that ends before block j hands on; nothing where it is the last."""
    return np.concatenate([[0.0], leaves[:-1], [0.0]])


def edges(arrives: Array, leaves: Array, *, buffers_apart: bool, branched: bool = False) -> Array:
    """[n, n+1] per micro-batch, beyond what blocks [i, j) save with their inputs: what a stage
    hands on is kept, and its own inputs lie in the receive buffer where the stack keeps those
    apart; the chain's first block receives nothing (simulator/memory/blocks.py, stage_bytes).

    branched  blocks are counted with their outputs: what is beyond them is what the stage receives
    """
    if branched:
        received = np.zeros_like(arrives) if buffers_apart else np.concatenate([[0.0], arrives[1:]])
        return np.asarray(np.broadcast_to(received[:, None], (len(leaves), len(leaves) + 1)))
    apart = arrives.copy() if buffers_apart else np.zeros_like(arrives)
    apart[0] = arrives[0]
    return np.asarray(np.ceil(_leaving(leaves)[None, :] - apart[:, None]))


def in_flight(cell: Cell) -> tuple[int, ...]:
    """Micro-batches that each virtual stage keeps when its rank keeps most, for the last time (for
    the first, where the backward is split: those before their I, of which all is kept)."""
    held = held_by_ranks(
        cell.schedule, cell.degrees.pp, cell.num_microbatches, cell.degrees.vpp, until_input=True
    )
    found = [0] * cell.degrees.num_stages
    for rank, stages in enumerate(held):
        for count, stage in zip(stages, cell.stages_of(rank), strict=True):
            found[stage] = count
    return tuple(found)
