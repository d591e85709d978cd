"""Shortest paths through the layers of a split schedule (planner/split_layers.py).

weights   per rank [features, paths] how much each feature counts in each known path
asked     [paths, columns] what plans are measured by: each column a weighted mean of the paths;
          paths that came later than the column count nothing in it
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.problem import Array
from planner.split_layers import Layer


def costs_of(layer: Layer, weights: Array, asked: Array) -> Array:
    """[ways, columns] what each way of a rank adds."""
    return np.asarray(layer.features @ (weights[:, : len(asked)] @ asked))


def completions(layers: Sequence[Layer], weights: Sequence[Array], asked: Array) -> list[Array]:
    """Per rank, and behind the last one, [states before it, columns] the least of what is to
    come."""
    rest = [np.zeros((int(layers[-1].target.max()) + 1, asked.shape[1]))]
    for layer, weight in zip(layers[::-1], weights[::-1], strict=True):
        cost = costs_of(layer, weight, asked) + rest[-1][layer.target]
        rest.append(np.minimum.reduceat(cost, layer.starts[:-1], axis=0))
    return rest[::-1]


def shortest(
    layers: Sequence[Layer], weights: Sequence[Array], weighting: Array
) -> tuple[float, list[int]]:
    """The least weighted mean of the paths over all plans, and the plan: a way of each rank."""
    asked = weighting[:, None]
    rest = completions(layers, weights, asked)
    state, ways = 0, []
    for rank, layer in enumerate(layers):
        here = slice(layer.starts[state], layer.starts[state + 1])
        cost = layer.features[here] @ (weights[rank][:, : len(asked)] @ weighting)
        way = layer.starts[state] + int(np.argmin(cost + rest[rank + 1][layer.target[here], 0]))
        ways.append(int(way))
        state = int(layer.target[way])
    return float(rest[0][0, 0]), ways


def through(layers: Sequence[Layer], weights: Sequence[Array], asked: Array) -> list[Array]:
    """Per rank [ways] the least of any plan that takes the way, by the column for which that is
    most."""
    rest = completions(layers, weights, asked)
    spent = np.zeros((1, asked.shape[1]))
    found = []
    for rank, layer in enumerate(layers):
        after = costs_of(layer, weights[rank], asked)
        after += np.repeat(spent, np.diff(layer.starts), axis=0)
        found.append((after + rest[rank + 1][layer.target]).max(axis=1))
        order = np.argsort(layer.target, kind="stable")
        edges = np.searchsorted(layer.target[order], np.arange(len(rest[rank + 1])))
        spent = np.minimum.reduceat(after[order], edges, axis=0)
    return found


def least_worst(layers: Sequence[Layer], lengths: Sequence[Array]) -> list[Array]:
    """Per rank, and behind the last one, [states before it] the least, over what is to come, of the
    worst of its ways; `lengths` [ways] of each rank."""
    rest = [np.zeros(int(layers[-1].target.max()) + 1)]
    for layer, length in zip(layers[::-1], lengths[::-1], strict=True):
        worst = np.maximum(length, rest[-1][layer.target])
        rest.append(np.minimum.reduceat(worst, layer.starts[:-1]))
    return rest[::-1]
