"""The calls of an op graph in a form that the executor can replay.

A program is a list of calls and repeats in order; a repeat replays the calls of a stored block on
other weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright_placements.op_graph.op_graph import OpGraph


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """Placeholder for a tensor in the arguments of a call, by its number."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCall:
    """A call of the model's code, with slots in place of tensors.

    has_gradient  whether gradients were enabled
    is_in_place   whether it changes its first argument, which is then its output
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    has_gradient: bool
    is_in_place: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A block with the same calls as the stored one at `held`.

    inputs, outputs   (tensor of the stored block, tensor of this block) pairs
    """

    path: str
    held: str
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An op graph with its calls.

    steps   op numbers and repeats in order of execution
    spans   path of a stored block -> its first op and the one after its last
    origins tensor that no op makes -> (`parameter`, `buffer`, `argument` or `target`, its name)
    outputs the model's output tensors, -1 for one that no op makes
    """

    graph: OpGraph
    calls: tuple[OpCall, ...]
    steps: tuple[int | Repeat, ...]
    spans: Mapping[str, tuple[int, int]]
    origins: Mapping[int, tuple[str, str]]
    outputs: tuple[int, ...]
