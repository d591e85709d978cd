"""The plan file: the answer of `plan`, and the input of `predict`, `run` and `compare`.

Files that were edited by hand are detected. A plan file contains a decision and its prediction.
After an edit the prediction no longer belongs to the plan. So the provenance of the file repeats
the decision, and readers raise if they differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from profiles.document import (
    content_hash,
    encode,
    read_document,
    read_mapping,
    write_document,
)
from profiles.errors import DocumentError
from profiles.sourced import Sourced
from simulator.values.plan import PLAN_SCHEMA, Plan
from simulator.values.prediction import Interval, Prediction

_PLAN = (
    "tp",
    "pp",
    "dp",
    "vpp",
    "zero_stage",
    "optimizer_offload",
    "sequence_parallel",
    "micro_batch",
    "schedule",
)
_WORKLOAD = ("global_batch", "sequence_length", "precision", "optimizer")
_FLAGS = {
    "zero_stage": "--zero",
    "expert_parallel": "--ep",
    "seq_len": "--seq",
    "sequence_length": "--seq",
    "num_devices": "--on",
}


def plan_decision(plan: Plan) -> dict[str, str]:
    """The decisions in a plan by key of the plan file; stages and pipelines as hashes."""
    written = encode(plan)
    decision = {f"plan.{name}": str(written[name]) for name in _PLAN}
    for name in _WORKLOAD:
        decision[f"plan.workload.{name}"] = str(getattr(plan.workload, name))
    if plan.pipelines is not None:
        decision["plan.pipelines"] = content_hash(plan.pipelines)
    return decision | {"plan.stages": content_hash(plan.stages)}


def check_decision(where: str, decided: object, now: Mapping[str, str]) -> None:
    """Raises DocumentError with the file and the changed key.

    decided  the decision recorded in the file
    """
    if not isinstance(decided, Mapping):
        return
    for place, value in now.items():
        before = decided.get(place)
        if before is None or before == value:
            continue
        name = place.rpartition(".")[2]
        if name in ("stages", "pipelines"):
            raise DocumentError(
                f"{where}: {place} was changed after the plan was made, so its prediction is of "
                "another plan; plan again with the flags of your change"
            )
        flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
        raise DocumentError(
            f"{where}: {place} is {value}, the plan was made with {before}, so its prediction does "
            f"not hold; plan again with {flag}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A runner-up: the best plan with another mesh, and the reason for its rank."""

    plan: Plan
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    mfu: float
    peak_memory_bytes: float
    usd_per_million_tokens: float | None = None
    usd_per_million_samples: float | None = None
    why_not_first: str

    @classmethod
    def of(cls, plan: Plan, prediction: Prediction, why_not_first: str) -> Alternative:
        """The plan with the main figures of its prediction."""
        return cls(plan=plan, why_not_first=why_not_first, **_main_figures(prediction))


