"""Layers of a stage, and the recomputed share of the forward."""

from __future__ import annotations

from dataclasses import dataclass, replace

from profiles.model.figures.transformer import Transformer
from simulator.training_run.framework.framework import Framework
from simulator.training_run.framework.run_conditions import attention_kernel
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.stage_share import stage_split
from simulator.values.recompute_kind import recompute_kind


def predicting_layers(run: TrainingRun) -> int:
    """Number of layers that predict further tokens."""
    return run.model.predicted_ahead * run.model.predicting_layers


def stage_layers(run: TrainingRun) -> tuple[float, float]:
    """(layers of the fullest rank without the head, layers of the rank with the head), including
    layers that predict further tokens. With a single rank, its layers twice."""
    degrees = run.degrees
    held = [0] * degrees.pp
    head = 0
    # Each copy runs a part of the micro-batches: per micro-batch, one of them counts.
    for share in stage_split(run)[: degrees.pp * max(1, degrees.vpp)]:
        held[share.rank] += share.num_layers
        if share.has_head:
            head = share.rank
    others = held[:head] + held[head + 1 :]
    return float(max(others, default=held[head])), float(held[head])


def recomputed_share(run: TrainingRun) -> float:
    """Share of the fullest stage's layers that are fully recomputed."""
    if not run.recompute_layers:
        return 1.0
    full, _ = stage_layers(run)
    return min(1.0, run.recompute_layers * run.degrees.vpp / full)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputedShares:
    """Recomputed shares of the forward: matmuls for all tokens, experts' matmuls and messages,
    attention core, elementwise passes."""

    matmul: float
    routed: float
    attention: float
    passes: float


def recomputed_shares(run: TrainingRun, stack: Framework) -> RecomputedShares:
    """The shares of the run's recompute kind."""
    again = recompute_kind(run.recompute).again(run.model)
    share = recomputed_share(run) if run.recompute == "full" else 1.0
    if run.recompute == "full" and stack.prunes_recompute:
        again = replace(again, matmul=again.matmul - _last_matmul(run.model))
    core = again.unfused_core if attention_kernel(run, stack) == "unfused" else again.core
    routed = again.matmul if again.routed is None else again.routed
    return RecomputedShares(
        matmul=share * again.matmul,
        routed=share * routed,
        attention=share * core,
        passes=share * again.passes,
    )


def _last_matmul(model: Transformer) -> float:
    """Share of the down projection in a layer's matmuls."""
    down = model.dense_parameters / (3 if model.gated else 2)
    return down / (model.mixer_parameters + model.dense_parameters)
