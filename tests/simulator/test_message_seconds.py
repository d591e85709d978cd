"""Seconds of messages by hand, inside a node and across nodes."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.training_run.message_seconds import Links, Messages, collective, send

# Round: 100 GB/s inside, 25 GB/s of network for each of eight devices.
LINKS = Links(inner_bytes_per_s=100e9, outer_bytes_per_s=25e9, node_devices=8)
GB = 1e9
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def test_all_reduce_inside_a_node() -> None:
    """A ring of 8 moves 2 x 7/8 of 1 GB over 100 GB/s: 17.5 ms, in two passes of sqrt(7) steps."""
    found = collective("all_reduce", GB, 8, LINKS)
    assert found.inner_s == pytest.approx(17.5e-3)
    assert found.outer_s == found.outer_steps == 0.0
    assert found.inner_steps == pytest.approx(2 * sqrt(7))


def test_all_reduce_across_two_whole_nodes() -> None:
    """16 ranks move 2 x 15/16 = 1.875 GB: over a node's 8 x 25 = 200 GB/s 9.375 ms; the inner
    links need 18.75 ms, of which what is beyond the network's time is left."""
    found = collective("all_reduce", GB, 16, LINKS)
    assert found.outer_s == pytest.approx(9.375e-3)
    assert found.inner_s == pytest.approx(18.75e-3 - 9.375e-3)
    assert found.outer_steps == pytest.approx(2 * sqrt(2))
    assert found.inner_steps == 0.0


def test_ranks_a_node_apart_have_one_adapter_each() -> None:
    """4 ranks 8 devices apart: 2 x 3/4 GB over 25 GB/s is 60 ms, and nothing inside."""
    found = collective("all_reduce", GB, 4, LINKS, stride=8)
    assert found.outer_s == pytest.approx(60e-3)
    assert found.outer_steps == pytest.approx(4.0)
    assert found.inner_s == found.inner_steps == 0.0
    assert collective("all_reduce", GB, 4, LINKS, stride=16) == found


def test_strided_ranks_share_a_nodes_adapters() -> None:
    """8 ranks 4 apart are 2 in each of 4 nodes: 2 x 7/8 GB over 2 x 25 GB/s is 35 ms; inside a
    node 17.5 ms pass meanwhile."""
    found = collective("all_reduce", GB, 8, LINKS, stride=4)
    assert found.outer_s == pytest.approx(35e-3)
    assert found.inner_s == 0.0
    # 2 ranks 4 apart lie in one node.
    assert collective("all_reduce", GB, 2, LINKS, stride=4).outer_s == 0.0


def test_all_to_all_by_where_the_peers_are() -> None:
    """16 ranks, 1 GB sent by each: 7/16 to the node's others over 100 GB/s, 8/16 outside over the
    device's own 25 GB/s."""
    found = collective("all_to_all", GB, 16, LINKS)
    assert found.inner_s == pytest.approx(7 / 16 / 100)
    assert found.outer_s == pytest.approx(8 / 16 / 25)
    assert (found.inner_steps, found.outer_steps) == (1.0, 1.0)
    apart = collective("all_to_all", GB, 4, LINKS, stride=8)
    assert (apart.inner_s, apart.inner_steps) == (0.0, 0.0)
    assert apart.outer_s == pytest.approx(3 / 4 / 25)


def test_sends() -> None:
    assert send(GB, crosses_nodes=False, links=LINKS) == Messages(inner_s=0.01, inner_steps=1.0)
    assert send(GB, crosses_nodes=True, links=LINKS) == Messages(outer_s=0.04, outer_steps=1.0)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_nobody_to_talk_to(operation: str) -> None:
    assert collective(operation, GB, 1, LINKS) == Messages()
    assert collective(operation, 0.0, 8, LINKS) == Messages()


def test_messages_add_and_scale() -> None:
    one = Messages(inner_s=1.0, outer_s=2.0, inner_steps=3.0, outer_steps=4.0)
    assert one + one == one * 2.0
    assert one * 0.0 == Messages()


ranks = st.integers(2, 512)
strides = st.sampled_from((1, 2, 4, 8, 16))
sizes = st.floats(1.0, 1e11)
operations = st.sampled_from(OPERATIONS)


@settings(max_examples=100, deadline=None)
@given(size=sizes, count=ranks, stride=strides)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(
    size: float, count: int, stride: int
) -> None:
    whole = collective("all_reduce", size, count, LINKS, stride=stride)
    halves = collective("reduce_scatter", size, count, LINKS, stride=stride)
    halves += collective("all_gather", size, count, LINKS, stride=stride)
    for name in ("inner_s", "outer_s", "inner_steps", "outer_steps"):
        assert getattr(whole, name) == pytest.approx(getattr(halves, name))


@settings(max_examples=100, deadline=None)
@given(operation=operations, size=sizes, count=ranks, stride=strides)
def test_seconds_are_proportional_and_bounded(
    operation: str, size: float, count: int, stride: int
) -> None:
    found = collective(operation, size, count, LINKS, stride=stride)
    assert min(found.inner_s, found.outer_s, found.inner_steps, found.outer_steps) >= 0.0
    assert found.inner_s + found.outer_s > 0.0
    twice = collective(operation, 2 * size, count, LINKS, stride=stride)
    assert twice.inner_s == pytest.approx(2 * found.inner_s)
    assert twice.outer_s == pytest.approx(2 * found.outer_s)
    assert (twice.inner_steps, twice.outer_steps) == (found.inner_steps, found.outer_steps)
    # No device moves more than its two passes of the whole over its slowest link.
    assert found.inner_s + found.outer_s <= 2 * size / 25e9 * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(operation=operations, size=sizes, count=ranks, stride=strides, factor=st.floats(1.0, 20.0))
def test_faster_links_are_never_slower(
    operation: str, size: float, count: int, stride: int, factor: float
) -> None:
    def seconds(links: Links) -> float:
        found = collective(operation, size, count, links, stride=stride)
        return found.inner_s + found.outer_s

    usual = seconds(LINKS) * (1 + 1e-9)
    assert seconds(replace(LINKS, inner_bytes_per_s=factor * 100e9)) <= usual
    assert seconds(replace(LINKS, outer_bytes_per_s=factor * 25e9)) <= usual
    # A larger NVLink domain takes traffic off the network.
    assert seconds(replace(LINKS, node_devices=64)) <= usual
