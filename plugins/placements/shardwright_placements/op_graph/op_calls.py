"""The calls behind an op graph, as they can be made again: what the executor replays.

A model whose repeated blocks are held once is a program: calls in order, and repeats that make the
calls of the block that is held again, on the repeat's own weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright_placements.op_graph.op_graph import OpGraph


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """Stands in a call's arguments for the tensor of this number."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCall:
    """A call as the model's code makes it: function and arguments, slots in place of tensors.

    has_gradient  whether it was made with gradients enabled;  is_in_place  whether it changes its
    first argument, which is then its output
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    has_gradient: bool
    is_in_place: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A block that runs as the one at `held` does.

    inputs   (tensor that the held block reads, tensor that this one reads in its place)
    outputs  (tensor that the held block makes, its counterpart here)
    """

    path: str
    held: str
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An op graph with its calls.

    steps   op numbers and repeats in order of execution
    spans   path of a held block -> its first op and the one after its last
    origins tensor that no op makes -> (`parameter`, `buffer`, `argument` or `target`, its name)
    outputs the tensors that the model returns, -1 for one that no op made
    """

    graph: OpGraph
    calls: tuple[OpCall, ...]
    steps: tuple[int | Repeat, ...]
    spans: Mapping[str, tuple[int, int]]
    origins: Mapping[int, tuple[str, str]]
    outputs: tuple[int, ...]
