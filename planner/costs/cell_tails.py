"""What a cell's ranks do after their last backward: exchange gradients, run the optimizer."""

from __future__ import annotations

from planner.cell import Cell
from planner.chain.problem import Array
from planner.costs.cell_memory import CellMemory
from planner.costs.chain_costs import of_each
from planner.costs.placement import Places, dp_group, first_device
from planner.costs.priced_model import PricedModel
from planner.costs.split_problem import Ranges
from simulator.traced.step_tail import Held, Tail, Tie


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
        key = (place[0], place[2], cell.tp, cell.pp > 1, cell.zero_stage, count, trained)
        if key not in self._known:
            tail = self._price(cell, rank, int(trained), int(count - trained))
            on_cpu = self._on_cpu(cell, rank)
            self._known[key] = tail.data_parallel_s if on_cpu else tail.total_s
        return self._known[key]

    def of_ranges(self, cell: Cell, rank: int) -> Array:
        """[n, n+1] seconds of a stage of blocks [i, j)."""
        ties_s = self.ties_s(cell)
        place = self._places.of(cell, rank)
        key = (place, cell.tp, cell.dp, cell.pp > 1, cell.zero_stage, ties_s)
        if key not in self._ranges:
            found = of_each(
                lambda count, trained: self.of_count(cell, rank, count, trained),
                self._memory.parameters(cell.tp).count,
                self._memory.trained(cell.tp).count,
            )
            if self._on_cpu(cell, rank):
                found = found + self._cpu_optimizer(cell, rank)
            found[0, :-1] += ties_s
            found[1:, -1] += ties_s
            self._ranges[key] = found
        return self._ranges[key]

    def of_rank(self, cell: Cell, rank: int, ranges: Ranges) -> float:
        """Seconds of a rank that holds several ranges of blocks."""
        trained = self._memory.trained(cell.tp)
        count = self._memory.parameters(cell.tp).of(ranges)
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
        ends = (cell.rank_of(0), cell.rank_of(cell.num_stages - 1))
        sizes = self._memory.trained(cell.tp).at_ends if ends[0] != ends[1] else ()
        devices = tuple(first_device(cell, rank) for rank in ends)
        return sum(
            self._model.tie_s(
                Tie(elements=size, devices=devices),
                shards=cell.dp if cell.zero_stage >= 2 else 1,
                tp=cell.tp,
            )
            for size in sizes
        )

    def _on_cpu(self, cell: Cell, rank: int) -> bool:
        return self._model.cluster.device_at(first_device(cell, rank)).type == "cpu"

    def _cpu_optimizer(self, cell: Cell, rank: int) -> Array:
        """[n, n+1] seconds of the optimizer on a CPU."""
        return self._memory.trained(cell.tp).ranged(
            lambda size: self._price(cell, rank, size).optimizer_s
        )

    def _price(self, cell: Cell, rank: int, trained: int, frozen: int = 0) -> Tail:
        return self._model.tail(
            Held(trained=(trained,), frozen=frozen),
            dp_group(cell, rank),
            zero_stage=cell.zero_stage,
            tp=cell.tp,
            pipelined=cell.pp > 1,
        )
