"""A proved lower bound: memory priced at every moment, pairs decoupled by messages.

For any prices >= 0 and any messages the value is below the cost of every allowed choice
(Lagrangian and reparametrisation duality); the ascent makes it as high as the linear relaxation of
the problem allows. Messages: `dual_kernels.sweep`. Prices: subgradient steps towards a level that
moves with success (Brannlund, Kiwiel and Lindberg 1995), from the memory of the sweep's rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.intra_op.contraction import Floats
from planner.intra_op.core import Core
from planner.intra_op.dual_kernels import bound_of, overload, reprice, sweep
from planner.intra_op.memory import Memory, Window, load, window
from planner.intra_op.strategy_graph import Ints

MOST_MOMENTS = 600
"""How many moments the window may hold: more make each step slower."""


@dataclass(slots=True, kw_only=True)
class Dual:
    """The state of the ascent; `bound` and `prices` are the best so far."""

    core: Core
    memory: Memory
    window: Window
    node: Floats
    message: Floats
    price: Floats
    choice: Ints
    bound: float
    best_price: Floats
    best_message: Floats
    level_step: float
    direction: Floats
    since_better: int = 0
    sweeps: int = 0


def start(core: Core, memory: Memory) -> Dual:
    """The ascent's beginning: no prices, no messages, a few moments spread over time."""
    count = len(memory.decided)
    moments = np.unique(np.linspace(0, max(count - 1, 0), min(count, 64)).astype(np.int64))
    if count == 0:
        moments = np.zeros(0, dtype=np.int64)
    sizes = np.diff(core.node_start)
    seen = window(memory, moments, sizes)
    messages = int(sum(sizes[core.arc_head[core.arc_reverse]].tolist()))
    return Dual(
        core=core,
        memory=memory,
        window=seen,
        node=core.cost.copy(),
        message=np.zeros(messages),
        price=np.zeros(len(moments)),
        choice=np.zeros(core.nodes, dtype=np.int64),
        bound=-np.inf,
        best_price=np.zeros(len(moments)),
        best_message=np.zeros(messages),
        level_step=0.0,
        direction=np.zeros(len(moments)),
    )


def look_at(dual: Dual, moments: Ints) -> None:
    """Adds moments to the window, at price 0."""
    old = dual.window.moments
    new = np.union1d(old, moments)
    if len(new) == len(old):
        return
    place = np.searchsorted(new, old)
    for name in ("price", "best_price", "direction"):
        grown = np.zeros(len(new))
        grown[place] = getattr(dual, name)
        setattr(dual, name, grown)
    dual.window = window(dual.memory, new, np.diff(dual.core.node_start))


def overfull_moments(memory: Memory, choice: Ints, most: int) -> Ints:
    """The worst moments of a choice that needs too much memory: the peak of each overfull run."""
    over = load(memory, choice) - memory.limit
    if not len(over) or over.max() <= 0:
        return np.zeros(0, dtype=np.int64)
    inside = over > 0
    runs = np.flatnonzero(np.diff(np.concatenate([[0], inside.astype(np.int8), [0]])))
    peaks = [a + int(over[a:b].argmax()) for a, b in zip(runs[::2], runs[1::2], strict=True)]
    peaks.sort(key=lambda m: -over[m])
    return np.array(peaks[:most], dtype=np.int64)


def ascend(dual: Dual, sweeps: int) -> None:
    """Some more sweeps, each followed by a change of prices."""
    core = dual.core
    for _ in range(sweeps):
        dual.sweeps += 1
        value = 0.0
        for forward in (True, False):
            value = sweep(
                forward, core.node_start, core.arc_start, core.arc_head, core.arc_table,
                core.arc_reverse, core.arc_message, core.tables, dual.node, dual.message,
                dual.choice,
            )  # fmt: skip
        value += core.constant - float(dual.price @ dual.window.capacity)
        if dual.level_step == 0.0:
            dual.level_step = 0.01 * max(abs(value), 1.0)
        if value > dual.bound:
            if value > dual.bound + 0.5 * dual.level_step:
                dual.level_step *= 1.1
            dual.bound = value
            dual.best_price = dual.price.copy()
            dual.best_message = dual.message.copy()
            dual.since_better = 0
        else:
            dual.since_better += 1
            if dual.since_better >= 12:
                dual.level_step *= 0.7
                dual.since_better = 0
        if dual.sweeps < 20:
            continue
        if len(dual.window.moments) < MOST_MOMENTS and (dual.sweeps < 200 or dual.sweeps % 10 == 0):
            look_at(dual, overfull_moments(dual.memory, dual.choice, 4))
        _change_prices(dual, value)


def _change_prices(dual: Dual, value: float) -> None:
    seen = dual.window
    over = overload(dual.choice, seen.capacity, seen.low, seen.high, seen.start, seen.usage)
    over[(dual.price <= 0) & (over < 0)] = 0.0
    direction = 0.6 * dual.direction + over
    dual.direction = direction
    norm = float(direction @ direction)
    if norm <= 0:
        return
    step = (max(dual.bound - value, 0.0) + dual.level_step) / norm
    price = np.maximum(dual.price + step * direction, 0.0)
    reprice(
        price - dual.price, dual.core.node_start, seen.low, seen.high, seen.start, seen.usage,
        dual.node,
    )  # fmt: skip
    dual.price = price


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A bound that was computed from scratch."""

    bound: float
    """Below the cost of every allowed choice, rounding errors allowed for."""
    through: Floats
    """By strategy: choosing it costs at least `bound` plus this."""


def prove(dual: Dual) -> Proof:
    """The bound of the best prices and messages, evaluated anew, less what rounding may add."""
    core, seen = dual.core, dual.window
    priced = core.cost.copy()
    reprice(dual.best_price, core.node_start, seen.low, seen.high, seen.start, seen.usage, priced)
    through = np.empty_like(priced)
    value, size = bound_of(
        core.node_start, core.arc_start, core.arc_head, core.arc_table, core.arc_reverse,
        core.arc_message, core.tables, priced, dual.best_message, through,
    )  # fmt: skip
    paid = float(dual.best_price @ seen.capacity)
    # Each of the sums has fewer than 2**20 terms in a row: the relative error of float64 sums is
    # below 2**20 * 2**-53 of the sum of sizes; twice that is taken off.
    memory_size = float(dual.best_price.sum()) * dual.memory.limit if len(seen.capacity) else 0.0
    margin = (size + abs(paid) + memory_size + abs(core.constant)) * 2.0**-40
    return Proof(bound=value - paid + core.constant - margin, through=through - margin)
