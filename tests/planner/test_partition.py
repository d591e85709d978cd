"""The exact programme against an integer programme, brute force and the timeline."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.chain.partition import partition
from planner.chain.problem import (
    BlockCosts,
    Load,
    Partition,
    PartitionProblem,
    StageSlot,
    stage_times,
    step_time,
)
from planner.chain.solver import solve_integer
from profiles.errors import InputError
from tests.oracles.stage_memory import fits


def _ranges(values):
    total = np.concatenate([[0.0], np.cumsum(values)])
    return total[None, :] - total[:-1, None]


def edges(inputs):
    """Every stage gets its inputs; what leaves it is held by its neighbour."""
    n = len(inputs)
    return np.broadcast_to(inputs[:, None], (n, n + 1)).copy()


def make_problem(
    kinds,
    *,
    schedule="1f1b",
    microbatches=4,
    stages=2,
    forward=None,
    backward=None,
    saved=None,
    transient=None,
    opening=None,
    static=None,
    late=None,
    tail=None,
    sends=None,
    inputs=None,
    beside=((0.0, 0.0),) * 64,
    capacity=1e9,
):
    """A problem from figures per kind; what is left out costs nothing.

    beside  [stages, 2] forward and backward seconds of each stage beside its blocks'
    """
    at = np.asarray(kinds)
    options = np.asarray(backward, dtype=float).shape[1]
    zero = np.zeros(at.max() + 1)
    flat = np.zeros((at.max() + 1, options))

    def pick(values, default):
        return np.asarray(default if values is None else values, dtype=float)[at]

    costs = BlockCosts(
        forward_s=pick(forward, zero),
        backward_s=pick(backward, flat),
        saved_bytes=pick(saved, flat),
        transient_bytes=pick(transient, flat),
        opening_bytes=None if opening is None else pick(opening, flat),
    )
    counts = [
        min(microbatches, stages - s) if schedule == "1f1b" else microbatches for s in range(stages)
    ]
    return PartitionProblem(
        kinds=tuple(kinds),
        strategies=tuple("abcdefghijkl"[:options]),
        schedule=schedule,
        num_microbatches=microbatches,
        costs=(costs,),
        slots=tuple(
            StageSlot(
                in_flight=k,
                capacity_bytes=capacity,
                loads=(
                    Load(in_flight=k),
                    Load(in_flight=1, static=1),
                    Load(in_flight=max(1, k - 1), static=1, rises=False),
                ),
                forward_s=float(beside[s][0]),
                backward_s=float(beside[s][1]),
            )
            for s, k in enumerate(counts)
        ),
        static_bytes=(
            _ranges(pick(static, zero)),
            _ranges(pick(static if late is None else late, zero)),
        ),
        tails_s=(_ranges(pick(tail, zero)),),
        edge_bytes=edges(pick(inputs, zero)),
        send_forward_s=np.arange(1, stages + 1)[:, None] * pick(sends, zero),
        send_backward_s=np.arange(2, stages + 2)[:, None] * pick(sends, zero),
    )


@st.composite
def problems(draw):
    """Up to 6 blocks, 3 stages, 3 strategies; whole figures make ties, which must not matter."""
    n = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    repeated = draw(st.booleans()) and n > 2
    kinds = [0, *[1] * (n - 2), 2] if repeated else list(range(n))
    options = draw(st.integers(1, 3))
    size = max(kinds) + 1
    whole = draw(st.booleans())
    times = (
        (lambda *s: rng.integers(1, 5, s).astype(float)) if whole else (lambda *s: rng.random(s))
    )
    return make_problem(
        kinds,
        schedule=draw(st.sampled_from(["1f1b", "gpipe"])),
        microbatches=draw(st.integers(1, 7)),
        stages=draw(st.integers(1, min(n, 3))),
        forward=times(size),
        backward=times(size, options),
        saved=rng.integers(0, 8, (size, options)),
        transient=rng.integers(0, 5, (size, options)),
        opening=rng.integers(0, 5, (size, options)),
        static=rng.integers(0, 6, size),
        late=rng.integers(0, 12, size),
        tail=times(size) * draw(st.sampled_from([0.0, 0.5, 4.0])),
        sends=times(size) * draw(st.sampled_from([0.0, 0.1, 8.0])),
        inputs=rng.integers(0, 3, size),
        beside=times(3, 2) * draw(st.sampled_from([0.0, 0.5])),
        capacity=float(rng.integers(5, 8 + 20 * n)),
    )


def brute_force(problem):
    """Least step time over all cuts and all strategies, or None; all assignments at once."""
    n, p = problem.num_blocks, problem.num_stages
    options = len(problem.strategies)
    every = np.asarray(list(itertools.product(range(options), repeat=n)))
    rows = np.arange(n)
    costs = problem.costs[0]
    best = None
    for cut in itertools.combinations(range(1, n), p - 1):
        edges = (0, *cut, n)
        f, b, ok = [], [], np.ones(len(every), dtype=bool)
        for s, (i, j) in enumerate(itertools.pairwise(edges)):
            chosen = every[:, i:j]
            back = costs.backward_s[rows[i:j], chosen].sum(axis=1)
            saved = costs.saved_bytes[rows[i:j], chosen]
            # What one micro-batch holds while each block runs, then the other micro-batches.
            one = np.cumsum(saved, axis=1) + costs.transient_bytes[rows[i:j], chosen]
            one[:, 0] = saved[:, 0] + costs.first_transient_bytes[i, chosen[:, 0]]
            for load in problem.slots[s].loads:
                memory = problem.static_bytes[load.static][i, j] + one.max(axis=1) * load.rises
                others = load.in_flight - load.rises
                memory = memory + others * saved.sum(axis=1)
                memory = memory + load.in_flight * problem.edge_bytes[i, j]
                ok &= memory <= problem.slots[s].capacity_bytes
            f.append(problem.slots[s].forward_s + costs.forward_s[i:j].sum())
            b.append(problem.slots[s].backward_s + back)
        for row in np.flatnonzero(ok):
            time_s = _objective(problem, edges, np.asarray(f), np.asarray([x[row] for x in b]))
            best = time_s if best is None else min(best, time_s)
    return best


def _objective(problem, edges, f, b):
    """The documented objective, written a second time, plainly."""
    p, m = problem.num_stages, problem.num_microbatches
    down = [0.0, *(problem.send_forward_s[s + 1, i] for s, i in enumerate(edges[1:-1]))]
    up = [0.0, *(problem.send_backward_s[s + 1, i] for s, i in enumerate(edges[1:-1]))]
    tail = [problem.tails_s[0][i, j] for i, j in itertools.pairwise(edges)]
    if problem.schedule == "gpipe":
        ends = [sum(b[s:]) + sum(up[s + 1 :]) + (m - 1) * max(b[s:]) + tail[s] for s in range(p)]
        return sum(f) + sum(down) + (m - 1) * max(f) + max(ends)
    whole = [f[s] + b[s] + down[s] + up[s] for s in range(p)]
    steady = [0.0]
    for s in range(p):
        w = min(m, p - s)
        if m > w:
            steady.append(sum(whole[s + 1 :]) + (m - w) * (f[s] + b[s]))
    ends = [tail[s] - sum(b[:s]) - sum(up[1 : s + 1]) for s in range(p)]
    own = [sum(whole[: s + 1]) + (m - 1) * (f[s] + b[s]) for s in range(p)]
    return max(sum(whole) + max(steady) + max(ends), max(own) + tail[0])


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(problems())
def test_programme_integer_programme_and_brute_force_agree(problem):
    found = partition(problem)
    best = brute_force(problem)
    answer = solve_integer(problem)
    if best is None:
        assert found is None
        assert answer.status == "infeasible"
        return
    assert found is not None
    assert fits(problem, found)
    assert found.step_time_s == pytest.approx(best, rel=1e-9)
    assert answer.status == "optimal"
    assert answer.bound_s == pytest.approx(best, rel=1e-6)
    assert answer.partition is not None
    assert answer.partition.step_time_s == pytest.approx(best, rel=1e-6)


def test_a_last_stage_whose_tail_lasts_longest_by_hand():
    """Three stages of F 1, B 2; sends of 2 and 3 down, 3 and 4 up; one micro-batch. The way there
    and back takes 21; the last stage's tail of 20 begins 2 x 2 + 7 before its end."""
    problem = make_problem(
        [0, 1, 2],
        stages=3,
        microbatches=1,
        forward=[1.0, 1.0, 1.0],
        backward=[[2.0], [2.0], [2.0]],
        tail=[0.0, 0.0, 20.0],
        sends=[0.0, 1.0, 1.0],
    )
    found, answer = partition(problem), solve_integer(problem)
    assert found.step_time_s == pytest.approx(21 + 20 - 11)
    assert answer.partition.starts == found.starts
    assert answer.bound_s == pytest.approx(found.step_time_s, rel=1e-6)
    assert answer.bound_s <= found.step_time_s


