"""The engine against brute force, bounds below optima, and answers where nothing is allowed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.strategy_graph.audit import audit
from bench.strategy_graph.contraction import NoStrategyError, contract, restrict
from bench.strategy_graph.incumbent import expanded
from bench.strategy_graph.solution import Status
from bench.strategy_graph.solve import solve
from planner.op_sharding.strategy_graph import FORBIDDEN, StrategyGraph
from profiles.errors import InputError


def random_graph(seed: int) -> StrategyGraph:
    """Up to 6 nodes of up to 3 strategies, matchings and forbidden pairs among them."""
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
    starts = rng.integers(0, 6, nodes)
    return StrategyGraph(
        node_costs=tuple(rng.integers(0, 30, k) for k in sizes),
        node_usages=tuple(rng.integers(0, 9, k) for k in sizes),
        intervals=np.stack([starts, starts + rng.integers(0, 5, nodes)], axis=1),
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


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_it_finds_the_least_cost_and_never_bounds_above_it(seed: int) -> None:
    graph = random_graph(seed)
    truth = least(graph)
    found = solve(graph, time_limit_s=0.3)
    if truth is None:
        assert found.strategies is None
        assert found.status in (Status.INFEASIBLE, Status.UNKNOWN)
        return
    assert found.strategies is not None
    checked = audit(graph, found.strategies)
    assert checked.is_allowed
    assert checked.cost == found.cost == truth
    assert found.lower_bound is not None
    assert found.lower_bound <= truth


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_contraction_keeps_the_least_cost(seed: int) -> None:
    graph = random_graph(seed)
    try:
        small = contract(graph)
    except NoStrategyError:
        assert least(graph) is None
        return
    costs = [
        audit(graph, expanded(small, np.array(choice, dtype=np.int64)))
        for choice in itertools.product(*(range(len(values)) for values in small.costs))
    ]
    assert min((one.cost for one in costs if one.is_allowed), default=None) == least(graph)
    assert restrict(small, [np.arange(len(v)) for v in small.costs]).constant == small.constant


def two_nodes(limit: int | None) -> StrategyGraph:
    """Costs 1 or 5 and 2 or 3, usages 10 or 4 and 10 or 3, and 7 for both at their second."""
    return StrategyGraph(
        node_costs=(np.array([1, 5]), np.array([2, 3])),
        node_usages=(np.array([10, 4]), np.array([10, 3])),
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
    assert found.lower_bound is None


def test_no_time_still_answers() -> None:
    found = solve(two_nodes(13), time_limit_s=0.0)
    assert found.cost in (4, 7, 15)


def test_costs_above_64_bits_are_summed_exactly() -> None:
    # 200 forced costs of 9e16 make 1.8e19, above 2**63.
    graph = StrategyGraph(
        node_costs=tuple(np.array([9 * 10**16]) for _ in range(200)),
        node_usages=tuple(np.array([0]) for _ in range(200)),
        intervals=np.zeros((200, 2), dtype=np.int64),
        edges=np.zeros((0, 2), dtype=np.int64),
        edge_costs=(),
        usage_limit=None,
    )
    assert solve(graph, time_limit_s=1.0).cost == 200 * 9 * 10**16


def test_a_table_of_the_wrong_shape_is_named() -> None:
    with pytest.raises(InputError, match=r"edge 0 has a table of shape \(1, 2\)"):
        StrategyGraph(
            node_costs=(np.array([1, 5]), np.array([2, 3])),
            node_usages=(np.array([1, 5]), np.array([2, 3])),
            intervals=np.zeros((2, 2), dtype=np.int64),
            edges=np.array([[0, 1]]),
            edge_costs=(np.array([[0, 1]]),),
            usage_limit=None,
        )
