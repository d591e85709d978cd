"""Every ideal once, by subsets; contractions and satellites by hand."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.graph_partition.contract import contract
from bench.graph_partition.ideals import chain, enumerate_ideals
from bench.graph_partition.problem import GraphProblem, Tensor, find_cycle, topological
from bench.graph_partition.satellites import find_satellites
from bench.graph_partition.thin import with_window


def row_problem(count, order, *, work=None, tensors=()):
    return GraphProblem(
        names=tuple(f"b{i}" for i in range(count)),
        accelerator_s=tuple(work or [1.0] * count),
        host_s=tuple(work or [1.0] * count),
        memory_bytes=(1.0,) * count,
        on_accelerator=(True,) * count,
        order=tuple(order),
        tensors=tuple(tensors),
        accelerators=2,
        hosts=0,
        capacity_bytes=float("inf"),
    )


def sets_of(ideals):
    """Each ideal as a set, by the first of its links; every other link must agree."""
    found = [frozenset()]
    for i in range(1, ideals.count):
        links = range(ideals.first[i], ideals.first[i + 1])
        each = {found[ideals.smaller[j]] | {int(ideals.block[j])} for j in links}
        assert len(each) == 1
        blocks = [int(ideals.block[j]) for j in links]
        assert blocks == sorted(set(blocks))
        found.append(each.pop())
    return found


@st.composite
def orders(draw):
    count = draw(st.integers(1, 7))
    pairs = list(itertools.combinations(range(count), 2))
    return count, draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []


@settings(max_examples=100, deadline=None)
@given(orders())
def test_every_ideal_once(case):
    count, order = case
    pairs = np.array(order, dtype=np.int32).reshape(-1, 2)
    expected = {
        frozenset(part)
        for size in range(count + 1)
        for part in itertools.combinations(range(count), size)
        if all(a in part or b not in part for a, b in order)
    }
    found = sets_of(enumerate_ideals(count, pairs, 1000))
    assert len(found) == len(expected)
    assert set(found) == expected
    assert [len(part) for part in found] == sorted(len(part) for part in found)
    assert enumerate_ideals(count, pairs, len(expected) - 1) is None


def test_chain_is_the_prefixes():
    assert sets_of(chain(3)) == [frozenset(range(n)) for n in range(4)]


def test_contraction_closes_cycles():
    # a -> b -> c with a and c together: b lies between, so all three are one block of 3 seconds.
    tensors = [Tensor(producer=0, consumers=(1, 3), transfer_s=1.0)]
    small = contract(row_problem(4, [(0, 1), (1, 2), (2, 3)], tensors=tensors), (0, 1, 0, 3))
    assert small.members == ((0, 1, 2), (3,))
    assert small.problem.accelerator_s == (3.0, 1.0)
    assert small.problem.order == ((0, 1),)
    assert small.problem.tensors == (Tensor(producer=0, consumers=(0, 1), transfer_s=1.0),)


def test_satellites_join_only_at_no_loss():
    # 0 and 1 take no time and feed 2 only; 1 is read by 3 as well, so it stays.
    tensors = [
        Tensor(producer=0, consumers=(2,), transfer_s=1.0),
        Tensor(producer=1, consumers=(2, 3), transfer_s=1.0),
    ]
    problem = row_problem(4, [(0, 2), (1, 2), (2, 3)], work=[0.0, 0.0, 1.0, 1.0], tensors=tensors)
    assert find_satellites(problem).groups == (2, 1, 2, 3)
    assert find_satellites(problem).heavy == {0}
    assert find_satellites(problem, weightless=True).groups == (0, 1, 2, 3)


def test_window_keeps_far_blocks_in_turn():
    problem = with_window(row_problem(5, []), [0, 1, 2, 3, 4], 2)
    pairs = np.array(problem.order, dtype=np.int32)
    sets = sets_of(enumerate_ideals(5, pairs, 1000))
    assert all(max(part, default=0) - min(set(range(6)) - part) < 2 for part in sets)


def test_cycle_is_named_in_turn():
    cycle = find_cycle(5, [(0, 1), (1, 2), (2, 3), (3, 1), (3, 4)])
    assert len(cycle) == 3
    arrows = set(zip(cycle, (*cycle[1:], cycle[0]), strict=True))
    assert arrows == {(1, 2), (2, 3), (3, 1)}
    assert find_cycle(3, [(0, 1), (0, 1), (1, 2)]) == ()


def test_deep_order_finishes_a_branch_first():
    order = [(0, 1), (0, 3), (1, 2), (3, 4)]
    assert topological(5, order, deep=True) == [0, 1, 2, 3, 4]
    assert topological(5, [(0, 1), (0, 2), (1, 3), (2, 4)], deep=True) == [0, 1, 3, 2, 4]
