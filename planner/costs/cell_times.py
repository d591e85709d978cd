"""Seconds of a cell's blocks at its ranks, and of the messages between its stages."""

from __future__ import annotations

import numpy as np

from planner.cell import Cell
from planner.chain.problem import Array, BlockCosts
from planner.costs.chain_costs import ChainCosts, beside_units
from planner.costs.placement import Places
from planner.costs.priced_model import PricedModel
from simulator.traced.block_cost import BlockCost
from simulator.traced.comm_cost import price_collective
from simulator.traced.sharded_units import unit_buffers
from simulator.traced.slowest_rank import slowest_rank
from simulator.traced.stage_cost import copy_seconds, gather_seconds, missing_overhead


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
        degrees = cell.degrees
        place = self._places.of(cell, rank)[:2]
        key: tuple[object, ...] = (cell.micro_batch, degrees.tp, place)
        if key not in self._chains:
            self._chains[key] = self._model.chain(cell.micro_batch, degrees.group("tp", pp=rank))
        if degrees.pp > 1 or cell.zero_stage < 2 or degrees.dp == 1:
            return self._chains[key]
        sharded = (*key, cell.zero_stage, degrees.dp, cell.num_microbatches > 1)
        if sharded not in self._chains:
            buffers = unit_buffers(
                self._model.graph(cell.micro_batch, degrees.tp),
                zero_stage=cell.zero_stage,
                dp=degrees.dp,
                num_microbatches=cell.num_microbatches,
                sizes=self._model.stack.bytes_of(self._model.workload.precision),
                on_cpu=self._model.cluster.device_at(0).type == "cpu",
            )
            self._chains[sharded] = beside_units(self._chains[key], buffers)
        return self._chains[sharded]

    def gathers(self, cell: Cell, rank: int) -> tuple[Array, Array]:
        """[K, S] exposed seconds of gathering sharded parameters, and of a CPU's copies of them, in
        forward and in backward. The gathering is split evenly, as the simulator does."""
        degrees = cell.degrees
        chain = self.chain(cell, rank)
        group = degrees.group("dp", pp=rank)
        device = self._model.cluster.device_at(group[0])
        sizes = self._model.stack.bytes_of(self._model.workload.precision)
        copied = device.type == "cpu" and sizes.working_copy_bytes > 0
        if not copied and (cell.zero_stage < 2 or len(group) < 2):
            return np.zeros_like(chain.backward_s), np.zeros_like(chain.backward_s)
        key = (
            (cell.micro_batch, cell.num_microbatches, degrees.tp, degrees.pp > 1, cell.zero_stage),
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
                    pipelined=degrees.pp > 1,
                    sharing=degrees.tp,
                )
                forward, backward = copy_seconds(
                    cost,
                    sizes,
                    device,
                    sharded=cell.zero_stage >= 2 and degrees.dp > 1,
                    pipelined=degrees.pp > 1,
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
        degrees = cell.degrees
        kinds = [row[0] for row in self.chain(cell, rank).blocks]
        measured = self._model.cluster.device_at(degrees.rank(pp=rank)).measurements
        # A stage carries a mean over those of its blocks that were measured.
        alone = [
            missing_overhead(
                [kind],
                pp=degrees.pp,
                vpp=degrees.vpp,
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
        degrees = cell.degrees
        work_s = 0.0
        if degrees.pp == 1:
            blocks = self.chain(cell, rank).blocks
            kinds = self._model.kinds(cell.micro_batch, degrees.tp)
            work_s = cell.num_microbatches * sum(blocks[kind][0].work_s for kind in kinds)
        return slowest_rank(
            self._model.cluster,
            degrees.rank(pp=rank),
            degrees.num_devices,
            pipelined=degrees.pp > 1,
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
        degrees = cell.degrees
        if stage == 0:
            return 0.0
        source, target = cell.rank_of(stage - 1), cell.rank_of(stage)
        if source == target:
            return 0.0
        devices = (degrees.rank(pp=source), degrees.rank(pp=target))
        key = (degrees.tp, degrees.dp, source, target, size_bytes)
        if key not in self._sends:
            cost = price_collective(
                "send", size_bytes, devices, self._model.cluster, sharing=degrees.tp
            )
            self._sends[key] = cost.time_s
        return self._sends[key]
