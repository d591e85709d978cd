"""`TrainingRun`: a complete description of a training run, and its assumed values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from profiles.document import flattened
from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.node_network import NodeNetwork, usual_network
from profiles.model.figures.transformer import Transformer
from simulator.training_run.run.low_bits import FROZEN_TYPES, MUON, USUAL_OPTIMIZER, moments_bytes
from simulator.values.degrees import AXIS_ORDERS, Degrees

Lengths = tuple[tuple[int, float], ...]
"""Tokens of a document, and the number of such documents or their share."""


def mean_document_length(lengths: Lengths, seq_len: int) -> float:
    """Mean length of the document to which a token belongs, 0 without lengths. Raises InputError
    for a document that is longer than a sequence.

    A document of l tokens has l^2 attention scores. So attention over documents costs as much as
    over sequences of the mean length per token: sum(l^2) / sum(l), weighted by the number of
    documents. Exact for kernels whose time is proportional to the scores; the kernel's rate is that
    of sequences of the mean length. All sequences are priced with the same mix of lengths: ranks
    that wait for one with longer documents are not modeled.

    >>> mean_document_length(((1024, 1.0), (3072, 1.0)), 4096)
    2560.0
    """
    longest = max((length for length, _ in lengths), default=0)
    if longest > seq_len:
        raise InputError(
            f"--lengths: a document of {longest} tokens is longer than a sequence of {seq_len} "
            f"(--seq); give the parts into which it is cut, or a longer --seq"
        )
    if not lengths:
        return 0.0
    return sum(n * length**2 for length, n in lengths) / sum(n * length for length, n in lengths)


def attended_length(seq_len: int, document_length: float) -> float:
    """Number of tokens in one attention: the sequence, or the mean document if documents are
    given."""
    return min(document_length, seq_len) if document_length else seq_len


REDUCTIONS = ("fp32", "bf16")
_NAMED = re.compile(r"^(powersgd|topk)-(\d+(?:\.\d+)?)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """`powersgd` with a rank, or `topk` with the share (0 to 1) of the entries to send."""

    kind: str
    rank: int = 0
    share: float = 0.0


def compression_of(text: str) -> Compression | None:
    """Parses `powersgd-4` or `topk-0.01`; None for ""; raises InputError."""
    if not text:
        return None
    match = _NAMED.match(text)
    if match is not None:
        kind, number = match[1], float(match[2])
        if kind == "powersgd" and number == int(number) >= 1:
            return Compression(kind=kind, rank=int(number))
        if kind == "topk" and 0 < number <= 1:
            return Compression(kind=kind, share=number)
    raise InputError(
        f"compression {text!r} is unknown: use powersgd-R with a rank R of 1 or more (powersgd-4), "
        "or topk-S with a share S of entries to send, above 0 and at most 1 (topk-0.01)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLevel:
    """Connection between parts of a machine (racks over a spine, sites over a line).

    part_devices             devices of each part; consecutive ranks fill a part
    bytes_per_s_per_device   bandwidth out of a part, one direction, divided by its devices;
                             includes efficiency, shared network cards and oversubscription
    latency_s                of one message between parts
    """

    name: str
    part_devices: int
    bytes_per_s_per_device: float
    latency_s: float

    def __post_init__(self) -> None:
        if self.part_devices < 1 or not self.bytes_per_s_per_device > 0 or self.latency_s < 0:
            raise InputError(
                f"level {self.name}: part_devices must be 1 or more, its rate above 0 and its "
                f"latency 0 or more; got {self.part_devices}, {self.bytes_per_s_per_device:g} "
                f"bytes/s and {self.latency_s:g} s"
            )


USUAL_LORA_RANK = 16
# Options that have their default in all runs of the fit of the coefficients.
_UNFITTED = (
    *("inner_bytes_per_s", "far_levels", "torus", "gradient_reduction", "compression"),
    *("local_steps", "local_workers", "wide_layers", "optimizer_offload", "activation_offload"),
    *("frozen_type", "optimizer", "expert_imbalance", "document_length", "pipeline_layout"),
)
_KEYS = flattened(
    *("tp", "pp", "dp", "cp", "vpp"),
    optional=("dp_replicate", "axis_order", "num_devices"),
    expert_parallel="ep",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """The input of a prediction by layout.

    device        name in the catalog; node_devices  devices connected by the inner link
    network       network between nodes; None for the device's usual one
    degrees       of tensor, pipeline, data, context and expert parallelism
    recompute     a kind of simulator/values/recompute_kind.py
    recompute_layers  for `full`: number of first layers of each virtual stage to recompute (the
                  block method of Megatron-Core); 0 for all
    stack         the framework: a name, or the path of its file (framework/framework.py)
    stack_assumed  how the stack was chosen: "" given by name, `fork` (name of a fork or wrapper),
                  `dated` (version chosen by date or device), `inferred` (no known framework named)
    lora          only low-rank adapters are trained
    optimizer_offload   optimizer states, including fp32 master weights, are in host memory
    activation_offload  share (0 to 1) of the layers' kept activations in host memory
    lora_rank     of the adapters, if only they are trained
    frozen_type   `nf4`, `int8`: low-bit frozen weights of linear layers (low_bits.py); "" for the
                  type of the computation
    optimizer     one of low_bits.OPTIMIZERS, by the type of its states
    expert_imbalance   tokens of the fullest expert-parallel rank, divided by the mean of the ranks
    document_length    mean over tokens of their document's length, if tokens attend within their
                  document only; 0 for the whole sequence
    inner_bytes_per_s  bandwidth of the link inside a node, one direction, including efficiency; 0
                  for the device's usual one
    far_levels    network levels beyond the nodes' network, innermost first; () if that network
                  connects all nodes
    torus         chips per axis if a node is a torus, in the order of ranks; otherwise ()
    gradient_reduction  type of the gradient reduction between replicas: `fp32`, `bf16`, or "" for
                  the framework's default
    compression   of gradients between replicas: `powersgd-R`, `topk-S` or "" for none
    local_steps   steps that each of `local_workers` groups of replicas takes before all groups
                  exchange their updates
    pipeline_layout  Megatron's text for the virtual stages (pipeline_layout.py); "" for the
                  framework's own split
    wide_layers   number of first, and of last, layers with matmuls in bf16 at a lower precision
    memory_kind   kind of its peak: `allocated`, `reserved`, `device`, or "" for the kind in the
                  framework's own report
    defaults      assumptions for values missing in the source, as text
    """

    id: str
    model: Transformer
    device: str
    node_devices: int
    degrees: Degrees = field(metadata=_KEYS)
    sequence_parallel: bool
    zero_stage: int
    recompute: str
    micro_batch: int
    global_batch: int
    seq_len: int
    precision: str
    schedule: str
    stack: str
    network: NodeNetwork | None = None
    lora: bool = False
    recompute_layers: int = 0
    optimizer_offload: bool = False
    activation_offload: float = 0.0
    lora_rank: int = USUAL_LORA_RANK
    frozen_type: str = ""
    optimizer: str = USUAL_OPTIMIZER
    expert_imbalance: float = 1.0
    document_length: float = 0.0
    pipeline_layout: str = ""
    inner_bytes_per_s: float = 0.0
    far_levels: tuple[NetworkLevel, ...] = ()
    torus: tuple[int, ...] = ()
    gradient_reduction: str = ""
    compression: str = ""
    local_steps: int = 1
    local_workers: int = 1
    wide_layers: int = 0
    memory_kind: str = ""
    stack_assumed: str = ""
    defaults: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.activation_offload <= 1.0:
            raise InputError(
                f"{self.id}: activation_offload={self.activation_offload:g} must be a share of the "
                "saved activations, from 0 (none in host memory) to 1 (all)"
            )
        if self.expert_imbalance < 1.0:
            raise InputError(
                f"{self.id}: expert_imbalance={self.expert_imbalance:g} is the fullest rank's "
                "tokens divided by the mean; use 1 (balanced) or more"
            )
        if self.document_length < 0 or 0 < self.document_length < 1:
            raise InputError(
                f"{self.id}: document_length={self.document_length:g} must be 1 token or more, or "
                "0 (attention over the whole sequence)"
            )
        if self.gradient_reduction not in ("", *REDUCTIONS):
            raise UnknownNameError("gradient reduction", self.gradient_reduction, REDUCTIONS)
        compression_of(self.compression)
        moments_bytes(self.optimizer)
        if self.optimizer_offload and self.optimizer != USUAL_OPTIMIZER:
            raise InputError(
                f"{self.id}: optimizer_offload moves states of {USUAL_OPTIMIZER} only, not of "
                f"{self.optimizer}; use {USUAL_OPTIMIZER}, or leave out optimizer_offload"
            )
        if self.optimizer == MUON and self.lora:
            raise InputError(
                f"{self.id}: muon is priced for whole weights, but lora trains the adapters only; "
                f"use {USUAL_OPTIMIZER}, or train all weights (without lora)"
            )
        if self.frozen_type not in ("", *FROZEN_TYPES):
            raise UnknownNameError("type of frozen weights", self.frozen_type, FROZEN_TYPES)
        if self.frozen_type and not self.lora:
            raise InputError(
                f"{self.id}: weights in {self.frozen_type} are frozen, but this run trains all "
                "weights; train adapters (lora), or remove frozen_type"
            )
        dp = self.degrees.dp
        if self.local_steps < 1 or self.local_workers < 1 or dp % self.local_workers:
            raise InputError(
                f"{self.id}: local_steps={self.local_steps} of local_workers={self.local_workers}: "
                f"both must be 1 or more, and local_workers must divide dp={dp}"
            )
        others = self.compression or self.local_workers > 1
        if self.degrees.dp_replicate > 1 and (others or not self.zero_stage):
            raise InputError(
                f"{self.id}: dp_replicate={self.degrees.dp_replicate} needs a zero_stage of 1, 2 "
                "or 3 and is not priced with compression or local_workers; use dp_replicate 1"
            )
        if self.wide_layers < 0:
            raise InputError(f"{self.id}: wide_layers={self.wide_layers} must be 0 or more")

    @property
    def node_network(self) -> NodeNetwork:
        """The network between nodes."""
        return self.network or usual_network(self.device, self.node_devices)

    @property
    def num_microbatches(self) -> int:
        """Micro-batches per optimizer step and data-parallel rank, at least 1."""
        return max(1, math.ceil(self.global_batch / (self.degrees.dp * self.micro_batch)))

    @property
    def sharing_ranks(self) -> int:
        """Number of ranks that can shard the states: those with the same weights, in one worker of
        local steps or one group of hybrid sharding."""
        return self.degrees.shard_replicas * self.degrees.cp // self.local_workers

    def as_published(self) -> TrainingRun:
        """A copy with the defaults of all options that no fitted run has changed."""
        usual: dict[str, Any] = {
            each.name: each.default for each in fields(self) if each.name in _UNFITTED
        }
        degrees = replace(self.degrees, axis_order=AXIS_ORDERS[0], dp_replicate=1)
        return replace(self, degrees=degrees, **usual)

    @property
    def tokens(self) -> float:
        """Tokens of one micro-batch on one rank of the context-parallel group."""
        return self.micro_batch * self.seq_len / self.degrees.cp

    @property
    def fullest_expert_load(self) -> float:
        """Tokens of the fullest rank's experts over the mean; 1 if every rank has all experts."""
        return self.expert_imbalance if self.degrees.ep > 1 else 1.0

    @property
    def attended_length(self) -> float:
        """Length of the sequence, or the mean document length if attention stays within
        documents."""
        return attended_length(self.seq_len, self.document_length)

    @property
    def num_nodes(self) -> int:
        """Number of nodes (groups of devices connected by the inner link), at least 1."""
        return max(1, math.ceil(self.degrees.num_devices / self.node_devices))


_DEGREES = frozenset(each.name for each in fields(Degrees))


def setting_of(run: TrainingRun, name: str) -> Any:
    """The value of a field of the run or of its degrees, by name."""
    return getattr(run.degrees if name in _DEGREES else run, name)


def with_settings(run: TrainingRun, settings: Mapping[str, Any]) -> TrainingRun:
    """A copy with other values of fields of the run or of its degrees, by name."""
    degrees = {name: value for name, value in settings.items() if name in _DEGREES}
    own = {name: value for name, value in settings.items() if name not in _DEGREES}
    return replace(run, degrees=replace(run.degrees, **degrees), **own)


class UnsupportedRunError(InputError):
    """A run that cannot be predicted; `reason` is the message without the run's id."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"run {run_id!r} cannot be predicted: {reason}")
        self.reason = reason
