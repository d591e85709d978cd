"""Leaves of nested arguments and results, as torch.utils._pytree but faster.

Skips pytree's lookups if all containers are plain tuples, lists and dictionaries. A call of a unit
in a stage costs 1 us instead of 10 (two cores, torch 2.13, 2026-11-23; two stages of a GoogLeNet of
58 units take 19 ms instead of 23 to 27, the whole model 16).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

_PLAIN = frozenset({Tensor, nn.Parameter, int, float, bool, str, type(None)})


def leaves_of(given: Any) -> list[Any]:
    """`tree_leaves`."""
    kind = type(given)
    if kind in _PLAIN:
        return [given]
    if kind is tuple or kind is list:
        return [leaf for x in given for leaf in leaves_of(x)]
    if kind is dict:
        return [leaf for x in given.values() for leaf in leaves_of(x)]
    return tree_leaves(given)


def mapped(change: Callable[[Any], Any], given: Any) -> Any:
    """`tree_map`."""
    kind = type(given)
    if kind in _PLAIN:
        return change(given)
    if kind is tuple:
        return tuple([mapped(change, x) for x in given])
    if kind is list:
        return [mapped(change, x) for x in given]
    if kind is dict:
        return {key: mapped(change, x) for key, x in given.items()}
    return tree_map(change, given)
