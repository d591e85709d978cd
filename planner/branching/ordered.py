"""A traced model whose blocks stand in another order."""

from __future__ import annotations

from planner.traced import Traced
from profiles.model.graph import ModelGraph
from profiles.model.tracing.block_order import in_order


class Ordered:
    """As the traced model it is made of, its chains in the order of `entries`."""

    def __init__(self, traced: Traced, entries: tuple[str, ...]) -> None:
        self._traced, self._entries = traced, entries
        self.name = traced.name
        self.content_hash = traced.content_hash
        self.tp_degrees = traced.tp_degrees
        self.tensor_parallel = traced.tensor_parallel
        self.tied_parameters = traced.tied_parameters
        self.why_not_tensor_parallel = traced.why_not_tensor_parallel
        self._made: dict[tuple[int, int], ModelGraph] = {}

    def at(self, micro_batch: int, tp: int = 1) -> ModelGraph:
        """The graph for this micro-batch size and tp degree, in that order."""
        key = (micro_batch, tp)
        if key not in self._made:
            self._made[key] = in_order(self._traced.at(micro_batch, tp), self._entries)
        return self._made[key]
