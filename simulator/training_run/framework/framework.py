"""`Framework`: a version of a training framework as data, one file each.

In a file (profiles/data/frameworks, or any path that ends with .toml) the top level describes
computation and traffic, `[memory]` the tensors kept, and `[rules]` the supported options.
`[[memory_at]]` overrides `[memory]` at some ZeRO stages. With `like = "NAME"` a file inherits all
missing keys from another file, except names, date and source.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from profiles.document import decode, flattened, read_mapping
from profiles.errors import DocumentError, InputError, UnknownNameError
from profiles.hardware.catalogue.device import PRECISION_TYPES
from profiles.model.figures.transformer import Transformer
from profiles.sourced import Sourced
from simulator.schedules.schedule import pipeline_names
from simulator.training_run.framework.executor_states import ExecutorStates
from simulator.training_run.framework.kept_tensor import (
    KeptTensor,
    LingeringTensor,
    Moment,
    check_name,
)
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.degrees import AXIS_ORDERS
from simulator.values.recompute_kind import RECOMPUTE_KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCounts:
    """Counts per layer, for one architecture of its modules.

    norm_passes, activation_passes   reads and writes of a token's activations by the elementwise
               work of the forward, in units of the hidden size (norms, residuals, dropout) and of
               the inner width of the feed-forward
    head_passes        of the norm passes, those on queries and keys, which tp always splits
    backward_passes    bytes of the backward over those of the forward
    sum_passes         of the backward's norm passes, sums of the gradients of one input of several
               layers, which are over all tokens also under sequence parallelism
    kernels_forward, kernels_backward   launched kernels
    """

    norm_passes: float
    activation_passes: float
    backward_passes: float
    kernels_forward: float
    kernels_backward: float
    head_passes: float = 0.0
    sum_passes: float = 0.0


_OPTIONAL = tuple(each.name for each in fields(LayerCounts) if each.default is not MISSING)
LAYER_KEYS = flattened(*(each.name for each in fields(LayerCounts)), optional=_OPTIONAL)
"""They are keys of a framework's file itself."""


FRAMEWORK_SCHEMA = "shardwright/framework@1"
FRAMEWORK_FOLDER = Path(__file__).parents[3] / "profiles" / "data" / "frameworks"

