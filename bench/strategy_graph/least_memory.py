"""A choice that needs little memory, whatever it costs: the search never ends without an answer."""

from __future__ import annotations

import numpy as np

from bench.strategy_graph.core import Core
from bench.strategy_graph.dual_ascent import overfull_moments
from bench.strategy_graph.dual_kernels import reprice
from bench.strategy_graph.memory import Memory, load, window
from planner.op_sharding.strategy_graph import Ints

ROUNDS = 300


def least_memory_choice(core: Core, memory: Memory, moments: Ints) -> Ints | None:
    """The first choice met that keeps within memory; None where none was met.

    Multiplicative weights (Arora, Hazan and Kale 2012): each node takes what uses least at the
    moments' weights, weights grow where memory is short. `moments` is where it looks at first.
    """
    sizes = np.diff(core.node_start)
    weight = np.ones(len(moments))
    for turn in range(ROUNDS):
        seen = window(memory, moments, sizes)
        used = np.zeros_like(core.cost)
        reprice(weight, core.node_start, seen.low, seen.high, seen.start, seen.usage, used)
        # Of equal usages the cheapest: a part of the usage too small to turn any other order.
        spread = max(float(np.ptp(core.cost)), 1.0)
        used += core.cost / spread * 1e-12 * max(float(used.max(initial=0.0)), 1.0)
        choice = np.array(
            [int(part.argmin()) for part in np.split(used, core.node_start[1:-1])], dtype=np.int64
        )
        over = overfull_moments(memory, choice, 16)
        if not len(over):
            return choice
        share = load(memory, choice)[moments] / memory.limit
        weight *= np.exp(np.clip(share - 1.0, -1.0, 1.0) * 8.0 / np.sqrt(1.0 + turn))
        weight /= weight.max(initial=1e-300)
        new = np.union1d(moments, over)
        grown = np.full(len(new), 0.5)
        grown[np.searchsorted(new, moments)] = weight
        moments, weight = new, grown
    return None
