"""The search for cheap strategies: blocks chosen anew at memory's prices, then polished.

A large neighbourhood search (Shaw 1998): `block_move` minimises over most nodes at once with memory
at the bound's prices times a random factor, annealing of single moves makes the outcome fit, and
what came out is kept or dropped as in annealing. Memory above the limit costs a penalty per byte
that grows while the choice is overfull and eases while it fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.compiled import is_at_hand
from bench.strategy_graph.annealing import COMPILED_LAST, anneal, total_cost
from bench.strategy_graph.block_move import choose_block
from bench.strategy_graph.block_plan import BlockPlan, plan_block, region_around
from bench.strategy_graph.contraction import Floats
from bench.strategy_graph.core import Core, is_allowed
from bench.strategy_graph.dual_ascent import overfull_moments
from bench.strategy_graph.dual_kernels import overload, reprice
from bench.strategy_graph.incumbent import Incumbent
from bench.strategy_graph.memory import Memory, Window, window
from bench.strategy_graph.random_numbers import random_state
from planner.op_sharding.strategy_graph import Ints

PRICE_FACTORS = (0.25, 0.5, 0.75, 1.0, 1.0, 1.25, 1.5, 2.0)
"""What the prices are multiplied by in a block move: the bound's are right only on average."""
BLOCK_ENTRIES = 20_000
"""The most combinations in one step of a block move: a move then takes a few milliseconds."""
REGION_NODES = 400
"""The most nodes of a block; of smaller graphs, a block is of all nodes."""
USES = 4
"""How often a plan is used: planning takes about as long as two moves."""
STEPS_PER_NODE = 30
MOST_STEPS = 60_000
"""How many single moves polish what a block move has chosen."""
PAIR_SHARE = 0.3
"""The share of rejected single moves that are tried with a neighbour's best answer."""
HOTTEST, COLDEST = 3e-4, 1e-6
"""Between these, parts of the cost, the temperature of a block move is drawn; every second is 0."""
POLISH_HOT, POLISH_COLD = 1e-5, 1e-7
"""From and to which temperature, parts of the cost, annealing goes."""
KEPT = 1e-4
"""The temperature, a part of the cost, at which worse outcomes are kept."""
RETURN_SHARE = 0.002
"""How often the search goes on from the cheapest choice of all threads, and as often from the
bound's rounding. Instance V of the 2025 contest, 13 s, three seeds: 1617084 (the optimum) twice and
1666201 with this share alone; 1617084, 1883328 and 3202013 with ten times as much and hotter moves;
1641659 to 1932446 with a quarter (2026-11-21)."""
MOMENTS_PER_MOVE = 64
MOST_MOMENTS = 600
"""How many overfull moments are added after a move, and how many are kept in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """What the bound knows: moments that bind, their prices, a rounding."""

    moments: Ints
    price: Floats
    choice: Ints


@dataclass(slots=True, kw_only=True)
class Searcher:
    """One thread's search."""

    core: Core
    memory: Memory
    incumbent: Incumbent
    rng: np.random.Generator
    state: NDArray[np.uint64]
    guide: Guide
    moments: Ints
    seen: Window
    price: Floats
    weight: float
    choice: Ints
    plan: BlockPlan
    uses: int = 0
    pressure: float = 1.0


def is_compiled() -> bool:
    """Whether a search can begin at once: what it compiles else takes seconds."""
    return is_at_hand(COMPILED_LAST)


def searcher(core: Core, memory: Memory, incumbent: Incumbent, seed: int, guide: Guide) -> Searcher:
    """A search that begins at the guide's rounding; `seed` decides all of its random numbers."""
    rng = np.random.default_rng(seed)
    one = Searcher(
        core=core,
        memory=memory,
        incumbent=incumbent,
        rng=rng,
        state=random_state(rng),
        guide=guide,
        moments=guide.moments,
        seen=window(memory, guide.moments, np.diff(core.node_start)),
        price=guide.price,
        weight=1.0,
        choice=guide.choice.copy(),
        plan=_plan(core, rng),
    )
    follow(one, guide)
    return one


def follow(one: Searcher, guide: Guide) -> None:
    """Takes over the guide's prices and moments."""
    one.guide = guide
    _look_at(one, guide.moments)
    penalty = one.weight * one.pressure
    one.weight = float(guide.price.sum())
    if one.weight <= 0.0:
        # No price is known: as much per byte as the strategies' costs differ per byte.
        one.weight = max(float(np.ptp(one.core.cost)), 1.0) / max(
            float(one.seen.usage.max(initial=0.0)), 1.0
        )
    # The penalty per byte stays where that is of the order of the new prices.
    one.pressure = min(max(penalty / one.weight, 0.5), 10.0)
    # What better prices round to may be the better start.
    if _penalised(one, guide.choice) < _penalised(one, one.choice):
        one.choice = guide.choice.copy()


