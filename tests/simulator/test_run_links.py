"""The collectives of a described run: by hand, and the same numbers as on a built cluster."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.hardware.catalogue.catalog import get_cluster
from simulator.collectives import NOTHING, CollectiveTime
from simulator.traced.comm_cost import price_collective
from simulator.training_run.messages.rank_group import (
    RankGroup,
    data_group,
    expert_group,
    expert_replicas,
)
from simulator.training_run.messages.run_links import Links, links_of, moved, sent
from simulator.values.degrees import AXIS_ORDERS
from tests.simulator.described_runs import LLAMA_RUN, changed

GB = 1e9
ON_H100 = links_of(LLAMA_RUN)
# Round: 100 GB/s inside, 25 GB/s of network for each of eight devices, nothing measured.
LINKS = Links(
    node_devices=8,
    inner_bytes_per_s=100e9,
    inner_latency_s=0.0,
    outer=replace(ON_H100.outer, bytes_per_s_per_node=200e9, efficiency=1.0, latency_s=0.0),
)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def test_ranks_a_node_apart_have_one_card_each() -> None:
    """4 ranks 8 devices apart: 2 x 3/4 GB over 25 GB/s is 60 ms, and nothing inside."""
    found = moved("all_reduce", GB, RankGroup(((4, 8),)), LINKS)
    assert found.outer_s == pytest.approx(60e-3)
    assert found.inner_s == found.outer_latency_s == 0.0


def test_strided_ranks_share_a_nodes_cards() -> None:
    """8 ranks 4 apart are 2 in each of 4 nodes: 2 x 7/8 GB over 2 x 25 GB/s is 35 ms; inside a
    node 17.5 ms pass meanwhile."""
    found = moved("all_reduce", GB, RankGroup(((8, 4),)), LINKS)
    assert found.outer_s == pytest.approx(35e-3)
    assert found.inner_s == pytest.approx(17.5e-3)
    assert found.total_s == found.outer_s
    # 2 ranks 4 apart lie in one node.
    assert moved("all_reduce", GB, RankGroup(((2, 4),)), LINKS).outer_s == 0.0


def test_all_to_all_by_where_the_peers_are() -> None:
    """16 ranks, 1 GB sent by each: 7/16 to the node's others over 100 GB/s, 8/16 outside over the
    device's own 25 GB/s, at once."""
    found = moved("all_to_all", GB, RankGroup(((16, 1),)), LINKS)
    assert found.inner_s == pytest.approx(7 / 16 / 100)
    assert found.outer_s == pytest.approx(8 / 16 / 25)


@pytest.mark.parametrize("device", ["h100-sxm-80gb", "mi300x", "tpu-v5e"])
def test_a_given_rate_is_that_of_a_switch(device: str) -> None:
    """Without the measured curve, the direct peers or the torus of the device's usual link."""
    usual = links_of(changed(LLAMA_RUN, device=device))
    assert usual.curve or usual.direct_peers or usual.torus_axes
    given = links_of(changed(LLAMA_RUN, device=device, inner_bytes_per_s=100e9))
    inner = replace(LINKS, inner_latency_s=usual.inner_latency_s)
    assert given == replace(inner, node_devices=given.node_devices, outer=given.outer)


@pytest.mark.parametrize(
    ("device", "share"),
    [("tpu-v4", 1 / 6), ("tpu-v5e", 1 / 4), ("mi300x", 1 / 7), ("mi250x", 1.0)],
)
def test_a_message_takes_the_links_to_its_neighbor(device: str, share: float) -> None:
    """Two on each axis of a torus, one to each of seven peers, all behind a switch."""
    links = replace(links_of(changed(LLAMA_RUN, device=device)), curve=None)
    found = sent(GB, links, crosses_nodes=False)
    assert found.inner_s == pytest.approx(GB / (links.inner_bytes_per_s * share))


def test_nobody_to_talk_to() -> None:
    for operation in OPERATIONS:
        assert moved(operation, GB, RankGroup(((1, 1),)), LINKS) == NOTHING
        assert moved(operation, 0.0, RankGroup(((8, 1),)), LINKS) == NOTHING


def test_axes_that_go_on_count_as_one() -> None:
    """3 x 8 neighbours are 24 ranks side by side: 8 of them in every node."""
    assert RankGroup(((3, 1), (8, 3))).within(8) == 8
    assert RankGroup(((2, 1), (4, 4))).within(8) == 4


