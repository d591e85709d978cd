"""`stage_split`: layers, embedding and head of each virtual pipeline stage, for both step time and
memory."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from profiles.errors import InputError
from profiles.model.figures.transformer import Transformer
from simulator.schedules.schedule import schedule_kind
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.framework.run_conditions import RANK_CONDITIONS
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.pipeline_layout import LayoutStage, stages_of_layout


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShare:
    """One virtual stage: its rank, dense layers, layers with experts, and whether it has the
    embedding and the head. `is_empty`: it has nothing, not even the loss.

    predicting_layers   number of its layers that predict further tokens; they have experts if the
                        model has any
    """

    rank: int
    dense_layers: int
    expert_layers: int
    has_embedding: bool
    has_head: bool
    predicting_layers: int
    is_empty: bool = False

    @property
    def num_layers(self) -> int:
        return self.dense_layers + self.expert_layers


def stage_split(run: TrainingRun) -> tuple[StageShare, ...]:
    """The virtual stages of a run, of all model copies on its ranks, in the order of the model.

    The framework's `stage_split` decides where the model is cut. `cost` cuts as nanotron does
    (src/nanotron/models/base.py, build_model). `even` gives equal numbers of layers; if this is
    impossible, the embedding and the head count as a layer each (Zero Bubble README, "Notices"); if
    this is impossible too, the first stages get one layer more. A `pipeline_layout` replaces these;
    if it has several stages per stage of the run, those of a rank are merged (a lower bound on the
    first rank's memory).
    """
    degrees = run.degrees
    if run.pipeline_layout and degrees.pp > 1:
        model = run.model
        stages = stages_of_layout(
            run.pipeline_layout, model.num_layers, model.predicted_ahead, run.id
        )
        return _given(model, degrees.pp, degrees.vpp, run.schedule, stages)
    split = load_framework(run.stack).memory[0].stage_split
    return _split(run.model, degrees.pp, degrees.vpp, run.schedule, split)


def rank_conditions(rank: int, shares: Sequence[StageShare]) -> frozenset[str]:
    """The RANK_CONDITIONS that are true on a pipeline rank with these virtual stages."""
    dense = any(share.dense_layers for share in shares)
    experts = any(share.expert_layers for share in shares)
    return frozenset(itertools.compress(RANK_CONDITIONS, (dense, experts, rank > 0)))


@functools.lru_cache(maxsize=4096)
def _given(
    model: Transformer, pp: int, vpp: int, schedule: str, stages: tuple[LayoutStage, ...]
) -> tuple[StageShare, ...]:
    """The stages of a layout on the ranks."""
    cuts = _Cuts(
        layers=tuple(stage.layers for stage in stages),
        head=len(stages) - 1,
        last=len(stages) - 1,
        predicting=tuple(stage.predicting * model.predicting_layers for stage in stages),
    )
    shares = _shares_of(model, pp, schedule, cuts)
    if len(stages) == pp * vpp:
        return shares
    if vpp > 1 or len(stages) % pp:
        raise InputError(
            f"the pipeline layout has {len(stages)} stages, pp {pp} x vpp {vpp} needs {pp * vpp}"
        )
    return tuple(functools.reduce(_together, shares[rank::pp]) for rank in range(pp))


def _together(one: StageShare, other: StageShare) -> StageShare:
    """Two stages of a rank merged into one."""
    return StageShare(
        rank=one.rank,
        dense_layers=one.dense_layers + other.dense_layers,
        expert_layers=one.expert_layers + other.expert_layers,
        has_embedding=one.has_embedding or other.has_embedding,
        has_head=one.has_head or other.has_head,
        predicting_layers=one.predicting_layers + other.predicting_layers,
    )


@functools.lru_cache(maxsize=4096)
def _split(
    model: Transformer, pp: int, vpp: int, schedule: str, split: str
) -> tuple[StageShare, ...]:
    count = pp * max(1, vpp)
    if model.predicted_ahead and count > 1:
        cuts = _with_predictors(model, count)
    elif split == "cost":
        cuts = _by_cost(model, count)
    else:
        cuts = _even(model, count)
    return _shares_of(model, pp, schedule, cuts)


def _shares_of(model: Transformer, pp: int, schedule: str, cuts: _Cuts) -> tuple[StageShare, ...]:
    kind = schedule_kind(schedule)
    shares = []
    begins = 0
    for stage, layers in enumerate(cuts.layers):
        dense_here = _dense_before(model, begins + layers) - _dense_before(model, begins)
        ahead = cuts.predicting[stage] if cuts.predicting else 0
        with_experts = _with_experts(model, ahead)
        shares.append(
            StageShare(
                rank=kind.rank_of(pp, stage),
                dense_layers=dense_here + ahead - with_experts,
                expert_layers=layers - dense_here + with_experts,
                has_embedding=stage == 0,
                has_head=stage == cuts.head,
                predicting_layers=ahead,
                is_empty=stage > cuts.last,
            )
        )
        begins += layers
    # A second copy of the model runs in the other direction (DualPipe).
    mirrored = [replace(share, rank=pp - 1 - share.rank) for share in shares]
    return tuple(shares + mirrored * (kind.copies - 1))


def _dense_before(model: Transformer, layers: int) -> int:
    """Number of layers without experts among the first `layers`: all the leading dense ones, and
    those between layers with experts; in a hybrid, evenly spread."""
    dense = model.num_layers - model.num_expert_layers
    if model.is_even:
        first = model.first_dense_layers if model.num_experts else dense
        after = max(0, layers - first)
        return min(layers, first) + after - after // model.expert_every
    return layers * dense // model.num_layers


def _with_experts(model: Transformer, ahead: int) -> int:
    """Number of predicting layers with experts: all if the model has any; in a hybrid, whose layers
    have one part each, its share of them."""
    if not model.num_experts:
        return 0
    return ahead if model.is_even else math.ceil(ahead * model.num_expert_layers / model.num_layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cuts:
    """Layers of each stage, the stage of the head, the last nonempty stage, and for each stage the
    layers that predict further tokens (`()` for none)."""

    layers: tuple[int, ...]
    head: int
    last: int
    predicting: tuple[int, ...] = ()


def predictor_units(model: Transformer) -> int:
    """Number of units to distribute over stages if the model predicts further tokens: layers, and
    per further token its layers and its logits, plus the loss; 0 if it predicts one token."""
    if not model.predicted_ahead:
        return 0
    return model.predicted_ahead * (model.predicting_layers + 1) + 1


def _with_predictors(model: Transformer, count: int) -> _Cuts:
    """Stages with equal numbers of units, in the order of layers, then per further token its layers
    and its logits, then the loss (Megatron-Bridge, recipes/deepseek: layouts of DeepSeek-V3 on 4,
    8, 16 and 32 stages). The head is on the stage of the loss."""
    block = model.predicting_layers
    units = model.num_layers + predictor_units(model)
    each = math.ceil(units / count)
    layers, predicting = [0] * count, [0] * count
    for unit in range(units - 1):
        stage = min(unit // each, count - 1)
        if unit < model.num_layers:
            layers[stage] += 1
        elif (unit - model.num_layers) % (block + 1) < block:
            predicting[stage] += 1
    return _Cuts(layers=tuple(layers), head=count - 1, last=count - 1, predicting=tuple(predicting))


def _even(model: Transformer, count: int) -> _Cuts:
    num_layers = model.num_layers
    if num_layers % count and count > 1 and not (num_layers + 2) % count:
        each = (num_layers + 2) // count
        layers = (each - 1, *[each] * (count - 2), each - 1)
    else:
        each, rest = divmod(num_layers, count)
        layers = tuple(each + (stage < rest) for stage in range(count))
    ahead = model.predicted_ahead * model.predicting_layers
    predicting = (*[0] * (count - 1), ahead) if ahead else ()
    return _Cuts(layers=layers, head=count - 1, last=count - 1, predicting=predicting)


def _by_cost(model: Transformer, count: int) -> _Cuts:
    """nanotron's cuts. A stage ends with the block whose cost exceeds its share. Costs are the
    matmul weights of layers and head (LlamaForTraining.get_block_compute_costs); the final norm,
    the cast of the logits and the loss cost 0. Stages may be empty.

    If the cost equals the share, nanotron's code continues (`>`). But in 135 rows of the
    Ultra-Scale sweep with this case (1B, halves and quarters of the cost of 20 layers), the peaks
    show that the stage ended: 8.5 % mean absolute error that way, 12.1 % otherwise (2026-11-21).
    """
    layer = 4 * model.num_heads * model.head_size * model.hidden_size
    layer += 3 * model.hidden_size * model.ffn_size
    head = model.vocab_size * model.hidden_size
    blocks = [0, *[layer] * model.num_layers, 0, head, 0, 0]
    total = sum(blocks)
    layers = [0] * count
    stage = head_stage = done = last = 0
    for number, block in enumerate(blocks):
        last = stage
        done += block
        if 1 <= number <= model.num_layers:
            layers[stage] += 1
        elif number == model.num_layers + 2:
            head_stage = stage
        if done >= total * ((stage + 1) / count) and stage < count - 1:
            stage += 1
    return _Cuts(layers=tuple(layers), head=head_stage, last=last)
