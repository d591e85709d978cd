"""Each part of the engine against brute force: block moves, dual bounds, the integer programme."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.strategy_graph.annealing import total_cost
from bench.strategy_graph.audit import audit
from bench.strategy_graph.block_move import choose_block
from bench.strategy_graph.block_plan import plan_block, region_around
from bench.strategy_graph.contraction import NoStrategyError, contract
from bench.strategy_graph.core import Core, flatten, is_allowed
from bench.strategy_graph.dual_ascent import ascend, overfull_moments, prove, refresh, start
from bench.strategy_graph.incumbent import Incumbent, expanded
from bench.strategy_graph.integer_programme import solve_exactly
from bench.strategy_graph.least_memory import least_memory_choice
from bench.strategy_graph.memory import moments_of
from bench.strategy_graph.random_numbers import random_state
from bench.strategy_graph.solution import Status
from bench.strategy_graph.solve import solve
from planner.op_sharding.strategy_graph import FORBIDDEN, StrategyGraph


def dense_graph(seed: int, nodes: int, strategies: int, *, tightness: float = 1.3) -> StrategyGraph:
    """Random costs on most pairs; memory is `tightness` times what the least usages need."""
    rng = np.random.default_rng(seed)
    pairs = [pair for pair in itertools.combinations(range(nodes), 2) if rng.random() < 0.6]
    usages = rng.integers(1, 20, (nodes, strategies))
    starts = rng.integers(0, 4, nodes)
    intervals = np.stack([starts, starts + rng.integers(2, 6, nodes)], axis=1)
    least = [
        int(sum(usages[i].min() for i in range(nodes) if intervals[i, 0] <= t < intervals[i, 1]))
        for t in range(10)
    ]
    return StrategyGraph(
        node_costs=tuple(rng.integers(0, 50, strategies) for _ in range(nodes)),
        node_usages=tuple(usages),
        intervals=intervals,
        edges=np.array(pairs, dtype=np.int64).reshape(-1, 2),
        edge_costs=tuple(rng.integers(0, 50, (strategies, strategies)) for _ in pairs),
        usage_limit=int(tightness * max(least)),
    )


def all_costs(graph: StrategyGraph) -> tuple[np.ndarray, np.ndarray]:
    """By combination of strategies: its cost, and whether it keeps within memory."""
    nodes, sizes = graph.nodes, [len(costs) for costs in graph.node_costs]
    grid = np.indices(sizes).reshape(nodes, -1)
    cost = sum(graph.node_costs[i][grid[i]] for i in range(nodes))
    for (u, v), table in zip(graph.edges.tolist(), graph.edge_costs, strict=True):
        cost = cost + table[grid[u], grid[v]]
    fits = np.ones(grid.shape[1], dtype=bool)
    for time in range(int(graph.intervals.max())):
        live = [i for i in range(nodes) if graph.intervals[i, 0] <= time < graph.intervals[i, 1]]
        used = sum((graph.node_usages[i][grid[i]] for i in live), np.zeros(grid.shape[1]))
        fits &= used <= (np.inf if graph.usage_limit is None else graph.usage_limit)
    return np.asarray(cost), fits


def cost_of(core: Core, choice: np.ndarray) -> float:
    return (
        total_cost(
            core.node_start,
            core.arc_start,
            core.arc_head,
            core.arc_table,
            core.tables,
            core.cost,
            choice,
        )
        + core.constant
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([4.0, 20.0, 100.0, 1e6]))
def test_a_block_move_is_the_best_answer_to_what_stays(seed: int, most_entries: float) -> None:
    graph = dense_graph(seed, 6, 3, tightness=100.0)
    core = flatten(contract(graph))
    rng = np.random.default_rng(seed)
    choice = rng.integers(0, 3, core.nodes)
    plan = plan_block(core, range(core.nodes), most_entries, rng)
    if most_entries == 1e6:
        assert len(plan.order) == core.nodes
    moved = choose_block(
        0.0,
        random_state(rng),
        core.node_start,
        core.arc_start,
        core.arc_head,
        core.arc_table,
        core.tables,
        core.cost,
        choice,
        plan.order,
        plan.is_free,
        plan.scope_start,
        plan.scope,
        plan.factor_start,
        plan.factor_base,
        plan.factor_is_message,
        plan.stride_start,
        plan.stride,
        plan.message_start,
    )
    held = plan.is_free == 0
    assert (moved[held] == choice[held]).all()
    truth = min(
        cost_of(core, np.array(other))
        for other in itertools.product(range(3), repeat=core.nodes)
        if (np.array(other)[held] == choice[held]).all()
    )
    assert cost_of(core, moved) == truth


def test_a_region_is_connected_and_no_larger_than_asked() -> None:
    core = flatten(contract(dense_graph(1, 12, 2, tightness=100.0)))
    region = region_around(core, 3, 5, np.random.default_rng(0))
    assert region[0] == 3
    assert len(region) == len(set(region)) == 5


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_bounds_and_the_integer_programme_agree_with_brute_force(seed: int) -> None:
    graph = dense_graph(seed, 6, 3)
    cost, fits = all_costs(graph)
    try:
        contracted = contract(graph)
    except NoStrategyError:
        assert not fits.any()
        return
    core, memory = flatten(contracted), moments_of(graph, contract(graph))
    if core.nodes == 0:
        return
    dual = start(core, memory)
    ascend(dual, 60, np.inf)
    refresh(dual)
    ascend(dual, 20, np.inf)
    proof = prove(dual)
    found = solve_exactly(
        contracted, memory, dual.window.moments, ceiling=300.0, seconds_left=lambda: 10.0
    )
    if not fits.any():
        assert found.choice is None
        assert found.bound == np.inf
        return
    truth = int(cost[fits].min())
    assert proof.bound <= truth
    assert found.bound <= truth
    assert found.choice is not None
    assert found.is_least
    assert audit(graph, expanded(contracted, found.choice)).cost == truth
    # No strategy of the cheapest choice is priced above what that choice costs.
    through = proof.through[core.node_start[:-1] + found.choice]
    assert (proof.bound + through <= truth + 1e-6).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_what_needs_little_memory_is_found(seed: int) -> None:
    graph = dense_graph(seed, 6, 3, tightness=1.0)
    # Every node at its least at once is allowed: the limit is its peak.
    contracted = contract(graph)
    core, memory = flatten(contracted), moments_of(graph, contracted)
    if core.nodes == 0:
        return
    choice = least_memory_choice(core, memory, np.zeros(0, dtype=np.int64))
    assert choice is not None
    assert not len(overfull_moments(memory, choice, 1))


@pytest.mark.parametrize("seed", range(4))
def test_the_whole_engine_finds_and_proves_the_least_cost(seed: int) -> None:
    # 4 ** 8 choices are more than it enumerates.
    graph = dense_graph(seed, 8, 4)
    cost, fits = all_costs(graph)
    found = solve(graph, time_limit_s=10.0)
    assert found.status is Status.OPTIMAL
    assert found.cost == found.lower_bound == int(cost[fits].min())


def test_forbidden_pairs_that_contraction_leaves_are_avoided() -> None:
    # A ring of 9 nodes with 3 strategies: neighbours may not take the same one (a 3-colouring).
    nodes = 9
    rng = np.random.default_rng(0)
    table = np.where(np.eye(3, dtype=bool), FORBIDDEN, 0)
    graph = StrategyGraph(
        node_costs=tuple(rng.integers(0, 50, 3) for _ in range(nodes)),
        node_usages=tuple(np.ones(3, dtype=np.int64) for _ in range(nodes)),
        intervals=np.tile([0, 1], (nodes, 1)),
        edges=np.array([(i, (i + 1) % nodes) for i in range(nodes)]),
        edge_costs=(table,) * nodes,
        usage_limit=nodes,
    )
    core = flatten(contract(graph))
    assert not is_allowed(core, np.zeros(nodes, dtype=np.int64))
    assert is_allowed(core, np.tile([0, 1, 2], 3))
    cost, _ = all_costs(graph)
    found = solve(graph, time_limit_s=10.0)
    assert found.cost == int(cost.min())
    assert found.status is Status.OPTIMAL


def test_an_incumbent_drops_a_note_that_does_not_hold() -> None:
    graph = dense_graph(0, 6, 3, tightness=1.0)
    contracted = contract(graph)
    incumbent = Incumbent(graph=graph, contracted=contracted)
    greedy = np.array([int(np.argmin(values)) for values in contracted.costs])
    assert not audit(graph, expanded(contracted, greedy)).is_allowed
    incumbent.note(greedy, 1.0)
    incumbent.check()
    assert incumbent.cost is None
    assert incumbent.ceiling == np.inf
