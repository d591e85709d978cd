"""Collectives: formulas by hand, measured points first, shared cards, and what may never happen."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import UnknownNameError
from profiles.hardware.catalogue.link import OPERATIONS, LinkPoint
from simulator.traced.comm_cost import price_collective
from tests.simulator.hand_made import cluster, link, said

MB = 1e6
NODE = (0, 1, 2, 3)
ONE_PER_NODE = (0, 4)
ALL = tuple(range(8))


def seconds(operation, size, devices, on=None, **more):
    return price_collective(operation, size, devices, on or cluster(), **more).time_s


def test_rings_in_a_node_by_hand():
    # n = 4, S = 100 MB, B = 100 GB/s, a = 1 us: (n-1) a + (n-1)/n S/B = 3 us + 0.75 ms.
    assert seconds("all_gather", 100 * MB, NODE) == pytest.approx(3e-6 + 0.75e-3)
    assert seconds("reduce_scatter", 100 * MB, NODE) == pytest.approx(3e-6 + 0.75e-3)
    # all_reduce is both: 6 us + 1.5 ms.
    assert seconds("all_reduce", 100 * MB, NODE) == pytest.approx(6e-6 + 1.5e-3)


def test_a_small_all_reduce_takes_the_tree():
    # 2 log2(4) a = 4 us beats the ring's 2 x 3 a = 6 us.
    assert seconds("all_reduce", 100.0, NODE) == pytest.approx(4e-6, rel=0.01)


def test_messages_by_hand():
    # Inside a node 1 us + 1 MB / 100 GB/s = 11 us; between nodes 10 us + 1 MB / 10 GB/s = 110 us.
    assert seconds("send", MB, (0, 1)) == pytest.approx(11e-6)
    assert seconds("send", MB, (0, 4)) == pytest.approx(110e-6)
    # One message reaches 3/4 of a card, or all that collectives reach where that is less: a half.
    half = replace(link(bandwidth=10e9, efficiency=0.5), message_efficiency=said(0.75))
    assert seconds("send", 1e9, (0, 4), cluster(outer=half)) == pytest.approx(0.2, rel=1e-3)
    whole = replace(half, efficiency=said(1.0))
    assert seconds("send", 1e9, (0, 4), cluster(outer=whole)) == pytest.approx(2 / 15, rel=1e-3)


def test_a_group_of_whole_nodes_uses_all_their_cards():
    # 8 devices on 2 nodes: 4 cards of 10 GB/s carry the ring between the nodes, 40 GB/s, which is
    # less than 100 GB/s inside. 7/8 of 1 GB twice at 40 GB/s = 43.75 ms; latency 14 hops.
    whole = seconds("all_reduce", 1e9, ALL)
    assert whole == pytest.approx(43.75e-3, rel=0.005)
    # One device per node has one card: 2 x 1/2 x 1 GB at 10 GB/s = 100 ms.
    assert seconds("all_reduce", 1e9, ONE_PER_NODE) == pytest.approx(100e-3, rel=0.005)


def test_groups_beside_each_other_share_cards():
    shared = cluster(outer=link(bandwidth=10e9, latency_s=10e-6, shared_by=2))
    alone = seconds("all_reduce", 1e9, ONE_PER_NODE, shared)
    assert alone == pytest.approx(100e-3, rel=0.005)
    # Four groups of one device per node, two devices per card: half the bandwidth each.
    both = seconds("all_reduce", 1e9, ONE_PER_NODE, shared, sharing=4)
    assert both == pytest.approx(200e-3, rel=0.005)
    # A card for every device: nothing to share.
    assert seconds("all_reduce", 1e9, ONE_PER_NODE, sharing=4) == pytest.approx(100e-3, rel=0.005)


def test_oversubscription_divides_the_outer_level_only():
    thin = cluster(oversubscription=4.0)
    assert seconds("all_reduce", 1e9, ONE_PER_NODE, thin) == pytest.approx(400e-3, rel=0.005)
    assert seconds("all_reduce", 1e9, NODE, thin) == seconds("all_reduce", 1e9, NODE)


def test_efficiency_is_of_the_bandwidth():
    half = cluster(inner=link(efficiency=0.5))
    assert seconds("all_gather", 1e9, NODE, half) == pytest.approx(15e-3, rel=0.005)


def points(operation="all_reduce", group_size=4, per_byte=50e-12):
    return tuple(
        LinkPoint(
            operation=operation,
            group_size=group_size,
            size_bytes=size,
            time_s=20e-6 + size * per_byte,
        )
        for size in (10**3, 10**5, 10**7, 10**9)
    )


def test_measured_points_come_first():
    measured = cluster(inner=link(points=points()))
    cost = price_collective("all_reduce", 10**7, NODE, measured)
    assert cost.time_s == pytest.approx(20e-6 + 10**7 * 50e-12)
    assert cost.method == "measured"
    between = price_collective("all_reduce", 3 * 10**6, NODE, measured)
    assert between.method == "interpolated"
    assert between.low < between.time_s < between.high
    beyond = price_collective("all_reduce", 10**11, NODE, measured)
    assert beyond.method == "assumed"
    # At the rate of the largest point, not above it.
    assert beyond.time_s == pytest.approx(100 * (20e-6 + 10**9 * 50e-12))
    # Another operation has no points: the formula.
    assert price_collective("all_gather", 10**7, NODE, measured).method == "assumed"


def test_another_group_size_moves_with_the_formula():
    measured = cluster(inner=link(points=points()))
    two = price_collective("all_reduce", 10**9, (0, 1), measured)
    # Ring share 2 (n-1)/n: 1 on two devices, 1.5 on four.
    assert two.time_s == pytest.approx((20e-6 + 10**9 * 50e-12) / 1.5, rel=0.01)
    assert two.method == "assumed"
    small = cluster(inner=link(points=points(group_size=2)))
    four = price_collective("all_reduce", 10**9, NODE, small)
    assert four.time_s == pytest.approx((20e-6 + 10**9 * 50e-12) * 1.5, rel=0.01)


@pytest.mark.parametrize("operation", ["all_gather", "all_reduce"])
def test_a_group_over_nodes_moves_with_the_formula_of_its_nodes(operation):
    """Measured on two whole nodes of four; on three, by the formula of three over that of two."""
    outer = link(bandwidth=40e9, latency_s=10e-6)
    on = cluster(3, outer=replace(outer, points=points(operation, group_size=8)))
    two, three = (
        seconds(operation, 1e9, tuple(range(n)), cluster(3, outer=outer)) for n in (8, 12)
    )
    measured = seconds(operation, 1e9, ALL, on)
    assert seconds(operation, 1e9, tuple(range(12)), on) == pytest.approx(measured * three / two)


@pytest.mark.parametrize(("group", "nearest"), [(3, 2), (4, 2), (5, 8), (7, 8)])
def test_the_nearest_measured_group_is_by_ratio(group, nearest):
    measured = {2: 50e-12, 8: 500e-12}
    every = [points(group_size=size, per_byte=slow) for size, slow in measured.items()]
    on = cluster(1, 8, inner=link(points=tuple(itertools.chain(*every))))
    devices, plain = tuple(range(group)), cluster(1, 8)
    ratio = seconds("all_reduce", 1e9, devices, plain)
    ratio /= seconds("all_reduce", 1e9, tuple(range(nearest)), plain)
    found = seconds("all_reduce", 1e9, devices, on)
    assert found == pytest.approx((20e-6 + 1e9 * measured[nearest]) * ratio)


def test_measured_groups_beside_each_other_share_cards():
    """Measured alone; four groups, two devices per card, take twice as long as the formula says."""
    on = cluster(
        outer=link(bandwidth=10e9, latency_s=10e-6, shared_by=2, points=points(group_size=2))
    )
    measured = 20e-6 + 1e9 * 50e-12
    assert seconds("all_reduce", 1e9, ONE_PER_NODE, on) == pytest.approx(measured)
    both = seconds("all_reduce", 1e9, ONE_PER_NODE, on, sharing=4)
    assert both == pytest.approx(2 * measured, rel=0.005)
    # One device in each of four nodes: 3/4 of the bytes pass a card instead of half, shared or not.
    four = cluster(4, outer=on.levels[1].link)
    for sharing, each in ((1, measured), (4, 2 * measured)):
        found = seconds("all_reduce", 1e9, (0, 4, 8, 12), four, sharing=sharing)
        assert found == pytest.approx(1.5 * each, rel=0.005)


def test_one_device_or_nothing_to_send_is_free():
    assert seconds("all_reduce", 1e9, (3,)) == 0.0
    assert seconds("all_reduce", 0.0, NODE) == 0.0
    assert seconds("barrier", 0.0, NODE) > 0.0


def test_unknown_operation():
    with pytest.raises(UnknownNameError, match="Did you mean 'all_reduce'"):
        price_collective("allreduce", 1.0, NODE, cluster())


@given(
    st.sampled_from(OPERATIONS),
    st.floats(1.0, 1e11),
    st.sampled_from([NODE, ONE_PER_NODE, ALL, (0, 1), (1, 2, 5, 6)]),
    st.floats(1.0, 10.0),
)
@settings(deadline=None)
def test_more_bandwidth_less_data_and_less_latency_are_never_slower(operation, size, group, by):
    if operation == "send":
        group = group[:2]
    base = price_collective(operation, size, group, cluster())
    assert 0 < base.low <= base.time_s <= base.high
    better = [
        cluster(inner=link(bandwidth=100e9 * by)),
        cluster(outer=link(bandwidth=10e9 * by, latency_s=10e-6)),
        cluster(inner=link(latency_s=1e-6 / by)),
    ]
    for other in better:
        assert seconds(operation, size, group, other) <= base.time_s * (1 + 1e-12)
    assert seconds(operation, size / by, group) <= base.time_s * (1 + 1e-12)
    for sharing in (2, 4):
        assert seconds(operation, size, group, sharing=sharing) >= base.time_s * (1 - 1e-12)


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_no_collective_beats_the_wire(operation):
    # Every device must receive (n - 1)/n S (twice for a sum); between nodes at least half of all
    # data crosses, over 4 cards of 10 GB/s per node.
    for size, group in itertools.product((1e6, 1e9), (NODE, ALL)):
        least = (len(group) - 1) / len(group) * size / 100e9
        assert seconds(operation, size, group) >= least
    if operation != "all_to_all":
        assert seconds(operation, 1e9, ALL) >= 0.5 * 1e9 / 40e9
