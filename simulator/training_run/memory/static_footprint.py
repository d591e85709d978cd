"""What a rank keeps for the whole step: parameters, gradients and the optimizer's states."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from profiles.model.figures.transformer import Transformer
from simulator.schedules.schedule import schedule_kind
from simulator.training_run.framework.framework import FrameworkMemory, load_framework
from simulator.training_run.framework.run_conditions import LOW_PRECISIONS
from simulator.training_run.run.low_bits import saved_moments_bytes
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.adapter_work import adapter_parameters
from simulator.training_run.work.frozen_weights import frozen_weight_bytes
from simulator.training_run.work.stage_share import StageShare

_FP32_BYTES, _HALF_BYTES = 4.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBytes:
    """Bytes on one device; `num_parameters` are those that it computes with, before ZeRO."""

    num_parameters: float
    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer


def static_bytes(
    run: TrainingRun, stack: FrameworkMemory, shares: Sequence[StageShare], vocabulary: int
) -> StaticBytes:
    """Of a rank that holds the virtual stages `shares`.

    Matrices are divided by tp; experts by the expert-parallel ranks, which are a part of dp x tp x
    cp, so that fewer ranks share the states of experts (Megatron-Core, docs of expert parallelism).
    Norms and the router are whole on each rank. Frozen weights have neither gradient nor state.
    """
    degrees = run.degrees
    tp = degrees.tp if load_framework(run.stack).splits_vocabulary else 1
    dense, experts = _rank_parameters(run, shares, vocabulary / tp)
    ranks = run.sharing_ranks * schedule_kind(run.schedule).copies
    expert_ranks = max(1.0, ranks * degrees.tp / degrees.ep)
    if degrees.ep == 1:
        # Experts are then divided by tp as the other matrices are.
        expert_ranks = ranks
    stage = run.zero_stage
    whole_sums = load_framework(run.stack).own_executor and degrees.pp > 1

    def held(bytes_each: float, parameters: tuple[float, float], *, sharded: bool) -> float:
        if not sharded:
            return bytes_each * sum(parameters)
        return bytes_each * (parameters[0] / ranks + parameters[1] / expert_ranks)

    whole = (dense, experts)
    trained = (_adapter_parameters(run, shares), 0.0) if run.lora else whole
    parameters = held(_weight_bytes(run, stack), whole, sharded=stage >= 3)
    if run.frozen_type:
        # Of frozen linear layers in the place of what they are computed with.
        each = frozen_weight_bytes(run) - _weight_bytes(run, stack)
        linear = _linear_parameters(run.model, degrees.tp, degrees.ep, shares)
        parameters += held(each, linear, sharded=stage >= 3)
    if run.lora:
        parameters += held(stack.weight_bytes, trained, sharded=stage >= 3)
    return StaticBytes(
        num_parameters=dense + experts,
        parameters=parameters,
        gradients=held(_gradient_bytes(run, stack), trained, sharded=stage >= 2 and not whole_sums),
        optimizer=held(_state_bytes(run, stack), trained, sharded=stage >= 1),
    )


def _adapter_parameters(run: TrainingRun, shares: Sequence[StageShare]) -> float:
    """Of a rank; both matrices of a pair are divided by tp (NeMo, ParallelLinearAdapter)."""
    each = adapter_parameters(run.model, run.lora_rank)
    return sum(share.num_layers for share in shares) * each / run.degrees.tp


def _weight_bytes(run: TrainingRun, stack: FrameworkMemory) -> float:
    if run.optimizer_offload and not run.lora:
        return stack.offloaded_weight_bytes
    if run.lora and run.precision in LOW_PRECISIONS:
        return stack.frozen_fp8_weight_bytes
    if run.precision == "fp32":
        return _FP32_BYTES
    # Frozen weights need no more bits than they are computed with, and are loaded so.
    return min(_HALF_BYTES, stack.weight_bytes) if run.lora else stack.weight_bytes


def _state_bytes(run: TrainingRun, stack: FrameworkMemory) -> float:
    """fp32 weights are their own master: Adam's two moments are left. Offloaded, none is."""
    if run.optimizer_offload:
        return 0.0
    whole = 2 * _FP32_BYTES if run.precision == "fp32" else stack.state_bytes
    return whole - saved_moments_bytes(run.optimizer)


def _gradient_bytes(run: TrainingRun, stack: FrameworkMemory) -> float:
    if run.optimizer_offload:
        return stack.offloaded_gradient_bytes
    if run.precision in LOW_PRECISIONS:
        return stack.fp8_gradient_bytes
    if run.precision == "fp32":
        return _FP32_BYTES
    return stack.fp16_gradient_bytes if run.precision == "fp16" else stack.gradient_bytes


def _rank_parameters(
    run: TrainingRun, shares: Sequence[StageShare], table_rows: float
) -> tuple[float, float]:
    """Parameters of a rank after tensor and expert parallelism: all but experts, and experts."""
    # Stages of our executor hold copies of their own (executor/rank.py), those of others one.
    degrees = run.degrees
    once = degrees.pp > 1 and not load_framework(run.stack).own_executor
    return _shared_out(run.model, degrees.tp, degrees.ep, once, tuple(shares), table_rows)


@functools.lru_cache(maxsize=1 << 14)
def _shared_out(
    model: Transformer,
    tp: int,
    expert_parallel: int,
    once: bool,
    shares: tuple[StageShare, ...],
    table_rows: float,
) -> tuple[float, float]:
    dense, experts = _linear_parameters(model, tp, expert_parallel, shares)
    for share in shares:
        dense += share.num_layers * model.small_parameters
        dense += share.expert_layers * model.router_parameters
        if share.has_embedding:
            dense += model.hidden_size * (table_rows + model.learned_positions)
        if share.has_head:
            dense += model.hidden_size * (2 if model.biases else 1)
            if not (model.tied_embeddings and share.has_embedding):
                dense += model.hidden_size * table_rows
    predicting = sum(share.predicting_layers for share in shares)
    if predicting:
        # The projection of hidden state and embedding together, their two norms, and a copy of the
        # table where the rank has none (Megatron-Core, multi_token_prediction.py).
        tokens_ahead = predicting / model.predicting_layers
        dense += tokens_ahead * (2 * model.hidden_size**2 / tp + 2 * model.hidden_size)
        has_table = any(
            share.has_embedding or (share.has_head and model.tied_embeddings) for share in shares
        )
        if not has_table:
            dense += model.hidden_size * table_rows
    if model.tied_embeddings and once and _holds_both_ends(shares):
        dense -= model.hidden_size * table_rows
    return dense, experts


def _linear_parameters(
    model: Transformer, tp: int, expert_parallel: int, shares: Sequence[StageShare]
) -> tuple[float, float]:
    """The matrices of a rank's layers but for the router: all but experts, and experts."""
    dense = experts = 0.0
    for share in shares:
        dense += share.num_layers * model.mixer_parameters / tp
        dense += share.dense_layers * model.dense_density * model.dense_parameters / tp
        dense += share.expert_layers * model.shared_expert_parameters / tp
        split = expert_parallel if expert_parallel > 1 else tp
        experts += share.expert_layers * model.num_experts * model.expert_parameters / split
    return dense, experts


def _holds_both_ends(shares: Sequence[StageShare]) -> bool:
    """First and last stage on one rank (V schedules): a tied table is there once."""
    return any(share.has_embedding for share in shares) and any(
        share.has_head and not share.has_embedding for share in shares
    )
