"""Lasting memory of a rank of a layout: parameters, gradients and the optimizer's states."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from profiles.model.figures.transformer import Transformer
from simulator.schedules.schedule import schedule_kind
from simulator.training_run.framework.framework import Framework, FrameworkMemory
from simulator.training_run.framework.run_conditions import LOW_PRECISIONS
from simulator.training_run.run.low_bits import saved_in_matrices_bytes, saved_moments_bytes
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.adapter_work import adapter_parameters, frozen_weight_bytes
from simulator.training_run.work.layer_work import vocabulary_share
from simulator.training_run.work.rank_parameters import expert_copies, expert_ranks
from simulator.training_run.work.stage_share import StageShare

_FP32_BYTES, _HALF_BYTES = 4.0, 2.0
# No ZeRO stage shards a state with this number.
NEVER_SHARED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBytes:
    """Lasting bytes of a rank, by kind."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer


class State(NamedTuple):
    """A state that each parameter of a rank has: bytes, elements without and of experts, and the
    lowest ZeRO stage that shards it over data-parallel ranks."""

    bytes_each: float
    elements: float
    experts: float = 0.0
    shared_from: int = NEVER_SHARED


def static_bytes(
    *,
    parameters: Sequence[State],
    gradients: Sequence[State],
    optimizer: Sequence[State],
    zero_stage: int,
    ranks: float,
    expert_ranks: float = 1.0,
) -> StaticBytes:
    """Lasting memory of one of `ranks` data-parallel ranks, of which `expert_ranks` have the same
    experts.

    ZeRO (Rajbhandari et al., arXiv 1910.02054, section 5) shards optimizer states (1), gradients
    (2) and parameters (3) over them; frameworks differ in the unsharded parts.
    """

    def held(states: Sequence[State]) -> float:
        return sum(
            state.bytes_each * (state.elements / ranks + state.experts / expert_ranks)
            if zero_stage >= state.shared_from
            else state.bytes_each * (state.elements + state.experts)
            for state in states
        )

    return StaticBytes(
        parameters=held(parameters), gradients=held(gradients), optimizer=held(optimizer)
    )


def run_static_bytes(
    run: TrainingRun,
    framework: Framework,
    memory: FrameworkMemory,
    shares: tuple[StageShare, ...],
) -> tuple[StaticBytes, float]:
    """Lasting memory of a rank with the virtual stages `shares`, and its number of parameters.

    Matrices are divided by tp. Experts are divided by ep, which is a part of dp x tp x cp, so that
    fewer ranks shard the states of experts (Megatron-Core, docs of expert parallelism). Norms and
    the router are whole on each rank. Frozen weights have neither gradients nor states.
    """
    degrees, spread = run.degrees, expert_ranks(run)
    rows = vocabulary_share(run, framework)
    # Each stage of our executor has its own copy of a tied table (executor/rank.py); other
    # frameworks have one per rank.
    whole_sums = framework.own_executor and degrees.pp > 1
    once = degrees.pp > 1 and not framework.own_executor
    whole = _rank_parameters(run.model, degrees.tp, spread, once, shares, rows)
    trained = (_adapter_parameters(run, shares), 0.0) if run.lora else whole
    copies = schedule_kind(run.schedule).copies
    each = _weight_bytes(run, memory)
    parameters = [State(each, *whole, 3)]
    if run.frozen_type:
        # Frozen linear layers have another type: the difference to the compute type.
        linear = _linear_parameters(run.model, degrees.tp, spread, shares)
        parameters.append(State(frozen_weight_bytes(run) - each, *linear, 3))
    if run.lora:
        parameters.append(State(memory.weight_bytes, *trained, 3))
    optimizer = [State(_state_bytes(run, memory), *trained, 1)]
    if saved := saved_in_matrices_bytes(run.optimizer):
        linear = _linear_parameters(run.model, degrees.tp, spread, shares)
        optimizer.append(State(-saved, *linear, 1))
    # Our executor offloads shards of gradients; gradients that stay whole are on the device.
    stay = framework.own_executor and (whole_sums or run.zero_stage < 2)
    if stay and run.optimizer_offload:
        run = replace(run, optimizer_offload=False)
    gradient = _gradient_bytes(run, memory)
    found = static_bytes(
        parameters=parameters,
        gradients=[State(gradient, *trained, NEVER_SHARED if whole_sums else 2)],
        optimizer=optimizer,
        zero_stage=run.zero_stage,
        ranks=run.sharing_ranks * copies,
        expert_ranks=expert_copies(run) * copies,
    )
    return found, sum(whole)


