"""`Framework`: a training framework of a generation as data, one file each.

A file (profiles/data/frameworks, or any path that ends with .toml) has what the framework computes
and moves at its top level, what it keeps under `[memory]`, and what it can run under `[rules]`.
`[[memory_at]]` says what differs at some ZeRO stages. With `like = "NAME"` everything that a file
does not state is that of another file, but for names, date and source.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.document import decode, read_mapping
from profiles.errors import DocumentError, InputError, UnknownNameError
from profiles.hardware.catalogue.device import PRECISION_TYPES
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

FRAMEWORK_SCHEMA = "shardwright/framework@1"
FRAMEWORK_FOLDER = Path(__file__).parents[3] / "profiles" / "data" / "frameworks"

AXES = ("tp", "pp", "dp", "cp", "ep", "vpp")
OFFERS = (
    "bf16-reduce",
    "compression",
    "local-steps",
    "wide-layers",
    "optimizer-offload",
    "activation-offload",
    "low-bit-weights",
    "8-bit-states",
    "4-bit-states",
)
_ATTENTION = ("fused", "flash-2", "unfused")
_EXCLUDED = ("pipeline", "recompute")
_STAGE_SPLITS = ("even", "cost")
_PEAK_RANKS = ("any", "first")
_SHOWN = ("allocated", "reserved", "device")
# Keys of a file that `like` does not hand on.
_OWN: tuple[str, ...] = ("name", "names", "forks", "devices", "offered", "date", "source", "like")
_OWN += ("compiled_name", "coefficients_of")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkMemory:
    """What a framework keeps on a device at some ZeRO stages; files say where entries are read off.

    name               of what is kept, under which intervals of peaks are filed
    zero_stages        that this describes
    weight_bytes       per parameter, held by every data-parallel rank below ZeRO stage 3
    gradient_bytes     per parameter as summed, held by every one below stage 2; `fp16_` and `fp8_`
                       are those of runs in fp16 and in fp8 or less
    frozen_fp8_weight_bytes   per parameter where fp8 runs train adapters alone
    offloaded_weight_bytes, offloaded_gradient_bytes   per parameter, what stays on the device of
                       weights and gradients where the optimizer is in host memory
    state_bytes        per parameter: fp32 master weight and Adam's moments, sharded from stage 1
    stage_split        `even`, or `cost` (nanotron: whole blocks by matmul cost, the head counts)
    peak_rank, shows   what the framework's own report prints: of the fullest rank (`any`) or of the
                       `first`; what is `allocated`, `reserved`, or what the `device` shows
    layers             tensors that a layer keeps from its forward to its backward
    always             tensors of a rank that are there for the whole run
    moments            what may be the peak
    lingering          blocks that a host running ahead leaves waiting
    cached_over_working_set   free blocks that the allocator keeps where there is room, over the
                       working set: the tensors of the peak's moment and what one layer keeps
    needed_over_allocated     for what comes and goes within a step: blocks over tensors where there
                       is no room, so what a layout needs to run at all
    compared           its counts were held against measured peaks, or are those of one that was
    device_extra_gib   what nvidia-smi shows beyond torch's blocks, above the device's own figure
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
    compared: bool = True

    def __post_init__(self) -> None:
        check_name("stage split", self.stage_split, _STAGE_SPLITS, self.name)
        check_name("peak rank", self.peak_rank, _PEAK_RANKS, self.name)
        check_name("kind of peak", self.shows, _SHOWN, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkRules:
    """What a framework can run; `name` is what `--stack` calls it.

    axes       degrees that may exceed 1: of tp, pp, dp, cp, ep, vpp
    schedules  of pipelines of two ranks or more, which a search is free to choose; others that it
               runs may be named
    zero_stages  that it offers with every one of its axes
    zero_stages_without_pipeline   beside them, where there is no pipeline
    recompute  kinds of `TrainingRun.recompute`
    partial_recompute   whether full recomputation may be of some layers of each stage only
    sequence_parallel   whether norms and residuals are split over tp
    uneven_chunks   whether layers may lie unevenly on the stages of an interleaved schedule
    orders     how ranks are numbered (axis_order.AXIS_ORDERS), its usual one first
    precisions  of the matmuls
    offers     of OFFERS, what it can do beside the axes; what is asked beyond is priced, and said
    activation_offload_without  `pipeline`, `recompute`: what it refuses beside activations in host
               memory
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
    uneven_chunks: bool = False
    zero_stages_without_pipeline: tuple[int, ...] = ()
    orders: tuple[str, ...] = AXIS_ORDERS[:1]
    precisions: tuple[str, ...] = ("bf16", "fp16", "fp32")
    offers: tuple[str, ...] = ()
    activation_offload_without: tuple[str, ...] = ()

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
        """The ZeRO stages that it offers with pp pipeline ranks."""
        return self.zero_stages + (self.zero_stages_without_pipeline if pp == 1 else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A framework of a generation; every file says where each entry is read off.

    names      beginnings of the framework names that mean it, lower case
    forks      words by which a longer name is that of a fork or wrapper of it, lower case
    devices    beginnings of the names of devices that run nothing else
    offered    among those that a plan for any framework tries: false for the old, for those of one
               device, and for some of which no run was fitted
    coefficients_of   the framework whose fitted coefficients it takes; "" for its own
    attention  `fused` (the best kernel of the device), `flash-2` (FlashAttention-2, which
               uses nothing newer than Ampere's) or `unfused` (scores in memory)
    vocabulary_multiple   the vocabulary is padded to a multiple of this times tp; 1 for none
    splits_vocabulary   tables of embeddings, head and logits are split over tp
    norm_passes, activation_passes   how often the elementwise work of a layer reads or writes a
               token's activations, forward, in units of the hidden size (norms, residuals,
               dropout) and of the feed-forward's inner width; backward does the same again
               with the gradients (`backward_passes` times as many)
    expert_bias_passes   the same of adding experts' output biases, in units of the width that
               experts take tokens in; 0 where a kernel adds them, or where it was not counted
    loss_bytes   bytes moved per logit by the cross-entropy, forward and backward
    kernels_forward, kernels_backward   kernels that one layer launches in each pass
    expert_kernels   launched per local expert by a forward matmul of experts, in ops of PyTorch
               that take the host as long; the backward has two such matmuls for each. 0 where
               one kernel runs all experts
    block_scale_kernels   beside, per operand with a scale per block of elements (mxfp8, nvfp4):
               its cast and the reordering of its scales
    sent_weight_bytes, summed_gradient_bytes   per parameter, as it is gathered and computed with,
               and as gradients are summed
    optimizer_traffic_bytes   read and written per parameter by one optimizer step
    accumulation_bytes   read and written per parameter to add a micro-batch's gradient to its sum,
               beyond writing a 16-bit gradient, less what hides under the matmul that does it
    step_ms   milliseconds of a step of any size beside its passes and its optimizer, as measured;
               0 where the fitted coefficient of that name applies
    tensor_dispatch   host time of an op on a tensor that is split over ranks, over a plain one's
    sends_tokens_once   a token goes to each node once, whatever the number of its experts there
               (message_row.py)
    overlaps_host   transfers to and from host memory go on beside computing
    overlapped_exchange   share of the bytes of the gradients' and weights' exchange that are sent
               beside the passes of one micro-batch: gradients under its backward as they are made,
               weights under the next step's first forward
    own_executor   exchanges gradients and parameters as ours does (step_messages.py)
    splits_sends   tensor-parallel ranks send a share each between stages and gather it there
    blocking_messages   the host waits for every message between stages, whose size it reads first
               (blocked_host.py)
    bucket_bytes   size limit of a separately exchanged bucket of gradients; 0 for no buckets
    copied_tensors   weight tensors per layer that ZeRO 1 copies from a gathered buffer, one slice
               per rank at a time; 0 if it gathers in place
    usual_zero_stage, usual_sequence_parallel   what it does where a source is silent
    gathered_in_pipelines   ZeRO 3 keeps a stage's parameters and gradients whole beside a pipeline
    microbatch_per_stage   silent sources have as many micro-batches as stages
    usual_chunks   chunks per rank of an interleaved pipeline, where a source is silent; 0 for the
               fewest that split the layers evenly
    prunes_recompute   full recomputation leaves out a layer's last matmul, which no gradient reads
    selective      the kind of `TrainingRun.recompute` that its "selective" means
    compiled_name  the framework that it is under torch.compile; "" where that is not told apart
    memory         what it keeps, by ZeRO stage
    rules          what it can run
    executor       of our own executor: what a traced model's memory and step are counted with
    """

    name: str
    source: str
    date: str
    names: tuple[str, ...]
    attention: str
    vocabulary_multiple: int
    norm_passes: float
    activation_passes: float
    backward_passes: float
    loss_bytes: float
    kernels_forward: float
    kernels_backward: float
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
    executor: ExecutorStates | None = None

    def __post_init__(self) -> None:
        check_name("attention", self.attention, _ATTENTION, self.name)
        check_name("recompute kind", self.selective, tuple(RECOMPUTE_KINDS), self.name)
        for stage in (*self.rules.zero_stages_at(1), self.usual_zero_stage):
            self.memory_at(stage)

    def recompute_meant(self, kind: str) -> str:
        """The kind that a word means: `selective` and `attention` are what it does of that sort.

        >>> load_framework("torchtitan").recompute_meant("selective")
        'alternate'
        """
        own = kind in self.rules.recompute or kind not in ("selective", "attention")
        return kind if own else self.selective

    def memory_at(self, zero_stage: int) -> FrameworkMemory:
        """What it keeps at a ZeRO stage; raises InputError where its file does not say."""
        for memory in self.memory:
            if zero_stage in memory.zero_stages:
                return memory
        known = sorted(stage for memory in self.memory for stage in memory.zero_stages)
        raise InputError(
            f"{self.name} keeps nothing that is known at ZeRO stage {zero_stage} (its file "
            f"describes stages {', '.join(map(str, known))})"
        )


@functools.cache
def framework_names() -> tuple[str, ...]:
    """The frameworks that ship."""
    return tuple(sorted(path.stem for path in FRAMEWORK_FOLDER.glob("*.toml")))


def offered_frameworks() -> tuple[str, ...]:
    """Those that ship and that a plan for any framework tries."""
    return tuple(name for name in framework_names() if load_framework(name).offered)


@functools.cache
def framework_of_device(name: str) -> str:
    """The framework that is all that a device runs, or ""."""
    return next(
        (each for each in framework_names() if name.startswith(load_framework(each).devices)), ""
    )


@functools.cache
def load_framework(name: str) -> Framework:
    """A framework that ships, or that of a file whose path ends with .toml.

    Raises UnknownNameError, which names what an alias (`nemo`, `fsdp`) stands for.
    """
    path, data = _merged_file(name, ())
    if data.pop("schema", None) != FRAMEWORK_SCHEMA:
        raise DocumentError(f"{path} is not a {FRAMEWORK_SCHEMA} file: see its key 'schema'")
    memory = data.get("memory", {})
    data["memory"] = [memory, *(_over(memory, each) for each in data.pop("memory_at", ()))]
    data.setdefault("rules", {})["name"] = name
    found: Framework = decode(Framework, data, where=str(path))
    return found


def load_stack() -> ExecutorStates:
    """What our executor keeps: the section `executor` of profiles/data/frameworks/torch.toml."""
    found = load_framework("torch").executor
    assert found is not None
    return found


def _merged_file(name: str, before: tuple[str, ...]) -> tuple[Path, dict[str, Any]]:
    """A file's path and what it says, over what the file says that it is like."""
    path = Path(name) if name.endswith(".toml") else FRAMEWORK_FOLDER / f"{name}.toml"
    if not name.endswith(".toml") and name not in framework_names():
        meant = framework_of(name) or fork_of(name)
        raise UnknownNameError("framework", name, framework_names(), where="--stack", meant=meant)
    if name in before:
        raise DocumentError(f"{path}: like goes round in a circle: {' -> '.join((*before, name))}")
    own = read_mapping(path)
    base = own.pop("like", "")
    if not base:
        return path, own
    _, inherited = _merged_file(base, (*before, name))
    return path, _over({k: v for k, v in inherited.items() if k not in _OWN}, own)


def _over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """What `own` says, over `base`; tables are merged, all else is replaced."""
    tables = {k: _over(base[k], v) for k, v in own.items() if _is_table(v) and k in base}
    return {**base, **own, **tables}


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) and "value" not in value  # a number with its source is one


