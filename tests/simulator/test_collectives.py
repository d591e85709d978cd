"""Collectives from plain numbers: by hand, against clusters, and what may never happen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import UnknownNameError
from profiles.hardware.catalogue.catalog import get_cluster, get_device
from profiles.hardware.catalogue.cluster import Cluster, Level, NodeGroup
from profiles.hardware.catalogue.link import OPERATIONS
from profiles.hardware.kernels.collective_curve import load_curves
from simulator.collectives import cards_shared
from simulator.traced.comm_cost import FORMULA_UNCERTAINTY, price_collective
from tests.simulator.fabric import Fabric, collective_time_s, fabric_of
from tests.simulator.hand_made import cluster as hand_made_cluster
from tests.simulator.hand_made import device, link, said

GB, MB = 1e9, 1e6
PLAIN = Fabric(
    domain_size=8,
    inner_rate_bytes_per_s=100e9,
    inner_latency_s=1e-6,
    outer_rate_bytes_per_s=10e9,
    outer_latency_s=10e-6,
)


def seconds(operation, size, group, per_node, fabric=PLAIN, **more):
    return collective_time_s(
        operation, size, group_size=group, group_per_node=per_node, fabric=fabric, **more
    )


def test_two_nodes_by_hand():
    # 16 devices, 8 cards of 10 GB/s per node: 15/16 x 1 GB / 80 GB/s = 11.72 ms; the ring crosses
    # once between the nodes (10 us) and 2 x 7 times inside (1 us).
    assert seconds("all_gather", GB, 16, 8) == pytest.approx(15 / 16 * GB / 80e9 + 24e-6)
    # A tree: 2 GB / 80 GB/s + 2 (3 x 1 us + 10 us) = 25.026 ms; the ring, 23.4875 ms, is faster.
    assert seconds("all_reduce", GB, 16, 8) == pytest.approx(2 * (15 / 16 * GB / 80e9 + 24e-6))
    assert seconds("all_reduce", 1.0, 16, 8) == pytest.approx(2 * 13e-6, rel=1e-3)
    assert seconds("barrier", 0.0, 16, 8) == pytest.approx(2 * 13e-6)
    # Half of an all-to-all leaves over a card each; 7 peers inside one after the other (1 us), the
    # 8 peers in the other node at once (10 us).
    assert seconds("all_to_all", GB, 16, 8) == pytest.approx(0.5 / 10 + 17e-6)


def test_one_card_for_a_node_is_shared_by_all_that_talk():
    one = Fabric(
        domain_size=8,
        inner_rate_bytes_per_s=100e9,
        inner_latency_s=0.0,
        outer_rate_bytes_per_s=10e9,
        outer_latency_s=0.0,
        nics_shared_by=8,
    )
    # A group of whole nodes gets the one card: 15/16 GB / 10 GB/s; so does one device per node
    # alone; eight such groups at once get an eighth each.
    assert seconds("all_gather", GB, 16, 8, one) == pytest.approx(15 / 16 / 10)
    assert seconds("all_gather", GB, 2, 1, one) == pytest.approx(0.5 / 10)
    assert seconds("all_gather", GB, 2, 1, one, sharing=8) == pytest.approx(0.5 / 10 * 8)


def test_cards_of_a_rack():
    # 72 devices with a card each: 8 of them use 8 cards. Two per card, all on: two share.
    assert cards_shared(8, 1, 72, 1) == 1.0
    assert cards_shared(8, 9, 72, 2) == 2.0
    assert cards_shared(1, 1, 8, 4) == 1.0
    assert cards_shared(1, 4, 8, 4) == 2.0  # four devices on two cards


def test_a_mesh_of_cables_uses_those_to_its_peers():
    mesh = Fabric(
        domain_size=8,
        inner_rate_bytes_per_s=70e9,
        inner_latency_s=0.0,
        outer_rate_bytes_per_s=1e9,
        outer_latency_s=0.0,
        direct_peers=7,
    )
    # Two of eight have one cable of seven: 10 GB/s; eight have all seven.
    assert seconds("send", GB, 2, 2, mesh) == pytest.approx(0.1)
    assert seconds("all_gather", GB, 2, 2, mesh) == pytest.approx(0.05)
    assert seconds("all_gather", GB, 8, 8, mesh) == pytest.approx(7 / 8 / 70)


def test_a_torus_by_hand():
    torus = Fabric(
        domain_size=4096,
        inner_rate_bytes_per_s=300e9,
        inner_latency_s=1e-6,
        outer_rate_bytes_per_s=1e9,
        outer_latency_s=0.0,
        torus_axes=3,
    )
    # 4096 = 16^3: 3 x 15 / 2 hops. All links carry the ring: 4095/4096 x 3 GB / 300 GB/s.
    whole = 3 * GB * 4095 / 4096 / 300e9
    assert seconds("all_gather", 3 * GB, 4096, 4096, torus) == pytest.approx(22.5e-6 + whole)
    # Every byte passes 16/4 links per axis, 12 links: 12 x 3 GB / 300 GB/s.
    assert seconds("all_to_all", 3 * GB, 4096, 4096, torus) == pytest.approx(22.5e-6 + 0.12)
    # A neighbour is reached over one of six links.
    assert seconds("send", 3 * GB, 2, 2, torus) == pytest.approx(3 * GB / 50e9, rel=1e-3)


def test_measured_curves_inside_and_formulas_beyond():
    h100 = fabric_of("h100")
    assert h100.curve is not None
    curves = load_curves("h100-sxm-80gb")
    assert curves is not None
    # nccl-tests on eight H100: all_reduce of 512 MiB takes 2.111 ms, all_gather of 2 MiB 22 us.
    assert seconds("all_reduce", 2**29, 8, 8, h100) == pytest.approx(2.111e-3, rel=0.03)
    assert seconds("all_gather", 2**21, 8, 8, h100) == pytest.approx(22e-6, rel=0.15)
    assert seconds("barrier", 0, 8, 8, h100) == curves.floor_s("all_reduce", 8)
    # Eight nodes, 1 GB: 7 hops of 12 us between the nodes and 7 x 7 more inside. The ring inside is
    # slower (curve of eight devices at 63/64 GB per link) than 8 cards of 45 GB/s, but faster than
    # 8 of 25 GB/s.
    hops_s = 49 * curves.hop_s("all_gather") + 7 * 12e-6
    inside_s = curves.time_s("all_gather", 8, 63 / 64 * GB)
    assert 63 / 64 * GB / 360e9 < inside_s < 63 / 64 * GB / 200e9
    assert seconds("all_gather", GB, 64, 8, h100) == pytest.approx(inside_s + hops_s)
    half = fabric_of("h100", outer_efficiency=0.5)
    assert seconds("all_gather", GB, 64, 8, half) == pytest.approx(63 / 64 * GB / 200e9 + hops_s)
    # A small sum takes the tree: the curve and 2 x 3 hops of 12 us.
    small = curves.time_s("all_reduce", 8, 2 * 63 / 64 * 1e4) + 6 * 12e-6
    assert seconds("all_reduce", 1e4, 64, 8, h100) == pytest.approx(small)
    # One message alone reaches 36 of the card's 50 GB/s.
    assert seconds("send", GB, 2, 1, h100) == pytest.approx(12e-6 + GB / 36e9)


def test_what_was_measured_between_nodes():
    # stas00's all_reduce_bench on 4 nodes of eight B200 (EFA v4): bus bandwidth 361.99 GB/s at
    # 1 GiB, 156.74 at 64 MiB, 5.37 at 1 MiB.
    b200 = fabric_of("b200", outer_link="efa-v4")
    for size, bandwidth, within in ((2**30, 361.99, 0.1), (2**26, 156.74, 0.2), (2**20, 5.37, 0.1)):
        measured = 2 * 31 / 32 * size / (bandwidth * 1e9)
        assert seconds("all_reduce", size, 32, 8, b200) == pytest.approx(measured, rel=within)


def test_boards_on_one_bus_slow_each_other_down():
    l40s = fabric_of("l40s")
    alone = seconds("all_gather", 64 * MB, 2, 2, l40s)
    # Four pairs load the host's bus as eight boards do.
    crowd = seconds("all_gather", 64 * MB, 2, 2, l40s, sharing=4)
    assert l40s.curve is not None
    assert crowd == l40s.curve.time_s("all_gather", 8, 32 * MB) > 5 * alone
    # An NVSwitch has a port for each.
    h100 = fabric_of("h100")
    for size in (1e3, 64 * MB):
        pair = seconds("all_gather", size, 2, 2, h100)
        assert seconds("all_gather", size, 2, 2, h100, sharing=4) == pair


def test_a_fabric_that_reaches_less():
    slow = fabric_of("h100", outer_efficiency=0.3)
    assert seconds("all_gather", GB, 64, 8, slow) > 2.5 * seconds(
        "all_gather", GB, 64, 8, fabric_of("h100")
    )
    # The message is held to the fabric's share as well.
    assert seconds("send", GB, 2, 1, slow) == pytest.approx(12e-6 + GB / 15e9)


def test_unknown_names():
    with pytest.raises(UnknownNameError, match="Did you mean 'all_reduce'"):
        seconds("allreduce", 1.0, 8, 8)
    with pytest.raises(UnknownNameError, match="nvlink4"):
        fabric_of("h100", inner_link="nvlink-4")
    with pytest.raises(UnknownNameError, match="h100"):
        fabric_of("h101")


def test_nothing_to_do_is_free():
    assert seconds("all_reduce", GB, 1, 1) == 0.0
    assert seconds("all_reduce", 0.0, 8, 8) == 0.0


@given(
    st.sampled_from(OPERATIONS),
    st.sampled_from(["h100", "a100", "b200", "gb200", "h800", "l40s", "mi300x", "v100"]),
    st.sampled_from([(2, 1), (2, 2), (4, 4), (8, 8), (16, 8), (8, 1), (8, 2), (16, 4)]),
    st.sampled_from([1, 2, 4]),
    st.floats(1.0, 1e10),
)
@settings(deadline=None, max_examples=200)
def test_clusters_and_plain_numbers_agree(operation, name, group, sharing, size):
    # The same two nodes of eight (or eight and eight), built and not built.
    count, per_node = group
    if operation == "send" and count > 2:
        return
    nodes = count // per_node
    cluster = get_cluster(f"{max(nodes, 2)}x8x{name}")
    devices = tuple(8 * node + k for node in range(nodes) for k in range(per_node))
    built = price_collective(operation, size, devices, cluster, sharing=sharing)
    plain = seconds(
        operation, size, count, per_node, fabric_of(name, domain_size=8), sharing=sharing
    )
    assert built.time_s == pytest.approx(plain)
    assert 0 < built.low < built.time_s < built.high


@given(
    st.sampled_from(OPERATIONS),
    st.sampled_from(["h100", "gb200", "l40s", "tpu-v5p", "mi300x"]),
    st.sampled_from([(2, 1), (8, 8), (64, 8), (64, 1), (72, 72)]),
    st.floats(1.0, 1e10),
    st.floats(1.0, 10.0),
)
@settings(deadline=None, max_examples=200)
def test_more_bytes_less_card_or_more_talk_is_never_faster(operation, name, group, size, by):
    if operation == "send" and group[0] > 2:
        return
    fabric = fabric_of(name)
    base = seconds(operation, size, *group, fabric)
    assert base <= seconds(operation, size * by, *group, fabric) * (1 + 1e-9)
    assert base <= seconds(operation, size, *group, fabric, sharing=4) * (1 + 1e-9)
    thin = fabric_of(name, oversubscription=by)
    assert base <= seconds(operation, size, *group, thin) * (1 + 1e-9)
    one_card = fabric_of(name, nics_shared_by=8)
    if fabric.nics_shared_by <= 8:
        assert base <= seconds(operation, size, *group, one_card) * (1 + 1e-9)


def test_a_what_if_link_of_the_same_name_scales_the_curve():
    h100 = get_device("h100")
    twice = link(bandwidth=900e9, latency_s=2.54e-6, efficiency=0.719, name="nvlink4")

    def time_s(used):
        cluster = Cluster(
            name="what-if",
            groups=(NodeGroup(count=1, devices_per_node=8, device=h100),),
            levels=(Level(name="node", domain_size=8, link=used),),
        )
        return price_collective("all_gather", 2**29, tuple(range(8)), cluster).time_s

    usual = price_collective("all_gather", 2**29, tuple(range(8)), get_cluster("8xh100")).time_s
    floor = seconds("all_gather", 1.0, 8, 8, fabric_of("h100"))
    assert time_s(twice) == pytest.approx(floor + (usual - floor) / 2)
    # Another name is another link: the formula, 7 hops and 7/8 of the buffer.
    other = link(bandwidth=900e9, latency_s=1e-6, name="hand-link")
    assert time_s(other) == pytest.approx(7e-6 + 7 / 8 * 2**29 / 900e9)


def test_the_interval_says_what_was_measured():
    cluster = get_cluster("2x8xh100")
    inside = price_collective("all_reduce", 1e8, tuple(range(8)), cluster)
    assert inside.method == "interpolated"
    assert "nccl-tests" in inside.source
    assert inside.high / inside.time_s < 1.2
    between = price_collective("all_reduce", 1e8, tuple(range(3)), cluster)
    assert between.method == "assumed"
    assert between.high / between.time_s > 1.25  # the formula's uncertainty in addition
    across = price_collective("all_reduce", 1e8, tuple(range(16)), cluster)
    assert (across.method, "InfiniBand" in across.source) == ("assumed", True)
    assert across.high / across.time_s > 1.5
    borrowed = price_collective("all_reduce", 1e8, tuple(range(8)), get_cluster("8xh800"))
    assert borrowed.method == "assumed"
    rack = price_collective("all_reduce", 1e8, tuple(range(8)), get_cluster("8xgb200"))
    assert rack.method == "assumed"
    hand = Cluster(
        name="hand",
        groups=(NodeGroup(count=1, devices_per_node=8, device=device()),),
        levels=(Level(name="node", domain_size=8, link=link(name="nvlink4")),),
    )
    assert price_collective("all_reduce", 1e8, tuple(range(8)), hand).method == "assumed"


def test_a_formula_is_as_uncertain_as_it_is_and_its_link():
    doubtful = replace(
        link(),
        bandwidth_bytes_per_s=said(100e9, 0.1),
        efficiency=said(0.8, 0.05),
        latency_s=said(1e-6, 0.2),
    )
    cost = price_collective("all_gather", 1e8, (0, 1, 2, 3), hand_made_cluster(inner=doubtful))
    width = 1 + FORMULA_UNCERTAINTY + 0.1 + 0.05 + 0.2
    assert (cost.low * width, cost.high / width) == pytest.approx((cost.time_s, cost.time_s))


@pytest.mark.parametrize("level", [{"oversubscription": 1.5}, {"shared_by": 2}], ids=str)
def test_a_curve_is_not_of_links_that_are_shared(level):
    cluster = get_cluster("8xh100")
    (node,) = cluster.levels
    if "shared_by" in level:
        level = {"link": replace(node.link, **level)}
    shared = replace(cluster, levels=(replace(node, **level),))
    assert "nccl-tests" in price_collective("all_reduce", 1e8, tuple(range(8)), cluster).source
    assert "nccl-tests" not in price_collective("all_reduce", 1e8, tuple(range(8)), shared).source