def _main_figures(prediction: Prediction) -> dict[str, Any]:
    """The figures of a prediction that an answer and its runners-up repeat, by field."""
    usd, per_sample = prediction.usd_per_million_tokens, prediction.usd_per_million_samples
    return {
        "step_time_s": prediction.step_time_s.value,
        "step_time_low_s": prediction.step_time_s.low,
        "step_time_high_s": prediction.step_time_s.high,
        "mfu": prediction.mfu.value,
        "peak_memory_bytes": prediction.peak.value,
        "usd_per_million_tokens": None if usd is None else usd.value,
        "usd_per_million_samples": None if per_sample is None else per_sample.value,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """A change that makes a plan feasible, verified by solving; `layout` is its plan, if
    requested."""

    change: str
    flag: str
    layout: str | None = None
    step_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Effect of a change: the best step time with it, solved again."""

    change: str
    step_time_s: float
    layout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasibility:
    """Why nothing fits: the nearest plan, its binding stage (plan) or rank (layout) and memory
    term, and changes that help.

    `host` describes the shortfall of host memory if the device itself has enough."""

    nearest: str
    stage: int | None = None
    rank: int | None = None
    term: str
    needed_bytes: float
    capacity_bytes: float
    relaxations: tuple[Relaxation, ...]
    host: str | None = None

    @property
    def bytes_over(self) -> float:
        """Memory shortfall of the device."""
        return self.needed_bytes - self.capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The best plan of one kind on devices of several types.

    title    the devices, and whether replicas are equal
    plan     its degrees, or the reason that there is none
    exact    False if step_time_s is an upper bound
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
    """Unused devices of one type, and the reason."""

    device: str
    num_devices: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of the searched kinds of plans on devices of several types.

    chosen    title of the best among `compared`
    prices_usd_per_hour   price of a device of each type that has one, used for the dollars
    keys, keys_solved  combinations of tp, micro-batch, ZeRO stage and number of unequal replicas:
              total, and those solved because they could not be pruned
    """

    model: str
    cluster: str
    chosen: str
    compared: tuple[Compared, ...]
    left_out: tuple[LeftOut, ...] = ()
    prices_usd_per_hour: Mapping[str, Sourced] = field(default_factory=dict)
    keys: int = 0
    keys_solved: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """The complete answer of a search.

    status       `optimal`, `feasible` or `infeasible`
    bound        lower bound in seconds of the predicted step time of all plans searched
    gap          (step_time_s - bound) / step_time_s
    usd_per_million_samples  instead of tokens if a sample is not a sequence of tokens
    assumptions  defaults used without a flag, each with the flag that changes it
    solver       method of the proof: `dp` or `ilp`
    machine      required fingerprint of the machine (Cluster.machine); empty if unknown
    calibration  measurements that the coefficients were refitted on, "" for the shipped ones
    comparison   for devices of several types; the bound is then over all kinds of plans
    """

    status: str
    bound: float | None = None
    gap: float | None = None
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    mfu: float | None = None
    peak_memory_bytes: float | None = None
    usd_per_million_tokens: float | None = None
    usd_per_million_samples: float | None = None
    search_time_s: float
    cells_considered: int
    cells_pruned: int = 0
    cells_refined: int = 0
    solver: str = ""
    plan: Plan | None = None
    prediction: Prediction | None = None
    alternatives: tuple[Alternative, ...] = ()
    infeasibility: Infeasibility | None = None
    assumptions: tuple[str, ...] = ()
    machine: Mapping[str, str] = field(default_factory=dict)
    calibration: str = ""
    comparison: Comparison | None = None

    def with_prediction(self, prediction: Prediction) -> PlanFile:
        """A copy with another prediction of its plan, and the figures copied from it."""
        return replace(self, prediction=prediction, **_main_figures(prediction))

    def with_dollars(self, usd: Interval | None, price: Sourced | None) -> PlanFile:
        """A copy with other dollars per million tokens or samples, and the price per device-hour;
        unchanged without a prediction."""
        if self.prediction is None:
            return self
        return self.with_prediction(self.prediction.with_dollars(usd, price))


def read_plan_file(path: str | Path) -> PlanFile:
    """The plan file at `path`.

    Raises DocumentError with the key if its decision was edited.
    """
    data = read_mapping(path)
    provenance = data.get("provenance")
    answer = read_document(path, PlanFile, schema=PLAN_SCHEMA)
    if answer.plan is not None:
        decided = provenance.get("decided") if isinstance(provenance, Mapping) else None
        check_decision(str(path), decided, plan_decision(answer.plan))
        _check_ranks(str(path), answer.plan, answer.prediction)
    return answer


def write_plan_file(path: str | Path, answer: PlanFile, *, provenance: Mapping[str, Any]) -> None:
    """Writes the answer; its provenance records the plan, so that later edits of it are noticed."""
    decided = {} if answer.plan is None else {"decided": plan_decision(answer.plan)}
    write_document(path, answer, schema=PLAN_SCHEMA, provenance={**provenance, **decided})


def _check_ranks(where: str, plan: Plan, prediction: Prediction | None) -> None:
    """Checks that degrees and prediction agree, also in files without a recorded decision."""
    degrees = plan.degrees
    if degrees.tp > 1 and not plan.tensor_parallel:
        raise DocumentError(
            f"{where}: plan.tp is {degrees.tp}, but the plan has no rules to split layers "
            "(plan.tensor_parallel); plan again with --tp"
        )
    if prediction is None or not prediction.ranks:
        return
    predicted = [memory.rank for memory in prediction.ranks]
    replicas = [each.degrees for each in plan.replicas]
    expected = [each.rank(pp=pp_rank) for each in replicas for pp_rank in range(each.pp)]
    if predicted != expected:
        raise DocumentError(
            f"{where}: plan.tp {degrees.tp} x plan.dp {degrees.dp} x plan.pp {degrees.pp} put the "
            f"stages on ranks {expected}, the prediction has them on {predicted}; plan again with "
            "the degrees as flags"
        )
