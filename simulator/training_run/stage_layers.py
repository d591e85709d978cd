"""How layers lie on stages, and what share of them the backward runs again."""

from __future__ import annotations

from profiles.model.transformer import Transformer
from simulator.training_run.run_stack import RunStack
from simulator.training_run.stage_share import stage_split
from simulator.training_run.training_run import TrainingRun


def predicting_layers(run: TrainingRun) -> int:
    """Layers that predict further tokens."""
    return run.model.predicted_ahead * run.model.predicting_layers


def stage_layers(run: TrainingRun) -> tuple[float, float]:
    """Layers of the fullest rank beside the one with the head, and of that one; those that predict
    further tokens are among them. The same twice where there is one rank."""
    held = [0] * run.pp
    head = 0
    for share in stage_split(run):
        held[share.rank] += share.num_layers
        if share.has_head:
            head = share.rank
    others = held[:head] + held[head + 1 :]
    return float(max(others, default=held[head])), float(held[head])


def recomputed_share(run: TrainingRun) -> float:
    """Share of the fullest stage's layers that full recomputation runs again."""
    if not run.recompute_layers:
        return 1.0
    full, _ = stage_layers(run)
    return min(1.0, run.recompute_layers * run.vpp / full)


def recomputed_shares(run: TrainingRun, stack: RunStack) -> tuple[float, float, float]:
    """Shares of the forward's matmuls, attention core and passes that are done again."""
    if run.recompute == "full":
        share = recomputed_share(run)
        return share, share, share
    if run.recompute == "selective":
        return 0.0, 1.0 if stack.attention == "unfused" else 0.0, 0.0
    if run.recompute == "mlp":
        return 0.5, 0.0, 0.5
    if run.recompute == "minimal":
        return 0.0, 0.0, 1.0
    if run.recompute == "alternate":
        return _alternate_share(run.model), 0.0, 1.0
    return 0.0, 0.0, 0.0


def _alternate_share(model: Transformer) -> float:
    """Work of keys, output and up projection over that of all seven matmuls of a layer (of six
    without a gate, whose last one's output nothing asks for)."""
    query, key = model.num_heads * model.head_size, model.num_kv_heads * model.head_size
    again = key + query + (model.ffn_size if model.gated else 0)
    return again / (2 * query + 2 * key + (3 if model.gated else 2) * model.ffn_size)
