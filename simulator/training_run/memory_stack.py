"""`MemoryStack`: what a training framework keeps on a device, tensor by tensor, as data."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document
from profiles.errors import InputError, UnknownNameError
from profiles.sourced import Sourced
from simulator.training_run.run_conditions import CONDITIONS
from simulator.training_run.tensor_width import WIDTHS
from simulator.training_run.training_run import TrainingRun

MEMORY_STACK_SCHEMA = "shardwright/memory-stack@1"
MEMORY_STACK_FOLDER = Path(__file__).parents[2] / "profiles" / "data" / "run_memory"

PARTS = (
    "",
    "input",
    "norm",
    "attention",
    "attention-again",
    "core",
    "mlp",
    "mlp-again",
    "routing",
    "experts",
    "shared",
)
SPLITS = ("tp", "sequence", "none")
PLACES = ("layer", "head", "embedding", "step")
STAGE_SPLITS = ("even", "cost")
PEAK_RANKS = ("any", "first")
SHOWN = ("allocated", "reserved", "device")
PROGRAMS = ("", "nanotron")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTensor:
    """A tensor that stays in memory.

    part    of a layer, which says what recomputation frees it: `input` is the layer's own input,
            `core` the attention itself, `-again` what keeping every second matmul leaves out
    width   elements per token, or of a whole weight (simulator/training_run/tensor_width.py)
    bytes   per element;  count  tensors of this kind
    split   over what it is divided: `tp`, `sequence` (tp where sequence parallelism is on), `none`
    only    conditions that must all hold (simulator/training_run/run_conditions.py)
    most    of the width `parameters`: at most so many elements (a bucket's size); 0 for no limit

    Raises UnknownNameError for a name that is none of these, InputError for a negative size.
    """

    name: str
    width: str
    bytes: float = 2.0
    count: float = 1.0
    part: str = ""
    split: str = "tp"
    only: tuple[str, ...] = ()
    most: float = 0.0

    def __post_init__(self) -> None:
        _check("part", self.part, PARTS, self.name)
        _check("split", self.split, SPLITS, self.name)
        _check("width", self.width, WIDTHS, self.name)
        for condition in self.only:
            _check("condition", condition, CONDITIONS, self.name)
        if self.most and self.width != "parameters":
            raise InputError(f"{self.name}: `most` limits the width parameters, not {self.width}")
        if self.most < 0.0:
            raise InputError(f"{self.name}: most {self.most:g} must be 0 (no limit) or more")
        if self.bytes < 0.0 or self.count < 0.0:
            raise InputError(
                f"{self.name}: bytes {self.bytes:g} and count {self.count:g} must be 0 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LingeringTensor:
    """Freed tensors whose blocks the allocator may not hand out again yet.

    A tensor that a collective on another stream reads is free for the host at once, for the device
    only when that stream has passed it (torch, Tensor.record_stream). A host that runs ahead so
    takes new blocks for each, until the device's queue of launches is full. Such blocks count as
    reserved, not as allocated (c10/cuda/CUDACachingAllocator.cpp, `free`), and an allocator in need
    waits for them.

    width, bytes, split, only   as a KeptTensor's
    each   per layer and micro-batch in flight;  most  at most so many on a rank
    """

    name: str
    width: str
    each: float
    most: float
    bytes: float = 2.0
    split: str = "none"
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.each < 0.0 or self.most < 0.0:
            raise InputError(
                f"{self.name}: each {self.each:g} and most {self.most:g} must be 0 or more"
            )
        self.one()

    def one(self) -> KeptTensor:
        """One of them; raises what KeptTensor raises."""
        return KeptTensor(
            name=self.name, width=self.width, bytes=self.bytes, split=self.split, only=self.only
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment of a step that may be the peak: what is there besides the kept activations.

    where   `layer` (backward of a layer), `head` (rank of the loss), `embedding` (rank of the
            tokens) or `step` (the optimizer runs and no activation is kept)
    """

    name: str
    where: str
    tensors: tuple[KeptTensor, ...]

    def __post_init__(self) -> None:
        _check("place", self.where, PLACES, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStack:
    """What a stack keeps; each file says where every entry is read off.

    frameworks         beginnings of frameworks' names, in small letters, that this describes in
                       the place of their run stack's file
    run_stacks         the run stacks (profiles/data/run_stacks) that this describes
    zero_stages        and at which ZeRO stages; another file may describe the others
    weight_bytes       per parameter, held by every data-parallel rank below ZeRO stage 3
    gradient_bytes     per parameter as summed, held by every one below stage 2; `fp16_` and `fp8_`
                       are those of runs in fp16 and in fp8 or less
    frozen_fp8_weight_bytes   per parameter where fp8 runs train adapters alone
    offloaded_weight_bytes, offloaded_gradient_bytes   per parameter, what stays on the device of
                       weights and gradients where the optimizer is in host memory
    state_bytes        per parameter: fp32 master weight and Adam's moments, sharded from stage 1
    vocabulary_multiple   the vocabulary is padded to a multiple of this times tp; 1 for none
    stage_split        `even`, or `cost` (nanotron: whole blocks by matmul cost, the head counts)
    peak_rank, shows   what the framework's own report prints: of the fullest rank (`any`) or of the
                       `first`; what is `allocated`, `reserved`, or what the `device` shows
    layers             tensors that a layer keeps from its forward to its backward
    always             tensors of a rank that are there for the whole run
    moments            what may be the peak
    lingering          blocks that a host running ahead leaves waiting
    reserved_over_allocated   for what comes and goes within a step: blocks that the allocator takes
                       where there is room, over tensors
    needed_over_allocated     the same where there is not: what a layout needs to run at all
    program            what its report prints comes of this program (simulator/training_run/
                       reserved_peak.py), where that covers the run; "" for the count of tensors
    device_extra_gib   what nvidia-smi shows beyond torch's blocks, above the device's own figure
    """

    name: str
    run_stacks: tuple[str, ...]
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
    vocabulary_multiple: int
    stage_split: str
    peak_rank: str
    shows: str
    reserved_over_allocated: Sourced
    needed_over_allocated: Sourced
    device_extra_gib: Sourced
    layers: tuple[KeptTensor, ...]
    always: tuple[KeptTensor, ...]
    moments: tuple[Moment, ...]
    lingering: tuple[LingeringTensor, ...] = ()
    program: str = ""
    frameworks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check("program", self.program, PROGRAMS, self.name)
        _check("stage split", self.stage_split, STAGE_SPLITS, self.name)
        _check("peak rank", self.peak_rank, PEAK_RANKS, self.name)
        _check("kind of peak", self.shows, SHOWN, self.name)


def memory_stack_names() -> tuple[str, ...]:
    """All memory stacks that there are files of."""
    return tuple(sorted(path.stem for path in MEMORY_STACK_FOLDER.glob("*.toml")))


@functools.cache
def load_memory_stack(name: str) -> MemoryStack:
    """The stack of a file in profiles/data/run_memory; raises UnknownNameError."""
    if name not in memory_stack_names():
        raise UnknownNameError("memory stack", name, memory_stack_names())
    return read_document(
        MEMORY_STACK_FOLDER / f"{name}.toml", MemoryStack, schema=MEMORY_STACK_SCHEMA
    )


def memory_stack_of(run: TrainingRun) -> MemoryStack:
    """The file that describes the run's stack at its ZeRO stage; raises UnknownNameError."""
    if run.memory_stack:
        return load_memory_stack(run.memory_stack)
    return load_memory_stack(_stack_name(run.stack, run.zero_stage))


@functools.cache
def memory_stack_of_framework(framework: str) -> str:
    """The file that is a framework's own, "" where its run stack says which."""
    name = framework.strip().lower()
    stacks = [load_memory_stack(each) for each in memory_stack_names()]
    found = (
        stack.name for stack in stacks if stack.frameworks and name.startswith(stack.frameworks)
    )
    return next(found, "")


@functools.cache
def _stack_name(run_stack: str, zero_stage: int) -> str:
    stacks = [load_memory_stack(name) for name in memory_stack_names()]
    same = [stack for stack in stacks if run_stack in stack.run_stacks]
    for stack in same:
        if zero_stage in stack.zero_stages:
            return stack.name
    if not same:
        known = sorted({name for stack in stacks for name in stack.run_stacks})
        raise UnknownNameError("run stack with a memory file", run_stack, known)
    covered = ", ".join(f"{stack.name}.toml: {stack.zero_stages}" for stack in same)
    raise InputError(
        f"no file in {MEMORY_STACK_FOLDER.name} describes {run_stack!r} at ZeRO stage "
        f"{zero_stage} ({covered})"
    )


def _check(what: str, value: str, names: tuple[str, ...], where: str) -> None:
    if value not in names:
        raise UnknownNameError(what, value, names, where=where)