AXES = ("tp", "pp", "dp", "cp", "ep", "vpp")
OFFERS = (
    "bf16-reduce",
    "compression",
    "local-steps",
    "wide-layers",
    "optimizer-offload",
    "sequence-parallel",
    "activation-offload",
    "low-bit-weights",
    "8-bit-states",
    "4-bit-states",
    "muon",
    "pipeline-layout",
    "hsdp",
)
_ATTENTION = ("fused", "flash-2", "unfused")
_EXCLUDED = ("pipeline", "recompute")
_STAGE_SPLITS = ("even", "cost")
_PEAK_RANKS = ("any", "first")
_SHOWN = ("allocated", "reserved", "device")
# Keys that `like` does not inherit.
_OWN: tuple[str, ...] = ("name", "names", "forks", "devices", "offered", "date", "source", "like")
_OWN += ("compiled_name", "coefficients_of")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkMemory:
    """Device memory of a framework at some ZeRO stages; each file has the sources of its entries.

    name               identifies the intervals of peaks
    zero_stages        described stages
    weight_bytes       per parameter, on every data-parallel rank below ZeRO stage 3
    gradient_bytes     per parameter, as reduced, on every rank below stage 2; `fp16_` and `fp8_`
                       for runs in fp16 and in fp8 or less
    keeps_gradients_as_summed   the type in which gradients are summed is that of their buffers
    keeps_gradients    buffers of gradients last all run; otherwise a step's first backward
                       allocates them (torch's `zero_grad`, which sets them to None)
    frozen_fp8_weight_bytes   per parameter, in fp8 runs that train only adapters
    offloaded_weight_bytes, offloaded_gradient_bytes   per parameter, on the device if the optimizer
                       is in host memory
    state_bytes        per parameter: fp32 master weight and Adam's moments, sharded from stage 1
    stage_split        `even`, or `cost` (nanotron: whole blocks by matmul cost, including the head)
    peak_rank, shows   peak in the framework's own report: of the fullest rank (`any`) or of the
                       `first`; bytes `allocated`, `reserved` or in use on the `device`
    layers             tensors that a layer keeps from its forward to its backward
    always             tensors kept for the whole run
    moments            candidates for the peak
    lingering          freed blocks not yet reusable because the host runs ahead
    cached_over_working_set   free blocks cached by the allocator if there is room, divided by the
                       working set: tensors of the peak's moment plus the kept tensors of one layer
    needed_over_allocated     for tensors that live within a step: smallest ratio of blocks to
                       tensors, when memory is short; gives the memory required to run
    compared           whether its counts, or the counts it inherits, were compared with measured
                       peaks
    device_extra_gib   memory in nvidia-smi beyond torch's blocks and the device's reserved memory
    """

    name: str
    zero_stages: tuple[int, ...]
    source: str
    date: str
    weight_bytes: float
    gradient_bytes: float
    fp16_gradient_bytes: float
    fp8_gradient_bytes: float
    frozen_fp8_weight_bytes: float
    state_bytes: float
    offloaded_weight_bytes: float
    offloaded_gradient_bytes: float
    stage_split: str
    peak_rank: str
    shows: str
    cached_over_working_set: Sourced
    needed_over_allocated: Sourced
    device_extra_gib: Sourced
    layers: tuple[KeptTensor, ...]
    always: tuple[KeptTensor, ...]
    moments: tuple[Moment, ...]
    lingering: tuple[LingeringTensor, ...] = ()
    keeps_gradients_as_summed: bool = False
    keeps_gradients: bool = True
    compared: bool = True

    def __post_init__(self) -> None:
        check_name("stage split", self.stage_split, _STAGE_SPLITS, self.name)
        check_name("peak rank", self.peak_rank, _PEAK_RANKS, self.name)
        check_name("kind of peak", self.shows, _SHOWN, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkRules:
    """Options supported by a framework; `name` is its name for `--stack`.

    axes       degrees that may exceed 1: of tp, pp, dp, cp, ep, vpp
    schedules  default candidates of a search with two or more pipeline ranks; users may request
               other supported ones
    zero_stages  supported with all of its axes
    zero_stages_without_pipeline   additional ones without a pipeline
    recompute  kinds of `TrainingRun.recompute`
    partial_recompute   whether full recomputation can be limited to some layers of each stage
    sequence_parallel   whether norms and residuals are always split over tp
    orders     axis orders of its ranks (AXIS_ORDERS), the default first
    precisions  of the matmuls
    offers     supported features of OFFERS; others are priced with a warning
    activation_offload_without  `pipeline`, `recompute`: not supported together with activations in
               host memory
    offloads_shards   an optimizer in host memory takes the shards of weights and gradients with it,
               which are copied over the link for every gather and reduction (FSDP's CPU offload);
               needs ZeRO 1, 2 or 3
    """

    name: str
    date: str
    source: str
    axes: tuple[str, ...]
    schedules: tuple[str, ...]
    zero_stages: tuple[int, ...]
    recompute: tuple[str, ...]
    partial_recompute: bool
    sequence_parallel: bool
    zero_stages_without_pipeline: tuple[int, ...] = ()
    orders: tuple[str, ...] = AXIS_ORDERS[:1]
    precisions: tuple[str, ...] = ("bf16", "fp16", "fp32")
    offers: tuple[str, ...] = ()
    activation_offload_without: tuple[str, ...] = ()
    offloads_shards: bool = False

    def __post_init__(self) -> None:
        for what, given, known in (
            ("axis", self.axes, AXES),
            ("schedule", self.schedules, pipeline_names()),
            ("recompute kind", self.recompute, tuple(RECOMPUTE_KINDS)),
            ("order", self.orders, AXIS_ORDERS),
            ("precision", self.precisions, tuple(PRECISION_TYPES)),
            ("offer", self.offers, OFFERS),
            ("exclusion", self.activation_offload_without, _EXCLUDED),
        ):
            for value in given:
                check_name(what, value, known, f"{self.name}: rules")

    def zero_stages_at(self, pp: int) -> tuple[int, ...]:
        """ZeRO stages supported with pp pipeline ranks."""
        return self.zero_stages + (self.zero_stages_without_pipeline if pp == 1 else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A version of a framework; each file has the sources of its entries.

    names      prefixes of framework names that refer to it, lower case
    forks      words in the names of its forks and wrappers, lower case
    devices    prefixes of the names of devices that run no other framework
    offered    a candidate when planning for any framework; false for old versions, for frameworks
               of one device, and for some without a fitted run
    coefficients_of   framework whose fitted coefficients it uses; "" for its own
    attention  `fused` (the best kernel of the device), `flash-2` (FlashAttention-2, without
               features newer than Ampere) or `unfused` (scores in memory)
    vocabulary_multiple   the vocabulary is padded to a multiple of this times tp; 1 for no padding
    splits_vocabulary   tables of embeddings, head and logits are split over tp (`vocabulary_ranks`)
    layer      elementwise work and kernels of a layer
    expert_bias_passes   the same for adding experts' output biases, in units of the experts' token
               width; 0 if fused into a kernel, or not counted
    query_key_passes     the same for norms of queries and keys, in units of their width
    loss_bytes   bytes moved per logit by the cross-entropy, forward and backward
    layer_norm, unfused_gelu, query_key_norms   `layer` for models with biases, whose norms are
               LayerNorms, for models whose GELU is written in several ops, and for models that
               normalise queries and keys; None if the framework's kernels make no
               such difference, or it was not counted
    expert_kernels   launches per local expert in a forward matmul of experts, in equivalent PyTorch
               ops of host time; backward has two such matmuls for each. 0 if one kernel runs all
               experts
    block_scale_kernels   additional launches per operand with a scale per block of elements (mxfp8,
               nvfp4): its cast and the reordering of its scales
    sent_weight_bytes, summed_gradient_bytes   per parameter: weights in gathers and computation,
               gradients in reductions
    optimizer_traffic_bytes   read and written per parameter by one optimizer step
    accumulation_bytes   read and written per parameter to accumulate a micro-batch's gradient, in
               addition to writing a 16-bit gradient, minus the part hidden under its matmul
    step_ms   measured constant time of a step in addition to passes and optimizer, in ms; 0 if the
               fitted coefficient of that name applies
    dispatch   host time of an op, relative to the frameworks that launch_us is fitted on
    tensor_dispatch   host time of an op on a tensor split over ranks, relative to a plain tensor
    sends_tokens_once   a token is sent once to each node, independent of its experts there
               (message_row.py)
    overlaps_host   transfers to and from host memory overlap with compute
    overlapped_exchange   share of the bytes of the gradient and weight exchange that overlaps with
               one micro-batch: gradients with its backward, weights with the next step's first
               forward
    own_executor   exchanges gradients and parameters as our executor does (step_messages.py)
    splits_sends   tensor-parallel ranks send a share each between stages and gather it there
    blocking_messages   the host waits for the size of every message between stages
               (blocked_host.py)
    bucket_bytes   size limit of a separately exchanged bucket of gradients; 0 for no buckets
    copied_tensors   weight tensors per layer that ZeRO 1 copies from a gathered buffer, one slice
               per rank at a time; 0 if it gathers in place
    usual_zero_stage, usual_sequence_parallel   defaults if a source does not give them
    gathered_in_pipelines   with a pipeline, ZeRO 3 keeps a stage's parameters and gradients whole
    microbatch_per_stage   default: as many micro-batches as stages
    usual_chunks   default chunks per rank of an interleaved pipeline; 0 for the smallest even split
    prunes_recompute   full recomputation skips a layer's last matmul, which no gradient needs
    selective      the kind of `TrainingRun.recompute` called "selective" by the framework
    compiled_name  its name under torch.compile; "" if not distinguished
    memory         by ZeRO stage
    rules          supported options
    executor       only for our executor: bytes used for a traced model's memory and step
    """

    name: str
    source: str
    date: str
    names: tuple[str, ...]
    attention: str
    vocabulary_multiple: int
    layer: LayerCounts = field(metadata=LAYER_KEYS)
    loss_bytes: float
    sent_weight_bytes: float
    summed_gradient_bytes: float
    optimizer_traffic_bytes: float
    accumulation_bytes: float
    memory: tuple[FrameworkMemory, ...]
    rules: FrameworkRules
    forks: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    offered: bool = True
    coefficients_of: str = ""
    splits_vocabulary: bool = True
    step_ms: float = 0.0
    dispatch: float = 1.0
    tensor_dispatch: float = 1.0
    sends_tokens_once: bool = False
    own_executor: bool = False
    splits_sends: bool = False
    blocking_messages: bool = False
    bucket_bytes: float = 0.0
    copied_tensors: float = 0.0
    overlaps_host: bool = False
    overlapped_exchange: float = 0.0
    usual_zero_stage: int = 0
    usual_sequence_parallel: bool = False
    gathered_in_pipelines: bool = False
    microbatch_per_stage: bool = False
    usual_chunks: int = 0
    prunes_recompute: bool = False
    selective: str = "selective"
    compiled_name: str = ""
    expert_kernels: float = 1.0
    block_scale_kernels: float = 0.0
    expert_bias_passes: float = 0.0
    query_key_passes: float = 0.0
    layer_norm: LayerCounts | None = None
    unfused_gelu: LayerCounts | None = None
    query_key_norms: LayerCounts | None = None
    executor: ExecutorStates | None = None

    def __post_init__(self) -> None:
        check_name("attention", self.attention, _ATTENTION, self.name)
        check_name("recompute kind", self.selective, tuple(RECOMPUTE_KINDS), self.name)
        for stage in (*self.rules.zero_stages_at(1), self.usual_zero_stage):
            self.memory_at(stage)

    def resolved_recompute(self, kind: str) -> str:
        """The framework's recompute kind for a name; `selective` and `attention` are translated.

        >>> load_framework("torchtitan").resolved_recompute("selective")
        'alternate'
        """
        own = kind in self.rules.recompute or kind not in ("selective", "attention")
        return kind if own else self.selective

    def layer_counts(self, model: Transformer) -> LayerCounts:
        """The counts of a layer of the model."""
        if model.unfused_gelu and self.unfused_gelu:
            return self.unfused_gelu
        if model.biases and self.layer_norm:
            return self.layer_norm
        if model.query_key_norms and self.query_key_norms:
            return self.query_key_norms
        return self.layer

    def padded_vocabulary(self, model: Transformer, tp: int) -> int:
        """The vocabulary as stored: padded to a multiple of `vocabulary_multiple` times tp
        (Megatron-LM, `_vocab_size_with_padding`); not padded if that is 1."""
        step = self.vocabulary_multiple * tp if self.vocabulary_multiple > 1 else 1
        return -(-model.vocab_size // step) * step

    def vocabulary_ranks(self, model: Transformer, tp: int) -> int:
        """Tensor-parallel ranks that share the vocabulary. Our executor splits it where tp divides
        it and the loss can take a share (trace_vocabulary.py); others pad it, or split it unevenly.
        """
        uneven = self.own_executor and (model.whole_vocabulary or model.vocab_size % tp != 0)
        return tp if self.splits_vocabulary and not uneven else 1

    def memory_at(self, zero_stage: int) -> FrameworkMemory:
        """Its memory at a ZeRO stage; raises InputError if its file does not describe the stage."""
        for memory in self.memory:
            if zero_stage in memory.zero_stages:
                return memory
        known = sorted(stage for memory in self.memory for stage in memory.zero_stages)
        raise InputError(
            f"the memory of {self.name} at ZeRO stage {zero_stage} is unknown (its file describes "
            f"stages {', '.join(map(str, known))})"
        )


@functools.cache
def framework_names() -> tuple[str, ...]:
    """Names of the shipped frameworks."""
    return tuple(sorted(path.stem for path in FRAMEWORK_FOLDER.glob("*.toml")))


def offered_frameworks() -> tuple[str, ...]:
    """Names of the shipped frameworks that are candidates when planning for any framework."""
    return tuple(name for name in framework_names() if load_framework(name).offered)


@functools.cache
def framework_of_device(name: str) -> str:
    """The only framework of a device, or "" if it runs several."""
    return next(
        (each for each in framework_names() if name.startswith(load_framework(each).devices)), ""
    )


@functools.cache
def load_framework(name: str) -> Framework:
    """A shipped framework by name, or the framework in a file with a path that ends with .toml.

    Raises UnknownNameError, which resolves aliases (`nemo`, `fsdp`) as a suggestion.
    """
    path, data = _merged_file(name, ())
    if data.pop("schema", None) != FRAMEWORK_SCHEMA:
        raise DocumentError(f"{path} is not a {FRAMEWORK_SCHEMA} file: see its key 'schema'")
    memory = data.get("memory", {})
    data["memory"] = [memory, *(_over(memory, each) for each in data.pop("memory_at", ()))]
    data["rules"] = {**data.get("rules", {}), "name": name}
    framework: Framework = decode(Framework, data, where=str(path))
    return framework


def load_stack() -> ExecutorStates:
    """Bytes of our executor: the section `executor` of profiles/data/frameworks/torch.toml."""
    states = load_framework("torch").executor
    assert states is not None
    return states


def _merged_file(name: str, before: tuple[str, ...]) -> tuple[Path, dict[str, Any]]:
    """A file's path, and its content merged over the files it inherits from (`like`)."""
    path = Path(name) if name.endswith(".toml") else FRAMEWORK_FOLDER / f"{name}.toml"
    if not name.endswith(".toml") and name not in framework_names():
        suggestion = framework_of(name) or fork_of(name)
        raise UnknownNameError(
            "framework", name, framework_names(), where="--stack", suggestion=suggestion
        )
    if name in before:
        raise DocumentError(f"{path}: `like` is circular: {' -> '.join((*before, name))}")
    own = dict((read_mapping if name.endswith(".toml") else _shipped_file)(path))
    base = own.pop("like", "")
    if not base:
        return path, own
    _, inherited = _merged_file(base, (*before, name))
    return path, _over({k: v for k, v in inherited.items() if k not in _OWN}, own)


_shipped_file = functools.cache(read_mapping)


def _over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`own` merged over `base`; tables are merged, other values replaced."""
    tables = {k: _over(base[k], v) for k, v in own.items() if _is_table(v) and k in base}
    return {**base, **own, **tables}


def _is_table(value: Any) -> bool:
    # A number with its source has the key "value" and counts as one value.
    return isinstance(value, Mapping) and "value" not in value


def framework_of(text: str) -> str:
    """The framework for a free-form name, by the longest matching prefix; "" for none.

    A name that contains "compile" gives the compiled version of a framework that has one.

    >>> framework_of("Megatron-Bridge 26.04")
    'megatron-bridge'
    >>> framework_of("torchtitan (FSDP2, torch.compile)")
    'torchtitan-compiled'
    """
    text = text.strip().lower()
    matches = [
        (len(start), name)
        for name in framework_names()
        for start in load_framework(name).names
        if text.startswith(start)
    ]
    name = max(matches)[1] if matches else ""
    return (load_framework(name).compiled_name or name) if name and "compile" in text else name


def fork_of(text: str) -> str:
    """The framework that the named one is a fork or wrapper of, by the first match; "" for none.

    >>> fork_of("Megatron-Kwai"), fork_of("XTuner (DeepSpeed)")
    ('megatron-core', 'transformers')
    """
    matches = [
        (match.start(), -len(word), name)
        for name in framework_names()
        for word in load_framework(name).forks
        if (match := re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z])", text.lower()))
    ]
    return min(matches)[2] if matches else ""


def memory_of(run: TrainingRun) -> FrameworkMemory:
    """Memory of the run's framework at its ZeRO stage; raises the errors of `memory_at`."""
    return load_framework(run.stack).memory_at(run.zero_stage)
