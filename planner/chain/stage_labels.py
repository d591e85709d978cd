"""The cheapest ways to run one stage: labels (saved, rise, time) with dominance.

A stage is a sequence of blocks, and a label is a choice of one strategy per block, reduced to three
values: bytes saved per micro-batch, rise of the peak above them, and backward seconds (forward
seconds do not depend on the strategy). A label dominates another that is no better in any of these.
Labels are extended block by block, so all stages that begin with the same kinds share them: a chain
of equal blocks is extended once, not once per start.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.chain.ideals import Index
from planner.chain.problem import Array, BlockCosts, Load


@dataclass(slots=True, kw_only=True)
class LabelSet:
    """The undominated labels of one sequence of kinds, cheapest first.

    parent  index in `shorter` (the set without the last block) of the label that each one extends
    """

    saved_bytes: Array
    rise_bytes: Array
    backward_s: Array
    last: Index
    parent: Index
    shorter: LabelSet | None
    longer: dict[int, LabelSet] = field(default_factory=dict)

    def cheapest(self, budgets: Sequence[tuple[Load, float]]) -> int:
        """Index of the fastest label within the budgets of all loads; -1 for none."""
        within = np.ones(self.saved_bytes.size, dtype=bool)
        for load, budget_bytes in budgets:
            need = load.in_flight * self.saved_bytes
            within &= (need + self.rise_bytes if load.rises else need) <= budget_bytes
        first = int(within.argmax()) if within.size else 0
        return first if within.size and within[first] else -1

    def strategies(self, label: int) -> tuple[int, ...]:
        """The strategy of each block of the sequence, in chain order."""
        chosen: list[int] = []
        node: LabelSet = self
        while node.shorter is not None:
            chosen.append(int(node.last[label]))
            label, node = int(node.parent[label]), node.shorter
        return tuple(reversed(chosen))


class StageLabels:
    """Label sets of the requested sequences of kinds, on one type of device.

    fastest_only  each set has one label, with the fastest strategy of every block: the best label
                  if it fits. The number of all labels may double with every unequal block.
    """

    def __init__(
        self, kinds: tuple[int, ...], costs: BlockCosts, *, fastest_only: bool = False
    ) -> None:
        self._costs = costs
        self._position = {kind: index for index, kind in reversed(list(enumerate(kinds)))}
        order = np.lexsort((costs.transient_bytes, costs.saved_bytes, costs.backward_s))
        self._options = order[:, :1] if fastest_only else np.sort(order)
        zero, none = np.zeros(1), np.full(1, -1, dtype=np.intp)
        self._root = LabelSet(
            saved_bytes=zero,
            rise_bytes=zero,
            backward_s=zero,
            last=none,
            parent=none,
            shorter=None,
        )

    def of(self, kinds: Sequence[int]) -> LabelSet:
        """The labels of a sequence of blocks of these kinds."""
        node = self._root
        for kind in kinds:
            known = node.longer.get(kind)
            if known is None:
                known = node.longer[kind] = self._grow(node, self._position[kind])
            node = known
        return node

    def _grow(self, node: LabelSet, block: int) -> LabelSet:
        count, options = node.backward_s.size, self._options[block]
        parent = np.repeat(np.arange(count), options.size)
        last = np.tile(options, count)
        costs = self._costs
        kept = costs.saved_bytes if node.shorter else costs.first_saved_bytes
        saved = node.saved_bytes[parent] + kept[block, last]
        running = costs.transient_bytes if node.shorter else costs.first_transient_bytes
        rise = np.maximum(
            node.rise_bytes[parent] - costs.saved_bytes[block, last], running[block, last]
        )
        time = node.backward_s[parent] + self._costs.backward_s[block, last]
        keep = _undominated(saved, rise, time, last)
        return LabelSet(
            saved_bytes=saved[keep],
            rise_bytes=rise[keep],
            backward_s=time[keep],
            last=last[keep],
            parent=parent[keep],
            shorter=node,
        )


def _undominated(saved: Array, rise: Array, time: Array, last: Index) -> Index:
    """Indices of the labels that no other dominates, by (time, saved, rise); ties keep the first
    in that order."""
    order = np.lexsort((last, rise, saved, time))
    # Labels come in the order of time, so only dominance in (saved, rise) is left to check.
    width, height = saved[order], rise[order]
    return order[_staircase(width, height)]


def _staircase(width: Array, height: Array) -> Index:
    """Positions whose width is below that of every earlier position of equal or lower height. The
    positions so far form a staircase of rising widths and falling heights."""
    steps: list[float] = []
    heights: list[float] = []
    kept: list[int] = []
    for index, (w, h) in enumerate(zip(width.tolist(), height.tolist(), strict=True)):
        at = bisect_right(steps, w)
        if at and heights[at - 1] <= h:
            continue
        kept.append(index)
        start = end = bisect_left(steps, w)
        while end < len(steps) and heights[end] >= h:
            end += 1
        steps[start:end] = [w]
        heights[start:end] = [h]
    return np.asarray(kept, dtype=np.intp)