def test_a_tail_hides_the_send_of_the_last_gradient_by_hand():
    """Three blocks of F 1, B 1 on two stages. Behind the first block 6 + 20 - 1; behind the second,
    whose sends take 0.8 there and 1.2 back, under the tail, 6 + 0.8 + 20 - 2."""
    problem = make_problem(
        [0, 1, 2],
        microbatches=1,
        forward=[1.0, 1.0, 1.0],
        backward=[[1.0], [1.0], [1.0]],
        tail=[0.0, 0.0, 20.0],
        sends=[0.0, 0.0, 0.4],
    )
    found = partition(problem)
    assert found.starts == (0, 2)
    assert found.step_time_s == pytest.approx(24.8)


def timeline_end(problem, found):
    """End of a 1f1b or gpipe step, action by action: own event loop, sends overlap compute."""
    p, m = problem.num_stages, problem.num_microbatches
    f, b = stage_times(problem, found.starts, found.strategies)
    order = []
    for s in range(p):
        warm = min(m, p - s) if problem.schedule == "1f1b" else m
        actions = [("F", k) for k in range(warm)]
        for k in range(m):
            actions.append(("B", k))
            if warm + k < m:
                actions.append(("F", warm + k))
        order.append(actions)
    done: dict[tuple[str, int, int], float] = {}
    clock, position = [0.0] * p, [0] * p
    while any(position[s] < len(order[s]) for s in range(p)):
        for s in range(p):
            while position[s] < len(order[s]):
                kind, k = order[s][position[s]]
                if kind == "F":
                    key, send = ("F", s - 1, k), problem.send_forward_s[s, found.starts[s]]
                elif s + 1 < p:
                    key, send = ("B", s + 1, k), problem.send_backward_s[s + 1, found.starts[s + 1]]
                else:
                    key, send = ("F", s, k), 0.0
                if key[1] >= 0 and key not in done:
                    break
                ready = done[key] + send if key[1] >= 0 else 0.0
                clock[s] = max(clock[s], ready) + (f[s] if kind == "F" else b[s])
                done[kind, s, k] = clock[s]
                position[s] += 1
    ends = [*found.starts[1:], problem.num_blocks]
    tails = [problem.tails_s[0][i, j] for i, j in zip(found.starts, ends, strict=True)]
    return max(end + tail for end, tail in zip(clock, tails, strict=True))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(problems())
