"""How a solve ends: proven at the scale of its costs, or by Ctrl-C with what it has."""

from __future__ import annotations

import itertools
import signal
import sys
import time
from types import FrameType

import numpy as np

from bench.strategy_graph.contraction import contract
from bench.strategy_graph.core import flatten
from bench.strategy_graph.dual_ascent import ascend
from bench.strategy_graph.incumbent import Incumbent
from bench.strategy_graph.memory import moments_of
from bench.strategy_graph.solution import Status
from bench.strategy_graph.solve import solve
from planner.op_sharding.strategy_graph import StrategyGraph


def random_graph(nodes: int, strategies: int, edges: int, seed: int) -> StrategyGraph:
    """Dear strategies need the least memory, and the limit leaves little choice."""
    rng = np.random.default_rng(seed)
    costs = rng.integers(100, 1000, (nodes, strategies))
    costs[:, -1] = 10**10
    usages = rng.integers(50, 100, (nodes, strategies))
    usages[:, -1] = 1
    pairs = np.array(list(itertools.combinations(range(nodes), 2)))
    chosen = pairs[rng.permutation(len(pairs))[:edges]]
    return StrategyGraph(
        node_costs=tuple(costs),
        node_usages=tuple(usages),
        intervals=np.tile([0, 1], (nodes, 1)),
        edges=chosen,
        edge_costs=tuple(rng.integers(0, 500, (strategies, strategies)) for _ in chosen),
        usage_limit=68 * nodes,
    )


def cheapest(graph: StrategyGraph) -> int:
    """By trying every choice."""
    sizes = [len(costs) for costs in graph.node_costs]
    grid = np.array(list(itertools.product(*map(range, sizes))))
    total = sum(costs[grid[:, i]] for i, costs in enumerate(graph.node_costs))
    for (a, b), table in zip(graph.edges.tolist(), graph.edge_costs, strict=True):
        total = total + table[grid[:, a], grid[:, b]]
    used = sum(usages[grid[:, i]] for i, usages in enumerate(graph.node_usages))
    assert graph.usage_limit is not None
    return int(np.asarray(total)[used <= graph.usage_limit].min())


def test_an_integer_programme_under_a_dear_choice_is_solved_again_at_its_own_scale() -> None:
    """HiGHS's tolerance is 1e-6 of the scale: 8e4 of the first choice, more than all costs."""
    graph = random_graph(8, 4, 16, seed=3)
    contracted = contract(graph)
    incumbent = Incumbent(graph=graph, contracted=contracted)
    shared = sys.modules["bench.strategy_graph.solve"]._Shared(
        contracted,
        flatten(contracted),
        moments_of(graph, contracted),
        incumbent,
        time.monotonic() + 60.0,
        0,
    )
    ascend(shared.dual, 1, np.inf)
    shared.publish()
    shared.begin()
    assert incumbent.ceiling > 10**10
    shared.close()
    assert incumbent.cost == incumbent.lower_bound == cheapest(graph)


def test_ctrl_c_gives_the_incumbent_with_its_bound() -> None:
    graph = random_graph(60, 12, 600, seed=4)

    def interrupt(_: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    # Compiled first, so that the signal meets the search.
    solve(graph, time_limit_s=0.5)
    begun = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 1.5)
    try:
        found = solve(graph, time_limit_s=600.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - begun < 60.0
    assert (found.status, found.reason) == (Status.FEASIBLE, "it was interrupted")
    assert found.cost is not None
    assert found.lower_bound is not None
    assert found.lower_bound < found.cost
