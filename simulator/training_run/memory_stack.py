"""`MemoryStack`: what a training framework keeps on a device, tensor by tensor, as data."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document
from profiles.errors import InputError, UnknownNameError

MEMORY_STACK_SCHEMA = "shardwright/memory-stack@1"
MEMORY_STACK_FOLDER = Path(__file__).parents[2] / "profiles" / "data" / "run_memory"

PARTS = ("input", "norm", "attention", "core", "mlp", "routing", "experts", "shared", "")
SPLITS = ("tp", "sequence", "none")
CONDITIONS = (
    "gated",
    "plain",
    "latent",
    "no-latent",
    "several-sequences",
    "context-parallel",
    "tensor-parallel",
    "one-tensor-rank",
    "experts",
    "expert-parallel",
    "data-parallel",
    "several-microbatches",
    "unsharded-states",
    "sharded-states",
    "dense-layers-here",
    "expert-layers-here",
    "later-rank",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTensor:
    """A tensor that stays in memory.

    part    of a layer, which says what recomputation frees it: `input` is the layer's own input
    width   elements per token, or of a whole tensor (simulator/training_run/tensor_width.py)
    bytes   per element;  count  tensors of this kind
    split   over what it is divided: `tp`, `sequence` (tp where sequence parallelism is on), `none`
    only    conditions that must all hold, out of `CONDITIONS`
    """

    name: str
    width: str
    bytes: float = 2.0
    count: float = 1.0
    part: str = ""
    split: str = "tp"
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for value, names, what in (
            (self.part, PARTS, "part"),
            (self.split, SPLITS, "split"),
            *((condition, CONDITIONS, "condition") for condition in self.only),
        ):
            if value not in names:
                raise UnknownNameError(what, value, names)
        if not self.bytes * self.count >= 0.0:
            raise InputError(f"{self.name}: bytes and count must be 0 or more")


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
        if self.where not in ("layer", "head", "embedding", "step"):
            raise UnknownNameError(
                "place", self.where, ("layer", "head", "embedding", "step"), where=self.name
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStack:
    """What a stack keeps; each file says where every entry is read off.

    weight_bytes, gradient_bytes   per parameter, held by every data-parallel rank below the ZeRO
                       stage that shards them (3 and 2)
    fp16_gradient_bytes   the same in fp16 runs
    state_bytes        per parameter: fp32 master weight and Adam's moments, sharded from stage 1
    stage_split        `even`, `cost` (nanotron: whole layers by matmul cost, the head counts) or
                       `ends` (embedding and head count as a layer each)
    peak_rank          `any`: the highest rank; `first`: what the first rank shows
    shows              what the framework's own peak is: `allocated` or `reserved`
    layers             tensors that a layer keeps from its forward to its backward
    always             tensors of a rank that are there for the whole run
    fragmentation      reserved over allocated, as a factor on what comes and goes within a step
    """

    name: str
    source: str
    date: str
    weight_bytes: float
    gradient_bytes: float
    fp16_gradient_bytes: float
    state_bytes: float
    vocabulary_multiple: int
    stage_split: str
    peak_rank: str
    shows: str
    fragmentation: float
    fragmentation_source: str
    layers: tuple[KeptTensor, ...]
    always: tuple[KeptTensor, ...]
    moments: tuple[Moment, ...]


def memory_stack_names() -> tuple[str, ...]:
    """All stacks that there are memory files of."""
    return tuple(sorted(path.stem for path in MEMORY_STACK_FOLDER.glob("*.toml")))


@functools.cache
def load_memory_stack(name: str) -> MemoryStack:
    """The stack of a file in profiles/data/run_memory; raises UnknownNameError."""
    if name not in memory_stack_names():
        raise UnknownNameError("memory stack", name, memory_stack_names())
    return read_document(
        MEMORY_STACK_FOLDER / f"{name}.toml", MemoryStack, schema=MEMORY_STACK_SCHEMA
    )
