"""`TrainingRun`: a described run with every question answered, and which answers were assumed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from profiles.document import flattened
from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.node_network import NodeNetwork, usual_network
from profiles.model.figures.transformer import Transformer
from simulator.schedules.in_flight import most_in_flight
from simulator.training_run.run.compression import REDUCTIONS, compression_of
from simulator.training_run.run.far_level import FarLevel
from simulator.training_run.run.low_bits import FROZEN_TYPES, USUAL_OPTIMIZER, moments_bytes
from simulator.values.degrees import AXIS_ORDERS, Degrees

_KEYS = flattened(
    *("tp", "pp", "dp", "cp", "vpp"), optional=("axis_order", "num_devices"), expert_parallel="ep"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """What a prediction is made from.

    device        name in the catalogue; node_devices  devices that the inner link joins
    network       what leaves a node; None for the device's usual network
    degrees       of tensor, pipeline, data, context and expert parallelism
    recompute     a kind of simulator/values/recompute_kind.py
    recompute_layers  of `full`: the first so many layers of each virtual stage are run again (what
                  Megatron-Core calls the block method); 0 for all
    stack         the framework: a name, or the path of its file (simulator/training_run/
                  framework.py)
    stack_assumed  how the stack was chosen: "" as named, `fork` (the name is that of a fork or
                  wrapper), `dated` (its release was chosen by date or device), `inferred` (no known
                  framework is named)
    lora          only low-rank adapters are trained
    optimizer_offload   the optimizer's states, fp32 master weights with them, are in host memory
    activation_offload  share (0 to 1) of what layers keep for their backward that is in host memory
    lora_rank     of the adapters, where only they are trained
    frozen_type   `nf4`, `int8`: frozen weights of linear layers in few bits (low_bits.py); "" as
                  they are computed with
    optimizer     of low_bits.OPTIMIZERS: what its states are kept in
    expert_imbalance   tokens that the fullest rank's experts get, over the mean of the ranks
    inner_bytes_per_s  of the link inside a node, one direction, efficiency in it, where it is not
                  the device's usual one; 0 for that
    far_levels    levels beyond the nodes' network, inner first; none: that network joins all nodes
    torus         chips per axis of a node that is a torus, in the order of ranks; () for none
    gradient_reduction  what gradients are summed in between replicas: `fp32`, `bf16`, or "" for
                  what the stack does
    compression   of gradients between replicas: `powersgd-R`, `topk-S` or "" for none
                  (simulator/training_run/run/compression.py)
    local_steps   steps that each of `local_workers` parts of the replicas takes by itself before
                  all exchange what they learned
    wide_layers   first and last so many layers whose matmuls stay in bf16 at a lower precision
    memory_kind   what its peak is a peak of: `allocated`, `reserved`, `device`, or "" for what the
                  framework's own report prints
    defaults      what was assumed because the source is silent, in words
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
    lora_rank: int = 16
    frozen_type: str = ""
    optimizer: str = USUAL_OPTIMIZER
    expert_imbalance: float = 1.0
    inner_bytes_per_s: float = 0.0
    far_levels: tuple[FarLevel, ...] = ()
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
                f"{self.id}: activation_offload={self.activation_offload:g} is a share of the "
                "saved activations; use 0 (none leave the device) to 1 (all do)"
            )
        if self.expert_imbalance < 1.0:
            raise InputError(
                f"{self.id}: expert_imbalance={self.expert_imbalance:g} is the fullest rank's "
                "tokens over the mean; use 1 (all alike) or more"
            )
        if self.gradient_reduction not in ("", *REDUCTIONS):
            raise UnknownNameError("gradient reduction", self.gradient_reduction, REDUCTIONS)
        compression_of(self.compression)
        moments_bytes(self.optimizer)
        if self.optimizer_offload and self.optimizer != USUAL_OPTIMIZER:
            raise InputError(
                f"{self.id}: optimizer states in host memory are fp32, and those of "
                f"{self.optimizer} stay on the device; use {USUAL_OPTIMIZER}, or no "
                "optimizer_offload"
            )
        if self.frozen_type not in ("", *FROZEN_TYPES):
            raise UnknownNameError("type of frozen weights", self.frozen_type, FROZEN_TYPES)
        if self.frozen_type and not self.lora:
            raise InputError(
                f"{self.id}: weights in {self.frozen_type} are frozen, and here all are trained; "
                "train adapters (lora), or keep the weights as they are"
            )
        dp = self.degrees.dp
        if self.local_steps < 1 or self.local_workers < 1 or dp % self.local_workers:
            raise InputError(
                f"{self.id}: local_steps={self.local_steps} of local_workers={self.local_workers}: "
                f"both must be 1 or more and the workers divide dp={dp}"
            )
        if self.wide_layers < 0:
            raise InputError(f"{self.id}: wide_layers={self.wide_layers} must be 0 or more")

    @property
    def node_network(self) -> NodeNetwork:
        """What leaves a node."""
        return self.network or usual_network(self.device, self.node_devices)

    @property
    def num_microbatches(self) -> int:
        """Passes per optimizer step and data-parallel rank, at least 1."""
        return max(1, math.ceil(self.global_batch / (self.degrees.dp * self.micro_batch)))

    @property
    def in_flight(self) -> tuple[float, ...]:
        """Per pipeline rank the micro-batches that it keeps at most, on one virtual stage each."""
        degrees = self.degrees
        return most_in_flight(self.schedule, degrees.pp, self.num_microbatches, degrees.vpp)

    @property
    def sharing_ranks(self) -> int:
        """Ranks that hold the same weights and may share the states: those of one worker."""
        return self.degrees.dp * self.degrees.cp // self.local_workers

    def as_published(self) -> TrainingRun:
        """The same run without what none of the runs does that coefficients are fitted on."""
        return replace(
            self,
            inner_bytes_per_s=0.0,
            far_levels=(),
            degrees=replace(self.degrees, axis_order=AXIS_ORDERS[0]),
            torus=(),
            gradient_reduction="",
            compression="",
            local_steps=1,
            local_workers=1,
            wide_layers=0,
            optimizer_offload=False,
            activation_offload=0.0,
            frozen_type="",
            optimizer=USUAL_OPTIMIZER,
            expert_imbalance=1.0,
        )

    @property
    def tokens(self) -> float:
        """Tokens of one micro-batch on one rank of the context-parallel group."""
        return self.micro_batch * self.seq_len / self.degrees.cp

    @property
    def num_nodes(self) -> int:
        """Groups of devices that the inner link joins, at least 1."""
        return max(1, math.ceil(self.degrees.num_devices / self.node_devices))


_DEGREES = frozenset(each.name for each in fields(Degrees))


def setting_of(run: TrainingRun, name: str) -> Any:
    """The value of a field of the run or of its degrees."""
    return getattr(run.degrees if name in _DEGREES else run, name)


def with_settings(run: TrainingRun, settings: Mapping[str, Any]) -> TrainingRun:
    """The run with other values of fields, its own and those of its degrees, by name."""
    degrees = {name: value for name, value in settings.items() if name in _DEGREES}
    own = {name: value for name, value in settings.items() if name not in _DEGREES}
    return replace(run, degrees=replace(run.degrees, **degrees), **own)
