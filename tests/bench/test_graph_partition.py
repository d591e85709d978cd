"""The planner's splits against brute force over all contiguous splits, and hand-made graphs."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.graph_partition.check import check_split
from bench.graph_partition.contract import contract
from bench.graph_partition.problem import (
    DeviceKind,
    GraphProblem,
    Share,
    Tensor,
    find_cycle,
    topological,
)
from bench.graph_partition.split import split_graph
from profiles.errors import InfeasibleError, InputError


def graph(work, order=(), *, host=None, memory=None, on=None, tensors=(), accelerators=2, hosts=0,
          capacity=float("inf")):  # fmt: skip
    """A problem from figures; what is left out costs nothing and is allowed."""
    count = len(work)
    return GraphProblem(
        names=tuple(f"b{i}" for i in range(count)),
        accelerator_s=tuple(map(float, work)),
        host_s=tuple(map(float, host if host is not None else [10 * w for w in work])),
        memory_bytes=tuple(map(float, memory if memory is not None else [0] * count)),
        on_accelerator=tuple(on if on is not None else [True] * count),
        order=tuple(order),
        tensors=tuple(Tensor(producer=p, consumers=tuple(c), transfer_s=t) for p, c, t in tensors),
        accelerators=accelerators,
        hosts=hosts,
        capacity_bytes=capacity,
    )


def brute_force(problem):
    """The least largest load over all assignments to all rows of device kinds, or None."""
    kinds = [DeviceKind.ACCELERATOR] * problem.accelerators + [DeviceKind.HOST] * problem.hosts
    best = None
    for row in set(itertools.permutations(kinds)):
        for places in itertools.product(range(len(row)), repeat=len(problem.names)):
            shares = tuple(
                Share(kind=kind, blocks=tuple(b for b, p in enumerate(places) if p == at))
                for at, kind in enumerate(row)
            )
            checked = check_split(problem, shares)
            if not checked.faults and (best is None or checked.max_load_s < best):
                best = checked.max_load_s
    return best


@st.composite
def problems(draw):
    count = draw(st.integers(1, 5))
    small = st.integers(0, 6)
    figures = st.lists(small, min_size=count, max_size=count)
    pairs = list(itertools.combinations(range(count), 2))
    order = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    names = draw(st.permutations(range(count)))
    block = st.integers(0, count - 1)
    accelerators = draw(st.integers(0, 3))
    return graph(
        draw(figures),
        [(names[a], names[b]) for a, b in order],
        host=draw(figures),
        memory=draw(figures),
        on=draw(
            st.lists(st.sampled_from([True, True, True, False]), min_size=count, max_size=count)
        ),
        tensors=draw(
            st.lists(
                st.tuples(block, st.lists(block, max_size=3), st.sampled_from([0.0, 0.5, 2.0])),
                max_size=5,
            )
        ),
        accelerators=accelerators,
        hosts=draw(st.integers(0 if accelerators else 1, 3 - max(accelerators, 1))),
        capacity=draw(st.sampled_from([3.0, 6.0, 9.0, float("inf")])),
    )


def max_load(problem, found):
    """The largest load by the checker; the split is legal."""
    checked = check_split(problem, found.shares)
    assert checked.faults == ()
    return checked.max_load_s


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problems())
def test_equals_brute_force(problem):
    best = brute_force(problem)
    if best is None:
        with pytest.raises(InfeasibleError, match="no split"):
            split_graph(problem, 10.0)
        return
    found = split_graph(problem, 10.0)
    assert max_load(problem, found) == pytest.approx(best, rel=1e-9, abs=1e-12)
    assert found.bound_s == pytest.approx(best, rel=1e-9, abs=1e-12)
    assert found.proven


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problems(), st.integers(2, 6))
def test_too_many_ideals_still_bound(problem, most_ideals):
    """With room for a few ideals only, the split is legal and the bound holds."""
    best = brute_force(problem)
    try:
        found = split_graph(problem, 10.0, most_ideals=most_ideals)
    except InfeasibleError:
        return
    assert found.bound_s <= best * (1 + 1e-9)
    assert max_load(problem, found) >= best * (1 - 1e-9)


def test_diamond_pays_every_consumer_device():
    # a(4) -> b(4), c(4) -> d(4); a's tensor costs 1 and is read by b and c, b's and c's cost 1.
    # On 2 devices: {a, b} {c, d}: left 8 + 1 (a to c) + 1 (b to d), right 8 + 1 + 1: 10 each.
    # {a} {b, c, d}: right 12 + 1. So 10.
    tensors = [(0, (1, 2), 1.0), (1, (3,), 1.0), (2, (3,), 1.0)]
    found = split_graph(graph([4] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)], tensors=tensors), 5.0)
    assert found.max_load_s == pytest.approx(10.0)
    assert found.bound_s == found.max_load_s
    # On 4 devices each alone: a pays 4 + 1, b and c 4 + 1 + 1, d 4 + 2: 6.
    four = split_graph(
        graph([4] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)], tensors=tensors, accelerators=4), 5.0
    )
    assert four.max_load_s == pytest.approx(6.0)


def test_a_host_pays_no_transfers_and_holds_what_must_be_there():
    # The middle of 5 -> 5 -> 5 runs on a host only (7 s there); tensors cost 1.
    problem = graph(
        [5, 5, 5],
        [(0, 1), (1, 2)],
        host=[50, 7, 50],
        on=[True, False, True],
        tensors=[(0, (1,), 1.0), (1, (2,), 1.0)],
        hosts=1,
    )
    found = split_graph(problem, 5.0)
    assert found.max_load_s == pytest.approx(7.0)
    assert [share.kind for share in found.shares] == [
        DeviceKind.ACCELERATOR,
        DeviceKind.HOST,
        DeviceKind.ACCELERATOR,
    ]


def test_a_weight_s_bytes_count():
    # Two blocks with 3 s, each with a weight of 4 bytes in front that takes no time.
    order = [(0, 1), (2, 3), (1, 3)]
    problem = graph([0, 3, 0, 3], order, memory=[4, 1, 4, 1], capacity=5.0)
    found = split_graph(problem, 5.0)
    assert {share.blocks for share in found.shares} == {(0, 1), (2, 3)}
    # 9 bytes hold one block with both weights, not both blocks: 3 s still, and never 6 s.
    assert split_graph(dataclasses.replace(problem, capacity_bytes=9.0), 5.0).max_load_s == 3.0


def test_no_split_gives_the_reason():
    def refused(problem):
        with pytest.raises(InfeasibleError) as error:
            split_graph(problem, 5.0)
        return str(error.value)

    assert refused(graph([1, 1], on=[True, False])) == (
        "no split: b1 runs on hosts only, and there are none; add a host"
    )
    too_big = refused(graph([1, 1], memory=[1, 9], capacity=6.0))
    assert too_big.startswith("no split: b1 needs 9 bytes, an accelerator has 6")
    # Three blocks of 4 bytes in a row on two devices: some device holds two, 8 bytes.
    in_a_row = graph([1, 1, 1], [(0, 1), (1, 2)], memory=[4, 4, 4], capacity=6.0)
    assert refused(in_a_row).startswith("no split: none fits the memory")


def test_wide_graph_has_a_split_and_a_bound():
    """40 parallel branches have 4^40 ideals: a window of them gives a legal, close split."""
    work = [1 + (7 * i) % 5 for i in range(120)]
    order = [(3 * b + k, 3 * b + k + 1) for b in range(40) for k in range(2)]
    problem = graph(work, order, accelerators=4)
    found = split_graph(problem, 5.0)
    assert not found.proven
    assert sum(work) / 4 <= found.bound_s * (1 + 1e-5)
    assert found.bound_s <= max_load(problem, found) <= 1.05 * found.bound_s


def test_contraction_closes_cycles():
    # a -> b -> c with a and c together: b lies between, so all three are one block of 3 seconds.
    problem = graph([1] * 4, [(0, 1), (1, 2), (2, 3)], tensors=[(0, (1, 3), 1.0)])
    small = contract(problem, (0, 1, 0, 3))
    assert small.members == ((0, 1, 2), (3,))
    assert small.problem.accelerator_s == (3.0, 1.0)
    assert small.problem.order == ((0, 1),)
    assert small.problem.tensors == (Tensor(producer=0, consumers=(0, 1), transfer_s=1.0),)


def test_cycle_is_named_in_turn():
    cycle = find_cycle([(0, 1), (1, 2), (2, 3), (3, 1), (3, 4)])
    assert len(cycle) == 3
    arrows = set(zip(cycle, (*cycle[1:], cycle[0]), strict=True))
    assert arrows == {(1, 2), (2, 3), (3, 1)}
    assert find_cycle([(0, 1), (0, 1), (1, 2)]) == ()


def test_topological_order_finishes_a_branch_first():
    assert topological(5, [(0, 1), (0, 3), (1, 2), (3, 4)]) == [0, 1, 2, 3, 4]
    assert topological(5, [(0, 1), (0, 2), (1, 3), (2, 4)]) == [0, 1, 3, 2, 4]


@pytest.mark.parametrize("limit", [0, -1.0, float("nan")])
def test_time_limit_must_be_above_zero(limit):
    with pytest.raises(InputError, match=r"time_limit_s is .* must be above 0"):
        split_graph(graph([1]), limit)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"accelerator_s": (1.0, float("nan"))}, "accelerator_s of block b1 is nan"),
        ({"host_s": (-1.0, 0.0)}, "host_s of block b0 is -1.0"),
        ({"memory_bytes": (0.0, float("inf"))}, "memory_bytes of block b1 is inf"),
        ({"host_s": (1.0,)}, "host_s has 1 entries for 2 blocks"),
        ({"accelerators": 0}, "at least one device"),
        ({"order": ((0, 1), (1, 0))}, "cycle: b0 -> b1 -> b0|cycle: b1 -> b0 -> b1"),
        ({"order": ((0, 2),)}, "block 2 is referred to, but blocks are 0 to 1"),
        ({"capacity_bytes": float("nan")}, "capacity_bytes is nan"),
        (
            {"tensors": (Tensor(producer=0, consumers=(1,), transfer_s=-2.0),)},
            "transfer_s of a tensor of block 0 is -2.0",
        ),
    ],
)
def test_problem_refuses(change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(graph([1, 1]), **change)
