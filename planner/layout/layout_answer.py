"""`LayoutFile`: the answer of the search over layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiles.document import encode
from profiles.hardware.catalogue.catalog import get_device
from simulator.energy import carbon
from simulator.goodput.reliability import Reliability, delivered
from simulator.training_run.fit.memory_interval import out_of_memory_probability
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.framework.run_conditions import LOW_PRECISIONS
from simulator.training_run.run.low_bits import USUAL_OPTIMIZER
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.degrees import AXIS_ORDERS
from simulator.values.plan_file import Infeasibility, Sensitivity
from simulator.values.plan_title import plan_title
from simulator.values.prediction import Interval, Prediction

LAYOUT_SCHEMA = "shardwright/layout@3"
# The fields of a layout's run: chosen by the search, and given by the request.
_DECIDED = (
    *("num_devices", "tp", "cp", "pp", "dp", "expert_parallel", "vpp", "zero_stage"),
    *("micro_batch", "global_batch", "seq_len", "schedule", "recompute", "precision"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChoice:
    """A layout with its prediction.

    why_not_first  why it is slower than the best; "" for the best
    reliability    failures and checkpoints of a long run
    region         of the power grid, for carbon; "" if none is given
    idle_devices   unused devices of the cluster: they count for price and energy, but not for MFU
    """

    run: TrainingRun
    prediction: Prediction
    reliability: Reliability
    region: str = ""
    why_not_first: str
    idle_devices: int

    @property
    def required_memory_bytes(self) -> float:
        """Bytes that the fullest device needs for the step to run."""
        return self.prediction.fullest.limiting_bytes

    @property
    def out_of_memory_probability(self) -> float:
        """Probability that the layout needs more memory than a device has, estimated from measured
        peaks of published runs of the framework."""
        usable = get_device(self.run.device).usable_bytes
        return out_of_memory_probability(self.run, self.required_memory_bytes, usable)

    @property
    def usd_delivered(self) -> Interval | None:
        """US dollars per million tokens of a long run; tokens lost to failures are not counted."""
        return delivered(self.prediction.usd_per_million_tokens, self.reliability.goodput)

    @property
    def kwh_delivered(self) -> Interval | None:
        """kWh per million tokens of a long run; tokens lost to failures are not counted."""
        return delivered(self.prediction.kwh_per_million_tokens, self.reliability.goodput)

    @property
    def kg_co2e_delivered(self) -> Interval | None:
        """kg CO2e per million tokens of a long run, without tokens lost to failures; None without a
        region."""
        kwh = self.kwh_delivered
        return carbon(kwh, self.region) if kwh is not None and self.region else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NearbyBatch:
    """The best layout for another number of sequences per step."""

    global_batch: int
    step_time_s: float
    tokens_per_s: float
    layout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFile:
    """The answer.

    status          `optimal`, `feasible` (a limit ended the search: see gap) or `infeasible`
    bound           lower bound in seconds on the predicted step of every layout of the space
    considered      number of layouts evaluated or discarded
    too_big         discarded by the lower bound of their memory
    pruned          discarded by the lower bound of their time
    refined         evaluated one by one
    nearby_batches  nearest batches with which the cluster trains faster
    calibration     data of a recalibration, "" for the shipped coefficients
    """

    status: str
    model: str
    cluster: str
    stack: str
    objective: str
    bound: float | None = None
    gap: float | None = None
    search_time_s: float
    considered: int
    too_big: int
    pruned: int
    refined: int
    chosen: LayoutChoice | None = None
    alternatives: tuple[LayoutChoice, ...] = ()
    infeasibility: Infeasibility | None = None
    sensitivities: tuple[Sensitivity, ...] = ()
    nearby_batches: tuple[NearbyBatch, ...] = ()
    calibration: str = ""
    assumptions: tuple[str, ...] = ()


def layout_title(run: TrainingRun) -> str:
    """`tp4 cp2 pp8 dp16, interleaved x4, micro-batch 1, ZeRO 1, recompute selective`."""
    parts = [plan_title(run)]
    if run.recompute != "none":
        layers = "layer" if run.recompute_layers == 1 else "layers"
        some = f" ({run.recompute_layers} {layers} per stage)" if run.recompute_layers else ""
        parts.append(f"recompute {run.recompute}{some}")
    parts += _option_words(run)
    return ", ".join(parts)


def _option_words(run: TrainingRun) -> list[str]:
    """Options of a run that differ from the default."""
    said = []
    if run.degrees.axis_order != AXIS_ORDERS[0]:
        said.append(f"ranks {run.degrees.axis_order}")
    if run.pipeline_layout:
        said.append(f"stages {run.pipeline_layout}")
    if run.torus:
        said.append("torus " + "x".join(map(str, run.torus)))
    if run.precision in LOW_PRECISIONS:
        ends = f" (bf16 in {run.wide_layers} first and last layers)" if run.wide_layers else ""
        said.append(run.precision + ends)
    if run.gradient_reduction:
        said.append(f"gradients summed in {run.gradient_reduction}")
    if run.compression:
        said.append(run.compression)
    if run.local_workers > 1:
        said.append(f"{run.local_workers} workers of {run.local_steps} local steps")
    if run.optimizer_offload:
        said.append("optimizer on the host")
    if run.sequence_parallel and not load_framework(run.stack).rules.sequence_parallel:
        said.append("sequence parallel")
    if run.activation_offload:
        said.append(f"{run.activation_offload:.0%} of activations on the host")
    if run.frozen_type:
        said.append(f"frozen weights in {run.frozen_type}")
    if run.optimizer != USUAL_OPTIMIZER:
        said.append(run.optimizer)
    return said


def layout_decision(run: TrainingRun) -> dict[str, str]:
    """The decisions of a layout, by key of the answer file."""
    return written_decision(encode(run))


def written_decision(run: Mapping[str, Any]) -> dict[str, str]:
    """`layout_decision` of a run that was read from an answer file."""
    return {f"chosen.run.{name}": str(run.get(name, "")) for name in _DECIDED}
