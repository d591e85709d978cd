"""`StageShare`: which layers, embedding and head each virtual pipeline stage holds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from profiles.model.transformer import Transformer
from simulator.schedule import schedule_kind
from simulator.training_run.training_run import TrainingRun


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShare:
    """One virtual stage: its rank, dense layers, layers with experts, and whether it has the table
    of embeddings and the head; `is_empty` where not even the loss is left for it."""

    rank: int
    dense_layers: int
    expert_layers: int
    has_embedding: bool
    has_head: bool
    is_empty: bool = False

    @property
    def num_layers(self) -> int:
        return self.dense_layers + self.expert_layers


def stage_shares(run: TrainingRun, split: str) -> tuple[StageShare, ...]:
    """The virtual stages of a run in the order of the model, of all copies that its ranks hold.

    split  `cost` cuts as nanotron does (src/nanotron/models/base.py, build_model); `even` gives
           equal layers, where needed with the embedding and the head counted as a layer each (Zero
           Bubble README, "Notices"), else as equal as can be with the rest in front
    """
    count = run.pp * run.vpp
    kind = schedule_kind(run.schedule)
    cuts = _by_cost(run, count) if split == "cost" else _even(run.model.num_layers, count)
    shares = []
    begins = 0
    for stage, layers in enumerate(cuts.layers):
        dense_here = _dense_before(run.model, begins + layers) - _dense_before(run.model, begins)
        shares.append(
            StageShare(
                rank=kind.rank_of(run.pp, stage),
                dense_layers=dense_here,
                expert_layers=layers - dense_here,
                has_embedding=stage == 0,
                has_head=stage == cuts.head,
                is_empty=stage > cuts.last,
            )
        )
        begins += layers
    # A second copy of the model runs the other way (DualPipe).
    mirrored = [replace(share, rank=run.pp - 1 - share.rank) for share in shares]
    return tuple(shares + mirrored * (kind.copies - 1))


def _dense_before(model: Transformer, layers: int) -> int:
    """Layers without experts among the first `layers`: all of the first ones, but spread evenly
    over a hybrid."""
    dense = model.num_layers - model.num_expert_layers
    if model.is_even:
        return min(layers, dense)
    return layers * dense // model.num_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cuts:
    """Layers of each stage, the stage of the head and the last stage that holds anything."""

    layers: tuple[int, ...]
    head: int
    last: int


def _even(num_layers: int, count: int) -> _Cuts:
    if num_layers % count and count > 1 and not (num_layers + 2) % count:
        each = (num_layers + 2) // count
        layers = (each - 1, *[each] * (count - 2), each - 1)
    else:
        each, rest = divmod(num_layers, count)
        layers = tuple(each + (stage < rest) for stage in range(count))
    return _Cuts(layers=layers, head=count - 1, last=count - 1)


def _by_cost(run: TrainingRun, count: int) -> _Cuts:
    """A stage ends with the block that takes the cost past its share: matmul weights of the layers
    and of the head (LlamaForTraining.get_block_compute_costs), nothing for the norm after the
    layers, the cast of the logits and the loss, which follow. Stages may stay empty.

    Where the cost equals the share the code goes on (`>`). 135 rows of the Ultra-Scale sweep meet
    that case (1B, halves and quarters of the cost of 20 layers), and their peaks say that the stage
    ended: 8.5 % mean absolute error that way, 12.1 % the other (2026-11-21)."""
    model = run.model
    layer = 4 * model.num_heads * model.head_size * model.hidden_size
    layer += 3 * model.hidden_size * model.ffn_size
    head = model.vocab_size * model.hidden_size
    blocks = [0, *[layer] * model.num_layers, 0, head, 0, 0]
    total = sum(blocks)
    layers = [0] * count
    stage = head_stage = done = last = 0
    for block in blocks:
        last = stage
        done += block
        if block == layer:
            layers[stage] += 1
        elif block == head:
            head_stage = stage
        if done >= total * ((stage + 1) / count) and stage < count - 1:
            stage += 1
    return _Cuts(layers=tuple(layers), head=head_stage, last=last)
