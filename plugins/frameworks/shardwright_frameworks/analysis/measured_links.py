"""`link_factors`: measured over assumed times of a cluster's collectives.

Measured times of isolated collectives (nccl-tests) are compared with the times from which
predictions start (simulator/collectives.py on the run's links). They give the rate inside a node
and between nodes, so only messages are used whose time depends on the rate, not on latency. A
collective between nodes is as slow as its slowest level: it gives the network's rate only if the
network is that level, with the rate inside nodes already known. The factors multiply the
coefficients `inner` and `outer`, the ratio of a collective's time in a step to its isolated time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from profiles.errors import InputError
from profiles.hardware.catalogue.link import LinkPoint
from simulator.collectives import CollectiveTime
from simulator.training_run.messages.rank_group import RankGroup
from simulator.training_run.messages.run_links import Links, moved

# Collectives whose rings use every link of a group at once, like those of training. A single send
# uses one link, and is priced separately (`message_efficiency`).
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCollective:
    """A collective's times over sizes.

    hosts   nodes that its ranks were on, evenly
    points  of one operation and one number of ranks, [sizes]
    """

    hosts: int
    points: tuple[LinkPoint, ...]

    def __post_init__(self) -> None:
        kinds = {(point.operation, point.group_size) for point in self.points}
        if len(kinds) != 1:
            raise InputError(f"points of one collective are needed, got those of {sorted(kinds)}")
        if self.hosts < 1 or self.ranks % self.hosts:
            raise InputError(
                f"{self.ranks} ranks of {self.operation} are not spread evenly over {self.hosts} "
                "nodes; run the same number on each"
            )

    @property
    def operation(self) -> str:
        """Name of the operation."""
        return self.points[0].operation

    @property
    def ranks(self) -> int:
        """Number of participating devices."""
        return self.points[0].group_size

    def group(self, node_devices: int) -> RankGroup:
        """Positions of the ranks: neighbors in a node, and the same ones in each node."""
        inside = self.ranks // self.hosts
        return RankGroup(((inside, 1), (self.hosts, node_devices)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFactor:
    """Measured over assumed time of one collective on a level, `inner` or `outer`.

    factor  measured over assumed time of the bytes on the level, the median over sizes
    sizes   number of sizes bounded by the level's rate; with 0 the factor is not known
    """

    operation: str
    ranks: int
    hosts: int
    level: str
    factor: float
    sizes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFactors:
    """The factors of both levels.

    inner, outer   measured over assumed seconds, the geometric mean over collectives; None without
                   a result
    error_*        mean absolute relative errors of all sizes whose time depends on a rate
    """

    inner: float | None
    outer: float | None
    told: tuple[LinkFactor, ...]
    error_before: float
    error_after: float


def link_factors(measured: Sequence[MeasuredCollective], links: Links) -> LinkFactors:
    """The factors of a run's links, from measured collectives.

    Raises InputError if no size of a collective is bounded by a rate, or if ranks exceed a node.
    """
    for each in measured:
        if each.ranks // each.hosts > links.node_devices:
            raise InputError(
                f"{each.operation} ran on {each.ranks // each.hosts} devices per node, but nodes "
                f"of the cluster have {links.node_devices}; name the measured cluster with --on"
            )
    used = [each for each in measured if each.operation in _COLLECTIVES]
    inside = [_factor(each, links) for each in used if each.hosts == 1]
    inner = _mean(inside)
    between = [_factor(each, links, inner or 1.0) for each in used if each.hosts > 1]
    outer = _mean(between)
    if inner is None and outer is None:
        names = sorted({each.operation for each in measured})
        raise InputError(
            f"no size of {', '.join(names) or 'any collective'} is bounded by a link's rate; run "
            "all_reduce_perf (or all_gather, reduce_scatter, alltoall) up to 1 GiB: -b 8 -e 1G -f 2"
        )
    pairs = [(point.time_s, found) for each in used for point, found in _bounded(each, links)]
    return LinkFactors(
        inner=inner,
        outer=outer,
        told=tuple(factor for factor in (*inside, *between) if factor.sizes),
        error_before=_error(pairs, 1.0, 1.0),
        error_after=_error(pairs, inner or 1.0, outer or 1.0),
    )


def _bounded(each: MeasuredCollective, links: Links) -> list[tuple[LinkPoint, CollectiveTime]]:
    """Sizes that take twice as long as the smallest message or more, with their assumed times."""
    group = each.group(links.node_devices)
    least_s = moved(each.operation, 1.0, group, links).total_s
    found = [
        (point, moved(each.operation, point.size_bytes, group, links)) for point in each.points
    ]
    return [(point, time) for point, time in found if time.total_s > 2.0 * least_s]


def _latency_s(time: CollectiveTime) -> float:
    return time.inner_latency_s + time.outer_latency_s + time.far_latency_s


def _factor(each: MeasuredCollective, links: Links, inner: float = 0.0) -> LinkFactor:
    """The factor of a collective. One between nodes has a factor only if it takes longer than its
    part inside nodes, which is `inner` times the assumed seconds."""
    inside = each.hosts == 1
    ratios = []
    for point, time in _bounded(each, links):
        left_s = point.time_s - _latency_s(time)
        assumed_s = time.inner_s if inside else time.outer_s
        if assumed_s > 0 and left_s > inner * time.inner_s:
            ratios.append(left_s / assumed_s)
    return LinkFactor(
        operation=each.operation,
        ranks=each.ranks,
        hosts=each.hosts,
        level="inner" if inside else "outer",
        factor=statistics.median(ratios) if ratios else math.nan,
        sizes=len(ratios),
    )


def _mean(factors: Sequence[LinkFactor]) -> float | None:
    """The geometric mean; all collectives weigh the same, regardless of their number of sizes."""
    told = [math.log(each.factor) for each in factors if each.sizes]
    return math.exp(sum(told) / len(told)) if told else None


def _error(pairs: Sequence[tuple[float, CollectiveTime]], inner: float, outer: float) -> float:
    """Mean absolute relative error of the times with the levels' factors."""
    misses = [
        abs(
            (max(inner * time.inner_s, outer * time.outer_s, time.far_s) + _latency_s(time))
            / measured_s
            - 1.0
        )
        for measured_s, time in pairs
    ]
    return sum(misses) / len(misses) if misses else math.nan