@pytest.mark.parametrize(
    ("degrees", "spread", "replicas"),
    [
        # 8 ranks a stage, 4 of which spread the experts: rank 0's neighbours and its one replica.
        ({"dp": 8, "ep": 4}, (0, 1, 2, 3), (0, 4)),
        # Ranks of a tensor group hold the same experts.
        ({"tp": 2, "dp": 8, "ep": 4}, (0, 2, 4, 6), (0, 1, 8, 9)),
        # Fewer replicas than parts of the experts: half of a tensor group takes part.
        ({"tp": 4, "dp": 2, "ep": 4}, (0, 1, 4, 5), (0, 2)),
        # Context-parallel ranks come first.
        ({"cp": 2, "dp": 8, "ep": 4}, (0, 1, 2, 3), (0, 4, 8, 12)),
        ({"cp": 4, "dp": 2, "ep": 2}, (0, 1), (0, 2, 4, 6)),
    ],
    ids=str,
)
def test_ranks_of_experts_by_hand(
    degrees: dict[str, int], spread: tuple[int, ...], replicas: tuple[int, ...]
) -> None:
    run = changed(LLAMA_RUN, **({"tp": 1, "cp": 1, "dp": 1, "ep": 1} | degrees))
    assert devices_of(expert_group(run)) == spread
    assert devices_of(expert_replicas(run)) == replicas


@pytest.mark.parametrize("axis_order", AXIS_ORDERS)
def test_every_rank_of_a_stage_has_a_part_of_the_experts_and_a_place_among_its_replicas(
    axis_order: str,
) -> None:
    degrees = itertools.product((1, 2, 3, 4), (1, 2, 4), (1, 2, 3, 4, 6), (1, 2, 3, 4, 6, 8, 16))
    for tp, cp, dp, ep in degrees:
        if tp * cp * dp % ep:
            continue
        run = changed(
            LLAMA_RUN, tp=tp, cp=cp, dp=dp, ep=ep, pp=2, schedule="1f1b", axis_order=axis_order
        )
        spread, replicas = devices_of(expert_group(run)), devices_of(expert_replicas(run))
        if ep == 1:  # experts are split over tp like other weights
            assert (spread, replicas) == ((0,), devices_of(data_group(run)))
            continue
        sizes = (range(count) for count in (tp, cp, dp))
        stage = [run.degrees.rank(tp=t, cp=c, dp=d) for t, c, d in itertools.product(*sizes)]
        assert len(spread) == ep
        assert sorted(map(sum, itertools.product(spread, replicas))) == sorted(stage)


def devices_of(group: RankGroup) -> tuple[int, ...]:
    """Those of the group of device 0."""
    axes = (range(0, count * stride, stride) for count, stride in group.axes)
    return tuple(sorted(map(sum, itertools.product(*axes))))


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(OPERATIONS),
    st.sampled_from(["h100", "a100", "b200", "v100"]),
    st.sampled_from([(2, 1), (8, 1), (4, 2), (16, 1), (32, 1), (4, 8), (8, 4)]),
    st.floats(1.0, 1e10),
)
def test_the_same_numbers_as_on_a_built_cluster(
    operation: str, device: str, group: tuple[int, int], size: float
) -> None:
    count, stride = group
    cluster = get_cluster(f"4x8x{device}")
    name = cluster.device_at(0).name
    devices = tuple(range(0, count * stride, stride))
    sharing = max(1, 8 // max(1, len([d for d in devices if d < 8])))
    built = price_collective(operation, size, devices, cluster, sharing=sharing).time_s
    run = replace(LLAMA_RUN, device=name, node_devices=8, network=None)
    described = moved(operation, size, RankGroup((group,)), links_of(run)).total_s
    assert described == pytest.approx(built, rel=1e-9)


def test_a_send_is_the_same_too() -> None:
    cluster = get_cluster("4x8xh100")
    near = price_collective("send", 1e8, (0, 1), cluster).time_s
    assert sent(1e8, ON_H100, crosses_nodes=False).total_s == pytest.approx(near)
    apart = price_collective("send", 1e8, (0, 8), cluster).time_s
    assert sent(1e8, ON_H100, crosses_nodes=True).total_s == pytest.approx(apart)


@settings(max_examples=100, deadline=None)
@given(
    operation=st.sampled_from(OPERATIONS),
    size=st.floats(1.0, 1e11),
    count=st.integers(2, 512),
    stride=st.sampled_from((1, 2, 4, 8, 16)),
    factor=st.floats(1.0, 20.0),
)
def test_faster_links_are_never_slower(
    operation: str, size: float, count: int, stride: int, factor: float
) -> None:
    """Whatever the links' coefficients."""

    def seconds(links: Links) -> float:
        found: CollectiveTime = moved(operation, size, RankGroup(((count, stride),)), links)
        return max(1.5 * found.inner_s, 1.2 * found.outer_s)

    usual = seconds(LINKS) * (1 + 1e-9)
    assert seconds(replace(LINKS, inner_bytes_per_s=factor * 100e9)) <= usual
    assert seconds(replace(LINKS, outer=LINKS.outer.faster(factor))) <= usual
