"""`TrainingRun`: a described run with every question answered, and which answers were assumed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from profiles.errors import InputError
from profiles.model.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """What a prediction is made from.

    device        name in the catalogue; node_devices  devices that the inner link joins
    expert_parallel  ranks over which experts are spread (a part of dp x tp)
    recompute     `none`, `selective` (the attention core), `mlp`, `full`, or `minimal` (all that is
                  cheap; MaxText's word)
    recompute_layers  of `full`: the first so many layers of each virtual stage are run again (what
                  Megatron-Core calls the block method); 0 for all
    vpp           model chunks per pipeline rank
    stack         name of a run stack (simulator/training_run/run_stack.py)
    lora          only low-rank adapters are trained
    optimizer_offload   the optimizer's states, fp32 master weights with them, are in host memory
    activation_offload  share (0 to 1) of what layers keep for their backward that is in host memory
    defaults      what was assumed because the source is silent, in words
    """

    id: str
    model: Transformer
    device: str
    num_devices: int
    node_devices: int
    outer_link: str
    dp: int
    tp: int
    pp: int
    vpp: int
    cp: int
    expert_parallel: int
    sequence_parallel: bool
    zero_stage: int
    recompute: str
    micro_batch: int
    global_batch: int
    seq_len: int
    precision: str
    schedule: str
    stack: str
    lora: bool = False
    recompute_layers: int = 0
    optimizer_offload: bool = False
    activation_offload: float = 0.0
    defaults: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.activation_offload <= 1.0:
            raise InputError(
                f"{self.id}: activation_offload={self.activation_offload:g} is a share of the "
                "saved activations; use 0 (none leave the device) to 1 (all do)"
            )

    @property
    def num_microbatches(self) -> int:
        """Passes per optimizer step and data-parallel rank, at least 1."""
        return max(1, math.ceil(self.global_batch / (self.dp * self.micro_batch)))

    @property
    def tokens(self) -> float:
        """Tokens of one micro-batch on one rank of the context-parallel group."""
        return self.micro_batch * self.seq_len / self.cp

    @property
    def num_nodes(self) -> int:
        return max(1, math.ceil(self.num_devices / self.node_devices))
