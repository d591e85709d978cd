"""What the lower bound of a cell needs: the least figures over all places on the cluster."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cell import Cell
from planner.chain.problem import Array
from planner.costs.bound import ChainTotals, least_busiest_s
from planner.costs.cell_memory import CellMemory
from planner.costs.cell_tails import CellTails
from planner.costs.cell_times import CellTimes
from planner.costs.chain_costs import crossings_of
from planner.costs.placement import Places
from planner.costs.priced_model import PricedModel
from profiles.model.graph import ModelGraph


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
        self._leasts: dict[tuple[object, ...], _Least] = {}
        self._busiest: dict[tuple[object, ...], float] = {}

    def of(self, cell: Cell) -> ChainTotals:
        """What the bound of a cell needs; the fastest of the cluster's places for everything."""
        graph = self._model.graph(cell.micro_batch, cell.tp)
        least = self._least(cell)
        times = least.seconds.min(axis=1)[[ref.kind for ref in graph.chain]]
        beside = min(sum(self._times.beside(cell, r)) for r in self._places.distinct(cell))
        return ChainTotals(
            total_s=float(times.sum()) + cell.num_stages * beside,
            busiest_s=self._busiest_s(cell, times, graph) + cell.vpp * beside,
            last_s=float(times[-1]) + beside,
            send_s=least.crossing_s,
            # Blocks with branches may stand in another order, and another one first.
            tail_s=least.any_tail_s if graph.branches else least.tail_s + self._tails.ties_s(cell),
            any_tail_s=least.any_tail_s,
        )

    def _least(self, cell: Cell) -> _Least:
        """The least figures over the cluster's places, whatever the schedule."""
        key = (cell.micro_batch, cell.tp, cell.pp, cell.dp, cell.zero_stage)
        if key not in self._leasts:
            places = self._places.distinct(cell)
            single, trained = (
                np.diagonal(held.count, offset=1)
                for held in (self._memory.parameters(cell.tp), self._memory.trained(cell.tp))
            )
            # No block has fewer trained parameters, nor fewer frozen ones beside them.
            fewest = float(trained.min())
            least = fewest + float((single - trained).min())
            crossing = 0.0
            if cell.pp > 1:
                size = crossings_of(self._model.graph(cell.micro_batch, cell.tp)).least
                # The last is the way back to rank 0, which only interleaved stages take.
                crossing = 2 * min(self._times.send_s(cell, s, size) for s in range(1, cell.pp + 1))
            self._leasts[key] = _Least(
                seconds=np.min([self._times.seconds(cell, rank) for rank in places], axis=0),
                crossing_s=crossing,
                tail_s=self._tails.of_count(cell, 0, float(single[0]), float(trained[0])),
                any_tail_s=min(self._tails.of_count(cell, rank, least, fewest) for rank in places),
            )
        return self._leasts[key]

    def _busiest_s(self, cell: Cell, times: Array, graph: ModelGraph) -> float:
        """R of `planner.costs.bound`; `times` [n] of the blocks at the fastest place."""
        sharded = (cell.dp, cell.zero_stage) if cell.zero_stage > 1 else (0, 0)
        slowest = self._times.slowest(cell, 0)
        key = (cell.tp, cell.micro_batch, cell.pp, *sharded, slowest)
        if key not in self._busiest:
            kinds = [ref.kind for ref in graph.chain]
            self._busiest[key] = least_busiest_s(times, kinds, cell.pp)
        return self._busiest[key]
