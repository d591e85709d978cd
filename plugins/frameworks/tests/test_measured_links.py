"""What measured collectives say of a cluster's links."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardwright_frameworks.analysis.measured_links import MeasuredCollective, link_factors

from profiles.errors import InputError
from profiles.hardware.catalogue.link import LinkPoint
from shardwright.runs.complete import complete_run
from shardwright.runs.run import FIGURES
from shardwright.runs.run_table import read_runs
from simulator.training_run.messages.rank_group import RankGroup
from simulator.training_run.messages.run_links import Links, links_of, moved

SIZES = tuple(4**n for n in range(3, 16))


def links() -> Links:
    """Eight H100 a node on InfiniBand."""
    rows = (run for run in read_runs(FIGURES) if run.device.startswith("h100"))
    return links_of(complete_run(next(rows)))


def written(
    operation: str, ranks: int, hosts: int, inner: float, outer: float, noise: float = 0.0
) -> MeasuredCollective:
    """Times of links that are slower than assumed by these factors."""
    known = links()
    group = RankGroup(((ranks // hosts, 1), (hosts, known.node_devices)))
    points = []
    for place, size in enumerate(SIZES):
        time = moved(operation, size, group, known)
        latency_s = time.inner_latency_s + time.outer_latency_s
        seconds = max(inner * time.inner_s, outer * time.outer_s) + latency_s
        odd = 1.0 + noise * (1 if place % 2 else -1)
        points.append(
            LinkPoint(operation=operation, group_size=ranks, size_bytes=size, time_s=seconds * odd)
        )
    return MeasuredCollective(hosts=hosts, points=tuple(points))


@settings(max_examples=25, deadline=None)
@given(
    inner=st.floats(0.6, 2.0),
    outer=st.floats(1.5, 3.0),
    operation=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
)
def test_slower_links_are_found(inner: float, outer: float, operation: str) -> None:
    outer = outer * max(1.0, inner)  # else the network shows nowhere
    found = link_factors(
        [written(operation, 8, 1, inner, outer), written(operation, 32, 4, inner, outer)], links()
    )
    assert found.inner == pytest.approx(inner, rel=1e-6)
    assert found.outer == pytest.approx(outer, rel=1e-6)
    assert found.error_after < 1e-6


def test_each_collective_weighs_the_same_and_noise_is_taken_out() -> None:
    found = link_factors(
        [
            written("all_reduce", 8, 1, 1.2, 1.0, noise=0.01),
            written("all_gather", 8, 1, 1.2 / 1.1, 1.0),
            written("reduce_scatter", 8, 1, 1.2 * 1.1, 1.0),
        ],
        links(),
    )
    assert found.inner == pytest.approx(1.2, rel=0.01)
    assert found.outer is None
    assert found.error_after < 0.5 * found.error_before


def test_latency_says_nothing_of_a_rate() -> None:
    small = written("all_reduce", 8, 1, 3.0, 1.0)
    tiny = MeasuredCollective(hosts=1, points=small.points[:2])
    with pytest.raises(InputError, match="no size of all_reduce is bounded"):
        link_factors([tiny], links())


def test_ranks_that_do_not_fit_the_nodes_are_refused() -> None:
    point = LinkPoint(operation="all_reduce", group_size=16, size_bytes=1 << 30, time_s=1.0)
    with pytest.raises(InputError, match="nodes of the cluster have 8"):
        link_factors([MeasuredCollective(hosts=1, points=(point,))], links())
    with pytest.raises(InputError, match="not spread evenly"):
        MeasuredCollective(hosts=3, points=(point,))
