"""What `plan` answers on a cluster of mixed devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from profiles.sourced import Sourced
from simulator.mixed.mixed_prediction import MixedPrediction
from simulator.values.mixed_plan import MixedPlan
from simulator.values.plan_file import PlanFile

MIXED_SCHEMA = "shardwright/mixed-plan@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The best plan of one kind.

    title    which devices, and whether replicas are alike
    plan     its degrees, or why there is none
    exact    False where the plan is at least as fast as said
    step_time_s, usd_per_million_*   None without a plan, or without a price
    """

    title: str
    plan: str
    num_devices: int
    exact: bool = True
    step_time_s: float | None = None
    usd_per_million_tokens: float | None = None
    usd_per_million_samples: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Devices of a type that the plan does not use, and why."""

    device: str
    num_devices: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlanFile:
    """The whole answer.

    status    `optimal`, `feasible` or `infeasible`
    chosen    title of what was chosen among `compared`
    bound     no plan of the searched spaces is predicted faster, seconds;  gap  relative to it
    plan, prediction   where the best plan has replicas that differ
    ordinary  where the best plan has ranks all alike, or nothing fits: the ordinary answer on the
              part of the cluster that `chosen` names
    prices_usd_per_hour   of a device of each type that has a price: what the dollars rest on
    keys, keys_solved  degrees, micro-batches, ZeRO stages and numbers of replicas: how many there
              were, and how many could not be pruned
    """

    status: str
    model: str
    cluster: str
    chosen: str = ""
    bound: float | None = None
    gap: float | None = None
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    mfu: float | None = None
    peak_memory_bytes: float | None = None
    usd_per_million_tokens: float | None = None
    usd_per_million_samples: float | None = None
    prices_usd_per_hour: Mapping[str, Sourced] = field(default_factory=dict)
    search_time_s: float
    keys: int = 0
    keys_solved: int = 0
    plan: MixedPlan | None = None
    prediction: MixedPrediction | None = None
    ordinary: PlanFile | None = None
    compared: tuple[Compared, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    assumptions: tuple[str, ...] = ()
