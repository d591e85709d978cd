"""The cheapest ways to run one stage: labels (saved, transient, time) with dominance.

A stage is a sequence of blocks; a label is a choice of one strategy per block, of which only what
the future can see is kept: bytes saved per micro-batch, the largest transient, backward seconds
(forward seconds do not depend on the strategy) and the last strategy. One label dominates another
that is no better in any of these; with resharding, a label must also win after paying for the
change to the other's last strategy, which suffices because resharding obeys the triangle
inequality. Labels grow block by block, so all stages that begin with the same kinds share them:
a chain of equal blocks costs one growth, not one per start.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from planner.problem import Array, BlockCosts

Index = npt.NDArray[np.intp]


@dataclass(slots=True, kw_only=True)
class LabelSet:
    """The undominated labels of one sequence of kinds, cheapest first.

    parent  label of the sequence without its last block that each grew from; `shorter` holds it
    """

    saved_bytes: Array
    transient_bytes: Array
    backward_s: Array
    last: Index
    parent: Index
    shorter: LabelSet | None
    longer: dict[int, LabelSet] = field(default_factory=dict)

    def cheapest(self, budget_bytes: float, in_flight: int) -> int:
        """Index of the fastest label within the budget; -1 where none fits."""
        within = in_flight * self.saved_bytes + self.transient_bytes <= budget_bytes
        first = int(within.argmax()) if within.size else 0
        return first if within.size and within[first] else -1

    def least_bytes(self, in_flight: int) -> float:
        """Bytes of the label that needs least; infinite where there is none."""
        need = in_flight * self.saved_bytes + self.transient_bytes
        return float(need.min(initial=np.inf))

    def strategies(self, label: int) -> tuple[int, ...]:
        """The strategy of each block of the sequence, in chain order."""
        chosen: list[int] = []
        node: LabelSet = self
        while node.shorter is not None:
            chosen.append(int(node.last[label]))
            label, node = int(node.parent[label]), node.shorter
        return tuple(reversed(chosen))


class StageLabels:
    """Label sets of all sequences of kinds that are asked for, on one type of device."""

    def __init__(self, kinds: tuple[int, ...], costs: BlockCosts, reshard_s: Array) -> None:
        self._kinds = kinds
        self._costs = costs
        self._reshard = reshard_s
        self._position = {kind: index for index, kind in reversed(list(enumerate(kinds)))}
        zero, none = np.zeros(1), np.full(1, -1, dtype=np.intp)
        self._root = LabelSet(
            saved_bytes=zero,
            transient_bytes=zero,
            backward_s=zero,
            last=none,
            parent=none,
            shorter=None,
        )

    def of(self, start: int, end: int) -> LabelSet:
        """The labels of blocks [start, end)."""
        node = self._root
        for kind in self._kinds[start:end]:
            known = node.longer.get(kind)
            if known is None:
                known = node.longer[kind] = self._grow(node, self._position[kind])
            node = known
        return node

    def _grow(self, node: LabelSet, block: int) -> LabelSet:
        count, options = node.backward_s.size, self._costs.backward_s.shape[1]
        parent = np.repeat(np.arange(count), options)
        last = np.tile(np.arange(options), count)
        saved = node.saved_bytes[parent] + self._costs.saved_bytes[block, last]
        transient = np.maximum(
            node.transient_bytes[parent], self._costs.transient_bytes[block, last]
        )
        time = node.backward_s[parent] + self._costs.backward_s[block, last]
        if node.shorter is not None:
            time = time + self._reshard[node.last[parent], last]
        keep = _undominated(saved, transient, time, last, self._reshard)
        return LabelSet(
            saved_bytes=saved[keep],
            transient_bytes=transient[keep],
            backward_s=time[keep],
            last=last[keep],
            parent=parent[keep],
            shorter=node,
        )


def _undominated(saved: Array, transient: Array, time: Array, last: Index, reshard: Array) -> Index:
    """Indices of the labels that no other dominates, by (time, saved, transient); ties keep the
    first in that order."""
    order = np.lexsort((last, transient, saved, time))
    if reshard.any():
        return _undominated_resharding(order, saved, transient, time, last, reshard)
    saved, transient = saved[order], transient[order]
    keep = np.zeros(order.size, dtype=bool)
    # Few distinct transients exist (one per kind and strategy): one running minimum for each.
    for level in np.unique(transient):
        least = np.minimum.accumulate(np.where(transient <= level, saved, np.inf))
        ahead = np.concatenate([[np.inf], least[:-1]])
        keep |= (transient == level) & (saved < ahead)
    return order[keep]


def _undominated_resharding(
    order: Index, saved: Array, transient: Array, time: Array, last: Index, reshard: Array
) -> Index:
    kept: list[int] = []
    while order.size:
        best = order[0]
        kept.append(int(best))
        rest = order[1:]
        worse = (saved[rest] >= saved[best]) & (transient[rest] >= transient[best])
        worse &= time[rest] >= time[best] + reshard[last[best], last[rest]]
        order = rest[~worse]
    return np.asarray(kept, dtype=np.intp)