def improve(one: Searcher) -> None:
    """One block move, its polishing and its judgement; better choices go to the incumbent."""
    core, seen, rng = one.core, one.seen, one.rng
    if one.uses >= USES:
        one.plan, one.uses = _plan(core, rng), 0
    one.uses += 1
    luck = rng.random()
    if luck < RETURN_SHARE and one.incumbent.noted is not None:
        one.choice = one.incumbent.noted.copy()
    elif luck > 1.0 - RETURN_SHARE:
        one.choice = one.guide.choice.copy()
    scale = _scale(one)
    is_warm = rng.random() < 0.5
    temperature = scale * COLDEST * (HOTTEST / COLDEST) ** rng.random() if is_warm else 0.0
    priced = core.cost.copy()
    reprice(
        one.price * rng.choice(PRICE_FACTORS), core.node_start, seen.low, seen.high, seen.start,
        seen.usage, priced,
    )  # fmt: skip
    plan = one.plan
    choice = choose_block(
        temperature, one.state, core.node_start, core.arc_start, core.arc_head, core.arc_table,
        core.tables, priced, one.choice, plan.order, plan.is_free, plan.scope_start, plan.scope,
        plan.factor_start, plan.factor_base, plan.factor_is_message, plan.stride_start,
        plan.stride, plan.message_start,
    )  # fmt: skip
    best = choice.copy()
    ceiling = one.incumbent.ceiling - core.constant
    found = anneal(
        min(STEPS_PER_NODE * core.nodes, MOST_STEPS), scale * POLISH_HOT, scale * POLISH_COLD,
        PAIR_SHARE, one.weight * one.pressure, one.state, core.node_start, core.arc_start,
        core.arc_head, core.arc_table, core.tables, core.cost, seen.low, seen.high, seen.start,
        seen.usage, seen.capacity, choice, best, ceiling,
    )  # fmt: skip
    if found < ceiling:
        over = overfull_moments(one.memory, best, MOMENTS_PER_MOVE)
        if len(over):
            _look_at(one, over)
        elif is_allowed(core, best):
            one.incumbent.note(best, found + core.constant)
    worse = _penalised(one, choice) - _penalised(one, one.choice)
    if worse <= 0.0 or rng.random() < math.exp(-worse / (KEPT * scale)):
        one.choice = choice
    is_overfull = bool((_over(one, choice) > 0).any())
    one.pressure = min(one.pressure * 1.05, 1e6) if is_overfull else max(one.pressure * 0.975, 0.5)


def _plan(core: Core, rng: np.random.Generator) -> BlockPlan:
    nodes = range(core.nodes)
    if core.nodes > REGION_NODES * 5 // 4:
        region = region_around(core, int(rng.integers(core.nodes)), REGION_NODES, rng)
        return plan_block(core, region, BLOCK_ENTRIES, rng)
    return plan_block(core, list(nodes), BLOCK_ENTRIES, rng)


def _over(one: Searcher, choice: Ints) -> Floats:
    seen = one.seen
    return overload(choice, seen.capacity, seen.low, seen.high, seen.start, seen.usage)


def _penalised(one: Searcher, choice: Ints) -> float:
    core = one.core
    cost = total_cost(
        core.node_start, core.arc_start, core.arc_head, core.arc_table, core.tables, core.cost,
        choice,
    )  # fmt: skip
    excess = float(np.maximum(_over(one, choice), 0.0).sum())
    return cost + one.weight * one.pressure * excess


def _look_at(one: Searcher, moments: Ints) -> None:
    """Adds moments to the window and spreads the guide's prices over it."""
    new = np.union1d(one.moments, moments)
    if len(new) > max(MOST_MOMENTS, len(one.guide.moments)):
        # Others come back when they are overfull again.
        new = np.union1d(one.guide.moments, moments)
    if len(new) != len(one.moments):
        one.moments = new
        one.seen = window(one.memory, new, np.diff(one.core.node_start))
    one.price = np.zeros(len(one.moments))
    one.price[np.searchsorted(one.moments, one.guide.moments)] = one.guide.price


def _scale(one: Searcher) -> float:
    """What temperatures are a part of: the cost to beat, but not far above the bound."""
    constant = one.core.constant
    known = min(one.incumbent.ceiling - constant, 1.5 * max(one.incumbent.bound - constant, 0.0))
    return max(known, 1.0)