def test_the_objective_never_exceeds_the_timeline(problem):
    found = partition(replace(problem, slots=_roomy(problem)))
    assert found is not None
    assert found.step_time_s <= timeline_end(problem, found) * (1 + 1e-12)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(1, 6), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_the_objective_is_the_timeline_where_stages_differ_by_a_third(p, m, seed):
    rng = np.random.default_rng(seed)
    problem = make_problem(
        range(p),
        stages=p,
        microbatches=m,
        forward=1 + rng.random(p) / 3,
        backward=(2 + 2 * rng.random(p) / 3)[:, None],
        tail=rng.random(p),
    )
    found = partition(problem)
    assert found.step_time_s == pytest.approx(timeline_end(problem, found), rel=1e-12)


def test_four_equal_stages_take_m_plus_p_minus_1_rounds():
    # F = 1, B = 2, p = 4, M = 8: (8 + 4 - 1) x 3 = 33.
    problem = make_problem(
        [0] * 4, stages=4, microbatches=8, forward=[1.0], backward=[[2.0]], schedule="1f1b"
    )
    assert partition(problem).step_time_s == 33.0


def test_recompute_is_chosen_only_where_memory_is_short():
    # Two stages of two blocks, M = 4; keep everything: F 1, B 2, 10 bytes; recompute: B 3, 1 byte.
    # Stage 0 has 2 in flight: 2 x (10 + 10) = 40 > 25, 2 x (10 + 1) = 22 fits: one recomputes.
    # Stage 1 has 1 in flight: 20 fits as it is. T = (7, 6):
    # 13 + max(6 + (4 - 2) x 7, (4 - 1) x 6) = 13 + 20 = 33.
    problem = make_problem(
        [0] * 4,
        stages=2,
        microbatches=4,
        forward=[1.0],
        backward=[[2.0, 3.0]],
        saved=[[10, 1]],
        capacity=25.0,
    )
    found = partition(problem)
    assert found.starts == (0, 2)
    assert sorted(found.strategies[:2]) == [0, 1]
    assert found.strategies[2:] == (0, 0)
    assert found.step_time_s == 33.0


