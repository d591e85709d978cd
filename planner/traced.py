"""What the planner needs of a traced model."""

from __future__ import annotations

from typing import Protocol

from profiles.model.graph import ModelGraph


class Traced(Protocol):
    """As profiles.model.tracing.traced.TracedModel is."""

    name: str
    content_hash: str
    tp_degrees: tuple[int, ...]
    tensor_parallel: tuple[tuple[str, str], ...]
    tied_parameters: tuple[tuple[str, ...], ...]
    why_not_tensor_parallel: str

    def at(self, micro_batch: int, tp: int = 1) -> ModelGraph:
        """The graph of a micro-batch as one of `tp` ranks runs it."""
