"""`StageShare`: which layers, embedding and head each virtual pipeline stage holds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from simulator.training_run.training_run import TrainingRun


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShare:
    """One virtual stage: dense layers, layers with experts, and whether it has the table of
    embeddings and the head with the loss."""

    rank: int
    dense_layers: int
    expert_layers: int
    has_embedding: bool
    has_head: bool

    @property
    def num_layers(self) -> int:
        return self.dense_layers + self.expert_layers


def stage_shares(run: TrainingRun, split: str) -> tuple[StageShare, ...]:
    """The virtual stages of a run in the order of the model.

    split  `cost` cuts as nanotron does (src/nanotron/models/base.py, build_model); `even` gives
           equal layers, where needed with the embedding and the head counted as a layer each (Zero
           Bubble README, "Notices"), else as equal as can be with the rest in front
    """
    count = run.pp * max(1, run.vpp)
    layers = _by_cost(run, count) if split == "cost" else _even(run.model.num_layers, count)
    dense = run.model.num_layers - run.model.num_expert_layers
    shares = []
    begins = 0
    for stage, number in enumerate(layers):
        dense_here = max(0, min(number, dense - begins))
        shares.append(
            StageShare(
                rank=_rank(stage, run),
                dense_layers=dense_here,
                expert_layers=number - dense_here,
                has_embedding=stage == 0,
                has_head=stage == count - 1,
            )
        )
        begins += number
    return tuple(shares)


def _rank(stage: int, run: TrainingRun) -> int:
    """Stages go around the ranks, but there and back where the schedule says so (ZB-V, DualPipeV,
    V-Half, V-Min)."""
    turn, place = divmod(stage, run.pp)
    if is_v_shaped(run) and turn % 2:
        return run.pp - 1 - place
    return place


def is_v_shaped(run: TrainingRun) -> bool:
    """Whether the first rank holds the last stage too."""
    return run.schedule in ("zbv", "dualpipev", "v-half", "v-min")


def _even(num_layers: int, count: int) -> tuple[int, ...]:
    if num_layers % count and not (num_layers + 2) % count and count > 1:
        each = (num_layers + 2) // count
        return (each - 1, *[each] * (count - 2), each - 1)
    each, rest = divmod(num_layers, count)
    return tuple(each + (stage < rest) for stage in range(count))


def _by_cost(run: TrainingRun, count: int) -> tuple[int, ...]:
    """A block goes to the next stage once the blocks before have passed their share of the cost:
    matmul weights of layers and head (LlamaForTraining.get_block_compute_costs)."""
    model = run.model
    layer = 4.0 * model.num_heads * model.head_size * model.hidden_size
    layer += 3.0 * model.ffn_size * model.hidden_size
    total = model.num_layers * layer + model.vocab_size * model.hidden_size
    found = [0] * count
    stage = 0
    for done in itertools.accumulate([layer] * model.num_layers):
        found[stage] += 1
        if done > total * (stage + 1) / count:
            stage += 1
    return tuple(found)