def _adapter_parameters(run: TrainingRun, shares: Sequence[StageShare]) -> float:
    """LoRA parameters of a rank; both matrices of a pair are divided by tp (NeMo,
    ParallelLinearAdapter)."""
    each = adapter_parameters(run.model, run.lora_rank)
    return sum(share.num_layers for share in shares) * each / run.degrees.tp


def _weight_bytes(run: TrainingRun, memory: FrameworkMemory) -> float:
    if run.optimizer_offload and not run.lora:
        stays = memory.offloaded_weight_bytes
        return _FP32_BYTES if stays and run.precision == "fp32" else stays
    if run.lora and run.precision in LOW_PRECISIONS:
        return memory.frozen_fp8_weight_bytes
    if run.precision == "fp32":
        return _FP32_BYTES
    # Frozen weights are loaded in the compute type.
    return min(_HALF_BYTES, memory.weight_bytes) if run.lora else memory.weight_bytes


def _state_bytes(run: TrainingRun, memory: FrameworkMemory) -> float:
    """Bytes of optimizer states per parameter: fp32 weights need no master copy, only Adam's two
    moments; 0 if offloaded."""
    if run.optimizer_offload:
        return 0.0
    whole = 2 * _FP32_BYTES if run.precision == "fp32" else memory.state_bytes
    return whole - saved_moments_bytes(run.optimizer)


def _gradient_bytes(run: TrainingRun, memory: FrameworkMemory) -> float:
    if run.optimizer_offload:
        return memory.offloaded_gradient_bytes
    if memory.keeps_gradients_as_summed and run.gradient_reduction == "bf16":
        return _HALF_BYTES
    if run.precision in LOW_PRECISIONS:
        return memory.fp8_gradient_bytes
    if run.precision == "fp32":
        return _FP32_BYTES
    return memory.fp16_gradient_bytes if run.precision == "fp16" else memory.gradient_bytes


@functools.lru_cache(maxsize=1 << 14)
def _rank_parameters(
    model: Transformer,
    tp: int,
    spread: int,
    once: bool,
    shares: tuple[StageShare, ...],
    table_rows: float,
) -> tuple[float, float]:
    """Parameters of a rank after tensor and expert parallelism: (without experts, experts).

    spread  ranks over which experts are spread
    once    a tied table is stored once if the rank has both ends of the model

    Cached: counting a rank in a search takes 36 us with the cache and 51 us without.
    """
    dense, experts = _linear_parameters(model, tp, spread, shares)
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
        # Multi-token prediction: the projection of hidden state and embedding together, two norms,
        # and a copy of the embedding if the rank has none (Megatron-Core,
        # multi_token_prediction.py).
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
    model: Transformer, tp: int, spread: int, shares: Sequence[StageShare]
) -> tuple[float, float]:
    """Matrices of a rank's layers, except the router: (without experts, experts)."""
    dense = experts = 0.0
    for share in shares:
        dense += share.num_layers * model.mixer_parameters / tp
        dense += share.dense_layers * model.dense_density * model.dense_parameters / tp
        dense += share.expert_layers * model.shared_expert_parameters / tp
        experts += share.expert_layers * model.num_experts * model.expert_parameters / spread
    return dense, experts


def _holds_both_ends(shares: Sequence[StageShare]) -> bool:
    """Whether a rank has the first and the last stage (V schedules), so that a tied table is stored
    once."""
    return any(share.has_embedding for share in shares) and any(
        share.has_head and not share.has_embedding for share in shares
    )
