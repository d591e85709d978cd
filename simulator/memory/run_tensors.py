"""`RunTensors`: bytes of a framework's tensors in one run, and bytes kept by its layers.

Tensors, their widths and how they are split are data (`[memory]` in a framework's file). For an
unfused GPT layer they add up to equations 1 to 6 of Korthikanti et al. (arXiv 2205.05198); tests
check this.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulator.training_run.framework.framework import Framework
from simulator.training_run.framework.kept_tensor import (
    CHECKPOINT,
    DENSE_PARTS,
    EXPERT_PARTS,
    TOKEN_WIDTHS,
    WEIGHT_WIDTHS,
    KeptTensor,
)
from simulator.training_run.framework.run_conditions import run_conditions
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.stage_share import StageShare
from simulator.values.recompute_kind import recompute_kind

# Bytes of an element of bf16 or fp16.
_HALF_BYTES = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """Properties of a rank on which tensor sizes depend, in addition to the run: its number of
    parameters after tensor, pipeline and expert parallelism, and its conditions."""

    num_parameters: float = 0.0
    conditions: tuple[str, ...] = ()


EVERY_RANK = RankFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Bytes of one layer and micro-batch on one device.

    dense, expert              kept from its forward to its backward
    dense_rerun, expert_rerun  recomputed for its backward
    """

    dense: float
    expert: float
    dense_rerun: float
    expert_rerun: float


class RunTensors:
    """Bytes of a framework's tensors, on one device, for one micro-batch of a run.

    memory      tensors of the framework at the run's ZeRO stage
    conditions  those of `run_conditions`

    Raises InputError if the framework's file does not describe the ZeRO stage.
    """

    def __init__(
        self, run: TrainingRun, framework: Framework, conditions: frozenset[str] | None = None
    ) -> None:
        self.memory = framework.memory_at(run.zero_stage)
        self._conditions = run_conditions(run, framework) if conditions is None else conditions
        self._run, self._framework, self._fp32 = run, framework, run.precision == "fp32"
        tp = run.degrees.tp
        self._splits = {
            "tp": tp,
            "sequence": tp if run.sequence_parallel else 1,
            "vocabulary": framework.vocabulary_ranks(run.model, tp),
            "none": 1,
        }
        self._elements: dict[str, float] = {}
        self._layers: dict[str, LayerBytes] = {}

    @functools.cached_property
    def vocabulary(self) -> int:
        """The padded vocabulary."""
        return self._framework.padded_vocabulary(self._run.model, self._run.degrees.tp)

    def bytes_of(self, tensor: KeptTensor, here: RankFacts = EVERY_RANK) -> float:
        """Bytes of a tensor; 0 if one of its conditions is false."""
        for condition in tensor.only:
            if condition not in self._conditions and condition not in here.conditions:
                return 0.0
        # Tensors that are in 16 bits in mixed precision are in 32 bits in an fp32 run.
        element = 4.0 if self._fp32 and tensor.bytes == _HALF_BYTES else tensor.bytes
        each = element * tensor.count
        if tensor.width == "parameters":
            return each * min(here.num_parameters, tensor.most or math.inf)
        elements = self._elements.get(tensor.width)
        if elements is None:
            run, per_token = self._run, TOKEN_WIDTHS.get(tensor.width)
            if per_token is None:
                elements = WEIGHT_WIDTHS[tensor.width](run, self.vocabulary)
            else:
                elements = per_token(run, self.vocabulary) * run.tokens
            self._elements[tensor.width] = elements
        return each * elements / self._splits[tensor.split]

    def total(self, tensors: Iterable[KeptTensor], here: RankFacts = EVERY_RANK) -> float:
        """Bytes of all of them."""
        return sum(self.bytes_of(tensor, here) for tensor in tensors)

    def layer(self, recompute: str) -> LayerBytes:
        """A layer under a recompute kind (`TrainingRun.recompute`); cached."""
        if recompute not in self._layers:
            parts = dict.fromkeys((*DENSE_PARTS, *EXPERT_PARTS), 0.0)
            for tensor in self.memory.layers:
                if tensor.part != CHECKPOINT or recompute == "full":
                    parts[tensor.part] += self.bytes_of(tensor)
            kind = recompute_kind(recompute)
            freed = kind.frees if kind.suits(self._run.model) else ()
            self._layers[recompute] = LayerBytes(
                dense=sum(parts[name] for name in DENSE_PARTS if name not in freed),
                expert=sum(parts[name] for name in EXPERT_PARTS if name not in freed),
                dense_rerun=sum(parts[name] for name in DENSE_PARTS if name in freed),
                expert_rerun=sum(parts[name] for name in EXPERT_PARTS if name in freed),
            )
        return self._layers[recompute]


_KNOWN: dict[tuple[object, ...], RunTensors] = {}
_MOST_KNOWN = 1 << 13


def run_tensors(run: TrainingRun, framework: Framework) -> RunTensors:
    """The tensors of a run, cached for all runs with equal sizes, because a search computes
    thousands of meshes."""
    conditions = run_conditions(run, framework)
    key = (
        run.model,
        run.stack,
        run.zero_stage,
        run.precision,
        run.seq_len,
        run.micro_batch,
        run.fullest_expert_load,
        run.degrees.tp,
        run.degrees.cp,
        run.sequence_parallel,
        conditions,
    )
    found = _KNOWN.get(key)
    if found is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        found = _KNOWN[key] = RunTensors(run, framework, conditions)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLayers:
    """A number of layers of a rank with equal kept bytes per micro-batch."""

    name: str
    count: int
    bytes_each: float


def kept_layers(
    run: TrainingRun, tensors: RunTensors, shares: Sequence[StageShare]
) -> tuple[KeptLayers, ...]:
    """Activations kept by the layers of a rank's virtual stages; the first layers of a stage are
    recomputed."""
    dense = expert = 0
    for share in shares:
        count = run.recompute_layers or share.num_layers
        first = min(share.dense_layers, count)
        dense += first
        expert += min(share.expert_layers, count - first)
    others = sum(share.dense_layers for share in shares) - dense
    other_experts = sum(share.expert_layers for share in shares) - expert
    layer, plain = tensors.layer(run.recompute), tensors.layer("none")
    found = (
        ("layers", dense, layer.dense),
        ("expert layers", expert, layer.expert),
        ("layers not recomputed", others, plain.dense),
        ("expert layers not recomputed", other_experts, plain.expert),
    )
    return tuple(
        KeptLayers(name=name, count=count, bytes_each=each) for name, count, each in found if count
    )


def on_device_bytes(run: TrainingRun, tensors: RunTensors, kept: float) -> float:
    """Bytes of kept activations on the device. If some are offloaded, the device still has those of
    the computing layer and those being copied for the next: two buffers (Transformer Engine,
    pytorch/cpu_offload.py, AsyncDoubleBufferGroupOffloadHandler)."""
    share = run.activation_offload
    if not share:
        return kept
    away, kinds = share * kept, (run.recompute, "none" if run.recompute_layers else run.recompute)
    largest = max(max(layer.dense, layer.expert) for layer in map(tensors.layer, kinds))
    return kept - away + min(away, 2.0 * share * largest)
