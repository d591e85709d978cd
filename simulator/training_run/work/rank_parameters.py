"""Numbers of parameters that one rank stores, exchanges and updates."""

from __future__ import annotations

from simulator.training_run.framework.framework import Framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.layer_work import vocabulary_share
from simulator.training_run.work.stage_layers import stage_layers


def layer_parameters(run: TrainingRun) -> float:
    """Weights of an average layer on one tp (and expert) rank."""
    return _shared_parameters(run) + _expert_parameters(run)


def layer_shard(run: TrainingRun) -> float:
    """Weights of an average layer in one rank's shard."""
    shared = _shared_parameters(run) / run.sharing_ranks
    return shared + _expert_parameters(run) / expert_copies(run)


def _shared_parameters(run: TrainingRun) -> float:
    """Weights of an average layer on one tp rank that all data-parallel ranks have in common."""
    degrees = run.degrees
    model = run.model
    layer = (model.mixer_parameters + model.small_parameters) / degrees.tp
    expert_share = model.num_expert_layers / model.num_layers
    layer += (1 - expert_share) * model.dense_density * model.dense_parameters / degrees.tp
    shared = model.shared_expert_parameters / degrees.tp
    return layer + expert_share * (shared + model.router_parameters)


def _expert_parameters(run: TrainingRun) -> float:
    """Expert weights of an average layer on one rank."""
    model = run.model
    expert_share = model.num_expert_layers / model.num_layers
    return expert_share * model.num_experts * model.expert_parameters / expert_ranks(run)


def expert_ranks(run: TrainingRun) -> int:
    """Ranks over which experts are spread; without expert parallelism, the tensor-parallel ranks
    that split each expert."""
    degrees = run.degrees
    return degrees.ep if degrees.ep > 1 else degrees.tp


def expert_copies(run: TrainingRun) -> int:
    """Number of ranks with the same experts, which share their states."""
    return max(1, run.sharing_ranks * run.degrees.tp // expert_ranks(run))


def rank_parameters(run: TrainingRun, stack: Framework) -> tuple[float, float]:
    """Weights of the fullest pipeline rank (its layers and one vocabulary table): (common to all
    data-parallel ranks, experts)."""
    full, _ = stage_layers(run)
    table = vocabulary_share(run, stack) * run.model.hidden_size
    tables = 1 if run.degrees.pp > 1 or run.model.tied_embeddings else 2
    return full * _shared_parameters(run) + tables * table, full * _expert_parameters(run)


def updated_parameters(run: TrainingRun, stack: Framework) -> float:
    """Number of weights whose optimizer states are on a rank."""
    if run.lora:
        return 0.0
    shared, experts = rank_parameters(run, stack)
    if run.zero_stage < 1:
        return shared + experts
    return shared / run.sharing_ranks + experts / expert_copies(run)
