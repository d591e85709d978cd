"""The search for cheap strategies: rounds of annealing around the prices that the bound found."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.intra_op.annealing import anneal
from planner.intra_op.contraction import Contracted, Floats
from planner.intra_op.core import Core
from planner.intra_op.dual_ascent import overfull_moments
from planner.intra_op.dual_kernels import reprice
from planner.intra_op.incumbent import Incumbent
from planner.intra_op.memory import Memory, Window, window
from planner.intra_op.strategy_graph import Ints

SLICE_S = 0.2
"""How long one call of the compiled loop lasts: time limits are kept to within about this."""
PAIR_SHARE = 0.3
TREE_SHARE = 0.01
COLDEST = 1e-7
"""The last temperature as a part of the cost."""
MOST_MOMENTS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """What the bound knows: moments that bind, their prices, a rounding."""

    moments: Ints
    price: Floats
    choice: Ints


@dataclass(slots=True, kw_only=True)
class Searcher:
    """One thread's search."""

    contracted: Contracted
    core: Core
    memory: Memory
    incumbent: Incumbent
    state: NDArray[np.uint64]
    moments: Ints
    seen: Window
    priced: Floats
    weight: float
    choice: Ints
    steps: int = 2000
    pressure: float = 1.0


def searcher(
    contracted: Contracted,
    core: Core,
    memory: Memory,
    incumbent: Incumbent,
    seed: int,
    guide: Guide,
) -> Searcher:
    """A search that begins at the guide's rounding; `seed` decides all of its random numbers."""
    mixed = np.random.default_rng(seed).integers(1, 2**63 - 1, dtype=np.uint64)
    one = Searcher(
        contracted=contracted,
        core=core,
        memory=memory,
        incumbent=incumbent,
        state=np.array([mixed], dtype=np.uint64),
        moments=guide.moments,
        seen=window(memory, guide.moments, np.diff(core.node_start)),
        priced=np.zeros_like(core.cost),
        weight=1.0,
        choice=guide.choice.copy(),
    )
    follow(one, guide)
    return one


def follow(one: Searcher, guide: Guide) -> None:
    """Takes over the guide's prices and moments."""
    core = one.core
    _look_at(one, guide.moments)
    price = np.zeros(len(one.moments))
    price[np.searchsorted(one.moments, guide.moments)] = guide.price
    one.priced = np.zeros_like(core.cost)
    seen = one.seen
    reprice(price, core.node_start, seen.low, seen.high, seen.start, seen.usage, one.priced)
    one.weight = float(price.sum())
    if one.weight <= 0.0:
        costs = sum(float(c.max() - c.min()) for c in one.contracted.costs)
        costs += sum(float(np.ptp(t[np.isfinite(t)])) for _, _, t in one.contracted.tables[:1000])
        one.weight = max(costs, 1.0) / max(float(seen.usage.sum()), 1.0)


def _look_at(one: Searcher, moments: Ints) -> None:
    new = np.union1d(one.moments, moments)
    if len(new) > len(one.moments):
        one.moments = new
        one.seen = window(one.memory, new, np.diff(one.core.node_start))


def anneal_for(one: Searcher, hot: float, seconds: float, is_over: Callable[[], bool]) -> None:
    """One round from temperature `hot` (as a part of the cost) down, about so long."""
    begun = time.monotonic()
    core = one.core
    while not is_over():
        spent = time.monotonic() - begun
        if spent >= seconds:
            break
        scale = _scale(one)
        temperatures = [
            scale * hot * (COLDEST / hot) ** min(1.0, at / seconds)
            for at in (spent, spent + SLICE_S)
        ]
        best = one.choice.copy()
        seen = one.seen
        ceiling = one.incumbent.ceiling - core.constant
        started = time.monotonic()
        found = anneal(
            one.steps, temperatures[0], temperatures[1], PAIR_SHARE, TREE_SHARE,
            one.weight * one.pressure, one.state, core.node_start, core.arc_start, core.arc_head,
            core.arc_table, core.arc_reverse, core.tables, core.cost, one.priced, seen.low,
            seen.high, seen.start, seen.usage, seen.capacity, one.choice, best, ceiling,
        )  # fmt: skip
        took = time.monotonic() - started
        one.steps = max(100, int(one.steps * min(max(SLICE_S / max(took, 1e-6), 0.2), 4.0)))
        if found < ceiling and not one.incumbent.offer(one.contracted, best):
            _look_at(one, overfull_moments(one.memory, best, 8))
        over = overfull_moments(one.memory, one.choice, 8)
        # The penalty grows while the choice needs too much memory, and eases slowly after.
        if len(over):
            one.pressure = min(one.pressure * 1.15, 1e6)
            if len(one.moments) < MOST_MOMENTS:
                _look_at(one, over)
        else:
            one.pressure = max(one.pressure * 0.97, 0.5)


def _scale(one: Searcher) -> float:
    """What temperatures are a part of: the bound, else the cost to beat."""
    known = one.incumbent.bound
    if not np.isfinite(known):
        known = one.incumbent.ceiling if np.isfinite(one.incumbent.ceiling) else 0.0
    return max(abs(known - one.core.constant), 1.0)
