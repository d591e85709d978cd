"""How layers lie on stages, and what share of them the backward runs again."""

from __future__ import annotations

import math

from simulator.recompute_kind import recompute_kind
from simulator.training_run.framework import Framework
from simulator.training_run.training_run import TrainingRun


def predicting_layers(run: TrainingRun) -> int:
    """Layers that predict further tokens."""
    return run.model.predicted_ahead * run.model.predicting_layers


def stage_layers(run: TrainingRun) -> tuple[float, float]:
    """Layers of the fullest stage and of the last one.

    Even where pp divides them. Otherwise, where embedding and head count as a layer each
    (Zero Bubble paper, arXiv 2401.10241, section 5.1) and that divides evenly, so; else the first
    stages take one more. Layers that predict further tokens are on the last stage, and they, their
    logits and the loss stand there for a layer each (Megatron-Bridge, recipes/deepseek, layouts of
    DeepSeek-V3 at pp 4, 8 and 16).
    """
    layers, stages = run.model.num_layers, run.pp
    ahead = run.model.predicted_ahead
    if ahead and stages > 1:
        full = float(math.ceil((layers + 2 * ahead + 1) / stages))
        return full, max(0.0, layers - full * (stages - 1)) + predicting_layers(run)
    layers += predicting_layers(run)
    if layers % stages == 0 or stages == 1:
        return layers / stages, layers / stages
    if (layers + 2) % stages == 0:
        full = (layers + 2) / stages
        return full, full - 1
    return float(math.ceil(layers / stages)), float(layers // stages)


def recomputed_share(run: TrainingRun) -> float:
    """Share of the fullest stage's layers that full recomputation runs again."""
    if not run.recompute_layers:
        return 1.0
    full, _ = stage_layers(run)
    return min(1.0, run.recompute_layers * run.vpp / full)


def recomputed_shares(run: TrainingRun, stack: Framework) -> tuple[float, float, float]:
    """Shares of the forward's matmuls, attention core and passes that are done again."""
    again = recompute_kind(run.recompute).again(run.model)
    share = recomputed_share(run) if run.recompute == "full" else 1.0
    core = again.unfused_core if stack.attention == "unfused" else again.core
    return share * again.matmul, share * core, share * again.passes
