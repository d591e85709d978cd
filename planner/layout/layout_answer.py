"""`LayoutFile`: the whole answer of a search over layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiles.document import encode
from profiles.sourced import Sourced
from simulator.goodput.lasting import Reliability
from simulator.training_run.framework.run_conditions import LOW_PRECISIONS
from simulator.training_run.run.low_bits import USUAL_OPTIMIZER
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.degrees import AXIS_ORDERS
from simulator.values.plan_file import Infeasibility, Sensitivity
from simulator.values.plan_title import plan_title
from simulator.values.prediction import Interval

LAYOUT_SCHEMA = "shardwright/layout@2"
# Of a layout's run, what its search decided and what it was asked for.
_DECIDED = (
    *("num_devices", "tp", "cp", "pp", "dp", "expert_parallel", "vpp", "zero_stage"),
    *("micro_batch", "global_batch", "seq_len", "schedule", "recompute", "precision"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPrediction:
    """What a layout is predicted to do.

    parts   seconds by part of the step; they add up to the step time
    mfu     as simulator/mfu.py defines it
    peak_memory_bytes   allocated by tensors on the device that allocates most, as
                        torch.cuda.max_memory_allocated counts
    reserved_memory_bytes   blocks of the allocator, as torch.cuda.max_memory_reserved counts
    required_memory_bytes   what the fullest device must have for the step to run
    out_of_memory_probability   that a device needs more than it has, by the peaks of published runs
                        of the framework (interval.out_of_memory_probability)
    price_usd_per_hour   of a device, that the dollars rest on, with its source
    mfu_range, peak_memory_range   the same with their intervals
    reliability         failures and checkpoints of a long run; *_delivered  dollars and energy per
                        token that is kept
    kg_co2e_per_million_tokens_delivered   of the grid of `region`; None and "" where none is asked
    """

    step_time_s: Interval
    parts: tuple[tuple[str, float], ...]
    mfu: float
    peak_memory_bytes: float
    reserved_memory_bytes: float
    required_memory_bytes: float
    out_of_memory_probability: float | None = None
    price_usd_per_hour: Sourced | None = None
    usd_per_million_tokens: Interval | None = None
    kwh_per_million_tokens: Interval
    tokens_per_s: Interval
    mfu_range: Interval
    peak_memory_range: Interval
    reliability: Reliability
    usd_per_million_tokens_delivered: Interval | None = None
    kwh_per_million_tokens_delivered: Interval | None = None
    kg_co2e_per_million_tokens_delivered: Interval | None = None
    region: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChoice:
    """A layout with its prediction; why_not_first is "" for the chosen one. `idle_devices` of the
    cluster do nothing: the price and the energy count them, MFU does not."""

    run: TrainingRun
    prediction: LayoutPrediction
    why_not_first: str = ""
    idle_devices: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NearbyBatch:
    """The best layout of another number of sequences per step."""

    global_batch: int
    step_time_s: float
    tokens_per_s: float
    layout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFile:
    """The answer.

    status       `optimal`, `feasible` (a limit ended the search: see gap) or `infeasible`
    bound        no layout of the space is predicted faster than this many seconds
    considered   layouts priced or refuted; too_big  by their least memory; pruned  by their bound;
                 refined  one by one
    nearby_batches   the nearest batches that more devices divide, where that trains faster
    calibration  what the coefficients were refitted on, "" for the shipped ones
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
        some = f" ({run.recompute_layers} layers per stage)" if run.recompute_layers else ""
        parts.append(f"recompute {run.recompute}{some}")
    parts += _beside_the_axes(run)
    return ", ".join(parts)


def _beside_the_axes(run: TrainingRun) -> list[str]:
    """What is not as usual."""
    said = []
    if run.degrees.axis_order != AXIS_ORDERS[0]:
        said.append(f"ranks {run.degrees.axis_order}")
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
    if run.activation_offload:
        said.append(f"{run.activation_offload:.0%} of activations on the host")
    if run.frozen_type:
        said.append(f"frozen weights in {run.frozen_type}")
    if run.optimizer != USUAL_OPTIMIZER:
        said.append(run.optimizer)
    return said


def layout_decision(run: TrainingRun) -> dict[str, str]:
    """What a framework's layout decides, by its place in the file."""
    return written_decision(encode(run))


def written_decision(run: Mapping[str, Any]) -> dict[str, str]:
    """`layout_decision` of a run as a file holds it."""
    return {f"chosen.run.{name}": str(run.get(name, "")) for name in _DECIDED}
