"""`FleetQuestion`: runs, clusters and dates as values, and their scheduling problem."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.run_option import RequestedOptions
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.figures.transformer import Transformer
from profiles.sourced import Sourced
from shardwright_fleet.phase_price import PhasePrice
from shardwright_fleet.problem import COST, END, LATENESS, Choice, FleetProblem, Job, Pool

_BELOW = 3
NEVER, AVOID, FINE = "never", "avoid", "fine"
"""Treatment of lateness: not allowed; minimized before dollars; a price in dollars per day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCluster:
    """A cluster shared by runs.

    parts    number of nodes -> that part of the cluster, for every number considered
    price    US dollars of a device-hour, None if unknown
    kind     of price, "" for a given number
    owned    paid whether used or not: its hours have no cost in the decision
    opens_h, closes_h   hours after the start
    """

    name: str
    on: str
    nodes: int
    node_devices: int
    device: str
    parts: Mapping[int, Cluster]
    price: Sourced | None
    kind: str = ""
    owned: bool = False
    opens_h: float = 0.0
    closes_h: float | None = None

    @property
    def spot(self) -> bool:
        """Whether the provider may take its capacity back."""
        return self.kind == "spot"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPhase:
    """A part of a run; tokens of all its steps."""

    name: str
    tokens: float
    seq_len: int
    global_batch: int

    @property
    def steps(self) -> int:
        """Number of training steps."""
        return math.ceil(self.tokens / (self.seq_len * self.global_batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """A training run.

    options       types of frozen weights and optimizer states
    late          one of NEVER, AVOID and FINE
    usd_per_day   of lateness
    fewest, most  nodes
    clusters, after  indices of usable clusters, and of runs that must end first
    """

    name: str
    model_name: str
    model: Transformer
    phases: tuple[FleetPhase, ...]
    stacks: tuple[str, ...]
    precision: str
    lora_rank: int = 0
    options: RequestedOptions = field(default_factory=RequestedOptions)
    deadline_h: float | None = None
    late: str = AVOID
    usd_per_day: float = 0.0
    priority: int = 1
    not_before_h: float = 0.0
    clusters: tuple[int, ...]
    fewest: int = 1
    most: int = 10**6
    after: tuple[int, ...] = ()
    may_move: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetQuestion:
    """The input of `fleet`: runs, clusters and settings.

    start   ISO date and time of hour 0;  step_h  hours of the grid
    sure    probability (0 to 1) with which each phase ends within its planned time
    prefer  `cost` or `time`: the objective after lateness
    """

    start: str
    clusters: tuple[FleetCluster, ...]
    runs: tuple[FleetRun, ...]
    step_h: float = 1.0
    sure: float = 0.5
    prefer: str = "cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedChoice:
    """A way to run a phase: a number of nodes of a cluster, with its price."""

    cluster: int
    nodes: int
    price: PhasePrice


Priced = tuple[tuple[tuple[PricedChoice, ...], ...], ...]
"""[run][phase][choice]"""


def node_counts(cluster: FleetCluster, run: FleetRun) -> tuple[int, ...]:
    """Possible numbers of nodes of a run: the largest, and the three largest powers of two below.

    >>> from types import SimpleNamespace as Some
    >>> node_counts(Some(nodes=12), Some(fewest=1, most=100))
    (2, 4, 8, 12)
    """
    most = min(cluster.nodes, run.most)
    powers = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return tuple(count for count in (*powers[-_BELOW:], most) if run.fewest <= count <= most)


def undominated(choices: tuple[PricedChoice, ...]) -> tuple[PricedChoice, ...]:
    """The choices, without those that are no faster than fewer nodes of the same cluster."""
    kept: list[PricedChoice] = []
    for choice in sorted(choices, key=lambda each: (each.cluster, each.nodes)):
        rivals = [one for one in kept if one.cluster == choice.cluster]
        if all(choice.price.hours < one.price.hours for one in rivals):
            kept.append(choice)
    return tuple(kept)


def problem_of(question: FleetQuestion, priced: Priced) -> FleetProblem:
    """The problem on the grid; [job][phase][choice] as in `priced`."""
    step = question.step_h
    after_lateness = (END, COST) if question.prefer == "time" else (COST, END)
    return FleetProblem(
        pools=tuple(
            Pool(
                nodes=cluster.nodes,
                opens=math.ceil(cluster.opens_h / step),
                closes=None if cluster.closes_h is None else math.floor(cluster.closes_h / step),
            )
            for cluster in question.clusters
        ),
        jobs=tuple(
            Job(
                phases=tuple(
                    tuple(
                        Choice(
                            pool=one.cluster,
                            nodes=one.nodes,
                            steps=max(1, math.ceil(one.price.hours / step - 1e-9)),
                            usd=usd_of(question.clusters[one.cluster], one),
                        )
                        for one in choices
                    )
                    for choices in phases
                ),
                release=math.ceil(run.not_before_h / step),
                deadline=None if run.deadline_h is None else math.floor(run.deadline_h / step),
                hard=run.late == NEVER,
                priority=run.priority,
                usd_per_step=run.usd_per_day * step / 24.0 if run.late == FINE else 0.0,
                after=run.after,
                may_move=run.may_move,
            )
            for run, phases in zip(question.runs, priced, strict=True)
        ),
        step_h=step,
        levels=(LATENESS, *after_lateness),
    )


def usd_of(cluster: FleetCluster, choice: PricedChoice) -> float:
    """US dollars added by a choice: 0 on an owned cluster."""
    if cluster.owned or cluster.price is None:
        return 0.0
    return choice.nodes * cluster.node_devices * choice.price.hours * cluster.price.value