def framework_of(text: str) -> str:
    """The framework that a name in words means, or "" for none: the longest matching beginning.

    A name with "compile" in it means the compiled one of a framework that tells them apart.

    >>> framework_of("Megatron-Bridge 26.04")
    'megatron-bridge'
    >>> framework_of("torchtitan (FSDP2, torch.compile)")
    'torchtitan-compiled'
    """
    asked = text.strip().lower()
    found = [
        (len(start), name)
        for name in framework_names()
        for start in load_framework(name).names
        if asked.startswith(start)
    ]
    name = max(found)[1] if found else ""
    return (load_framework(name).compiled_name or name) if name and "compile" in asked else name


def fork_of(text: str) -> str:
    """The framework that a longer name is a fork or wrapper of, or "": the first word decides.

    >>> fork_of("Megatron-Kwai"), fork_of("XTuner (DeepSpeed)")
    ('megatron-core', 'transformers')
    """
    found = [
        (match.start(), -len(word), name)
        for name in framework_names()
        for word in load_framework(name).forks
        if (match := re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z])", text.lower()))
    ]
    return min(found)[2] if found else ""


def memory_of(run: TrainingRun) -> FrameworkMemory:
    """What the run's framework keeps at its ZeRO stage; raises what `memory_at` raises."""
    return load_framework(run.stack).memory_at(run.zero_stage)