def test_unlike_blocks_in_ample_memory_need_no_labels_but_the_fastest():
    # Each block may save 2^i bytes or take 2^-i seconds more: all 2^40 choices are undominated.
    blocks = 40
    problem = make_problem(
        list(range(blocks)),
        stages=2,
        microbatches=4,
        forward=[1.0] * blocks,
        backward=[[2.0, 2.0 + 2.0**-i] for i in range(blocks)],
        saved=[[2.0**i, 0.0] for i in range(blocks)],
        capacity=2.0**60,
    )
    assert set(partition(problem).strategies) == {0}


def test_nothing_fits_is_none():
    problem = make_problem([0], stages=1, backward=[[1.0]], static=[11], capacity=10.0)
    assert partition(problem) is None


def test_more_stages_than_blocks_is_an_error():
    with pytest.raises(InputError, match="3 stages need a block each, but there are 2 blocks"):
        make_problem([0, 0], stages=3, backward=[[1.0]])


def test_equal_problems_give_equal_partitions():
    problem = _large(82, 8, 3, repeated=True)
    assert partition(problem) == partition(problem)


@pytest.mark.parametrize(
    ("blocks", "stages", "options", "repeated"),
    [
        (82, 8, 3, True),
        (40, 8, 3, False),
        pytest.param(82, 16, 3, False, marks=pytest.mark.slow),
        pytest.param(126, 16, 12, True, marks=pytest.mark.slow),
    ],
)
def test_large_problems_give_what_they_promise(blocks, stages, options, repeated):
    problem = _large(blocks, stages, options, repeated=repeated)
    found = partition(problem)
    assert fits(problem, found)
    assert isinstance(found, Partition)
    assert found.step_time_s == step_time(problem, found.starts, found.strategies)


def _roomy(problem):
    return tuple(replace(slot, capacity_bytes=1e12) for slot in problem.slots)


def _large(blocks, stages, options, *, repeated):
    """Strategies from keep-all to recompute-all; memory for about half of what all would keep."""
    rng = np.random.default_rng(3)
    kinds = [0, *[1] * (blocks - 2), 2] if repeated else list(range(blocks))
    size = max(kinds) + 1
    step = np.linspace(0.0, 1.0, options)
    return make_problem(
        kinds,
        stages=stages,
        microbatches=4 * stages,
        forward=0.5 + 0.1 * rng.random(size),
        backward=1 + 0.4 * step + 0.05 * rng.random((size, options)),
        saved=np.floor(1e6 * (1.2 - step + 0.1 * rng.random((size, options)))),
        transient=np.floor(5e5 * np.broadcast_to(step, (size, options))),
        static=np.full(size, 5e5),
        capacity=1e6 * 0.55 * blocks + 5e5 * blocks / stages,
    )
