"""The entries of a file of runs and clusters (file.py), before they are parsed."""

from __future__ import annotations

from dataclasses import dataclass

from planner.sizing.size_phases import Phase
from shardwright_fleet.question import AVOID
from simulator.training_run.run.low_bits import USUAL_OPTIMIZER


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEntry:
    """`[[cluster]]`."""

    name: str
    on: str
    terms: str = "rented"
    price: str = "on-demand"
    available_from: str = ""
    available_until: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEntry:
    """`[[job]]`; either `phases`, or `tokens`, `global_batch` and perhaps `seq`."""

    name: str
    model: str
    tokens: str = ""
    seq: int | None = None
    global_batch: int | None = None
    phases: tuple[Phase, ...] = ()
    stack: str = ""
    precision: str = ""
    lora: int = 0
    base_precision: str = ""
    optimizer: str = USUAL_OPTIMIZER
    deadline: str = ""
    late: str = AVOID
    priority: int = 1
    not_before: str = ""
    clusters: tuple[str, ...] = ()
    nodes: str = ""
    after: tuple[str, ...] = ()
    may_move: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFile:
    """A file of `fleet`: its clusters, its jobs and its settings."""

    start: str
    cluster: tuple[ClusterEntry, ...]
    job: tuple[JobEntry, ...]
    schema: str
    grid: str = "1h"
    sure: str = "50%"
    prefer: str = "cost"
