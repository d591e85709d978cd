"""The solver against brute force, bounds below optima, and answers where nothing is allowed."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardwright_placements.strategy_graph.contraction import contract
from shardwright_placements.strategy_graph.elimination import eliminate
from shardwright_placements.strategy_graph.integer_program import solve_program
from shardwright_placements.strategy_graph.problem import FORBIDDEN, StrategyGraph
from shardwright_placements.strategy_graph.solve import Status, solve
from shardwright_placements.strategy_graph.tree_search import _Search, tree_search

from bench.strategy_graph.audit import audit
from profiles.errors import InputError


def random_graph(seed: int) -> StrategyGraph:
    """Up to 6 nodes of up to 3 strategies, with matchings and forbidden pairs; nodes hold up to two
    tensors, some of which live for no time."""
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(1, 7))
    sizes = rng.integers(1, 4, nodes)
    edges, tables = [], []
    for _ in range(int(rng.integers(0, 9)) if nodes > 1 else 0):
        first, second = rng.choice(nodes, 2, replace=False)
        table = rng.integers(0, 30, (sizes[first], sizes[second]))
        kind = rng.integers(0, 4)
        if kind == 0:
            table[rng.random(table.shape) < 0.4] = FORBIDDEN
        elif kind == 1 and sizes[first] == sizes[second]:
            apart = rng.permutation(sizes[first])[:, None] != np.arange(sizes[first])
            table[apart] = FORBIDDEN
        edges.append((first, second))
        tables.append(table.astype(np.int64))
    holders = np.concatenate([np.arange(nodes), rng.integers(0, nodes, int(rng.integers(0, 3)))])
    starts = rng.integers(0, 6, len(holders))
    return StrategyGraph(
        node_costs=tuple(rng.integers(0, 30, k) for k in sizes),
        holders=holders,
        usages=tuple(rng.integers(0, 9, sizes[k]) for k in holders),
        intervals=np.stack([starts, starts + rng.integers(0, 5, len(holders))], axis=1),
        edges=np.array(edges, dtype=np.int64).reshape(-1, 2),
        edge_costs=tuple(tables),
        usage_limit=None if rng.random() < 0.2 else int(rng.integers(3, 25)),
    )


def least(graph: StrategyGraph) -> int | None:
    """The least cost by trying everything."""
    found = [
        audit(graph, choice)
        for choice in itertools.product(*(range(len(costs)) for costs in graph.node_costs))
    ]
    return min((one.cost for one in found if one.is_allowed), default=None)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_it_finds_the_least_cost_and_never_bounds_above_it(seed: int) -> None:
    graph = random_graph(seed)
    truth = least(graph)
    found = solve(graph, time_limit_s=2.0)
    if truth is None:
        assert found.status is Status.INFEASIBLE
        assert found.strategies is None
        return
    assert found.status is Status.OPTIMAL
    assert found.strategies is not None
    checked = audit(graph, found.strategies)
    assert checked.is_allowed
    assert checked.cost == found.cost == found.bound == truth


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_contraction_keeps_the_least_cost(seed: int) -> None:
    graph = random_graph(seed)
    small = contract(graph)
    if small is None:
        assert least(graph) is None
        return
    problem = small.problem
    for choice in itertools.product(*(range(len(values)) for values in problem.node_costs)):
        there, here = audit(graph, small.expand(choice)), audit(problem, choice)
        assert there.is_allowed == here.is_allowed
        assert there.cost == here.cost or not here.is_allowed
    assert least(problem) == least(graph)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_every_part_keeps_to_its_promise(seed: int) -> None:
    """Elimination and the integer program find least costs; bounds are not above, answers fit."""
    graph = random_graph(seed)
    small, truth = contract(graph), least(graph)
    if small is None or truth is None:
        return
    problem = small.problem
    program = solve_program(problem, scale_cost=truth, time_limit_s=5.0)
    assert program.bound <= truth
    assert program.is_least
    assert program.strategies is not None
    assert problem.cost_of(program.strategies) == truth
    free = eliminate(problem)
    assert free is not None
    assert problem.cost_of(free) == least(replace(problem, usage_limit=None))
    rng, end = np.random.default_rng(0), time.monotonic() + 0.05
    searched = tree_search(problem, problem.least_used(), end=end, rng=rng)
    if searched is not None:
        assert audit(problem, searched).is_allowed
        assert problem.cost_of(searched) >= truth


def test_matched_nodes_and_nodes_without_choice_become_one() -> None:
    # 0 and 1 are matched crosswise; 2 has one strategy; 3 has one that 0's strategies allow.
    off = [[FORBIDDEN, 4], [5, FORBIDDEN]]
    graph = StrategyGraph(
        node_costs=tuple(np.array(c) for c in ([1, 2], [10, 20], [7], [0, 0])),
        holders=np.array([0, 1]),
        usages=(np.array([1, 3]), np.array([6, 2])),
        intervals=np.array([[0, 2], [0, 2]]),
        edges=np.array([[0, 1], [2, 0], [0, 3]]),
        edge_costs=tuple(np.array(t) for t in (off, [[100, 200]], [[FORBIDDEN, 0]] * 2)),
        usage_limit=9,
    )
    small = contract(graph)
    assert small is not None
    # With 0 at its first: 1 + 20 + 4 + 100, memory 1 + 2; at its second: 2 + 10 + 5 + 200, 3 + 6.
    assert [values.tolist() for values in small.problem.node_costs] == [[125, 217], [7]]
    assert [used.tolist() for used in small.problem.usages] == [[3, 9]]
    assert small.expand((1, 0)) == (1, 0, 0, 1)


@pytest.mark.slow
def test_the_search_comes_close_to_the_bound_within_memory() -> None:
    """A chain of 300 nodes, 200 moves: within half of the bound on an answer that fits."""
    rng = np.random.default_rng(1)
    nodes, strategies = 300, 12
    graph = StrategyGraph(
        node_costs=tuple(rng.integers(0, 1000, strategies) for _ in range(nodes)),
        holders=np.arange(nodes),
        usages=tuple(rng.integers(1, 100, strategies) for _ in range(nodes)),
        intervals=np.stack([np.arange(nodes), np.arange(nodes) + 20], axis=1),
        edges=np.stack([np.arange(nodes - 1), np.arange(1, nodes)], axis=1),
        edge_costs=tuple(rng.integers(0, 1000, (strategies, strategies)) for _ in range(nodes - 1)),
        usage_limit=20 * 40,
    )
    cheapest = tuple(int(costs.argmin()) for costs in graph.node_costs)
    assert not graph.fits(cheapest)
    search = _Search(graph, graph.least_used())
    for move in range(200):
        search.move(0.3 * 1e-3 ** (move / 180) if move < 180 else 0.0, rng)
    assert search.best is not None
    assert graph.fits(search.best)
    start = graph.cost_of(graph.least_used())
    bound = solve_program(graph, scale_cost=start, time_limit_s=5.0).bound
    assert graph.cost_of(search.best) < 1.5 * bound < 0.5 * start


def two_nodes(limit: int | None) -> StrategyGraph:
    """Costs 1 or 5 and 2 or 3, usages 10 or 4 and 10 or 3, and 7 for both at their second."""
    return StrategyGraph(
        node_costs=(np.array([1, 5]), np.array([2, 3])),
        holders=np.arange(2),
        usages=(np.array([10, 4]), np.array([10, 3])),
        intervals=np.array([[0, 4], [2, 6]]),
        edges=np.array([[0, 1]]),
        edge_costs=(np.array([[0, 0], [0, 7]]),),
        usage_limit=limit,
    )


@pytest.mark.parametrize(
    ("limit", "cost"),
    [
        (None, 3),  # 1 + 2
        (20, 3),  # 10 + 10 fits
        (13, 4),  # 1 + 3, 10 + 3 fits
        (7, 15),  # only 4 + 3 fits: 5 + 3 + 7
    ],
)
def test_a_problem_solved_by_hand(limit: int | None, cost: int) -> None:
    found = solve(two_nodes(limit), time_limit_s=1.0)
    assert found.cost == cost


def test_too_little_memory_is_proven() -> None:
    found = solve(two_nodes(6), time_limit_s=1.0)
    assert found.status is Status.INFEASIBLE
    assert found.strategies is None
    assert found.bound is None


def test_no_time_still_answers() -> None:
    assert solve(two_nodes(13), time_limit_s=0.0).cost in (4, 7, 15)


def test_a_table_of_the_wrong_shape_is_named() -> None:
    with pytest.raises(InputError, match=r"edge 0 has a table of shape \(1, 2\)"):
        StrategyGraph(
            node_costs=(np.array([1, 5]), np.array([2, 3])),
            holders=np.arange(2),
            usages=(np.array([1, 5]), np.array([2, 3])),
            intervals=np.zeros((2, 2), dtype=np.int64),
            edges=np.array([[0, 1]]),
            edge_costs=(np.array([[0, 1]]),),
            usage_limit=None,
        )
