"""Host time of a decoder layer that tensor parallelism splits, over that of a whole one.

The layers are tiny and the process group is torch's fake one, so all time is the host's: Python,
dispatch and autograd. `tensor_dispatch` of profiles/data/frameworks/torch.toml is from here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from executor.mesh import Mesh
from executor.parallelize import split_layers
from executor.starting_weights import StartingWeights
from simulator.values.degrees import Degrees

TP, STEPS, ROUNDS = 2, 40, 9
# DTensor layers took 5.5 to 6.7 (torch 2.13, two-core Xeon, 2026-11-28).
MOST = 1.7
_COLUMNS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
)
RULES = (
    *((name, "column") for name in _COLUMNS),
    ("self_attn.o_proj", "row"),
    ("mlp.down_proj", "row"),
)


def run() -> int:
    """Prints the ratio; 1 where it is more than MOST."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    torch.set_num_threads(1)
    config = LlamaConfig(hidden_size=64, intermediate_size=96, num_attention_heads=8)
    config._attn_implementation = "sdpa"
    dist.init_process_group("fake", rank=0, world_size=TP)
    try:
        whole = LlamaDecoderLayer(config, 0)
        with torch.device("meta"):
            split = LlamaDecoderLayer(config, 0)
        starting = StartingWeights(split, torch.device("cpu"), 0)
        degrees = Degrees(tp=TP)
        mesh = init_device_mesh("cpu", (TP,), mesh_dim_names=("tp",))
        place = Mesh(
            degrees=degrees, at=degrees.coordinates(0), pp=None, dp=None, shards=None, tp=mesh
        )
        split_layers(split, RULES, place, starting)
        starting.fill(split)
        x = torch.randn(1, 4, 64, requires_grad=True)
        angles = LlamaRotaryEmbedding(config)(x, torch.arange(4)[None])

        def forward(layer: nn.Module) -> Callable[[], Tensor]:
            def call() -> Tensor:
                made = layer(x, position_embeddings=angles)
                out: Tensor = made[0] if isinstance(made, tuple) else made
                return out

            return call

        for layer in (whole, split):
            seconds(forward(layer))
        pairs = [(seconds(forward(whole)), seconds(forward(split))) for _ in range(ROUNDS)]
    finally:
        dist.destroy_process_group()
    one, two = (statistics.median(side) * 1e6 for side in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"decoder layer, forward and backward: {one:.0f} us of CPU time whole, {two:.0f} split")
    print(f"split over whole: {ratio:.2f}, {MOST} are allowed")
    return int(ratio > MOST)


def seconds(forward: Callable[[], Tensor]) -> float:
    """CPU seconds of a forward and its backward, the median of STEPS."""
    taken = []
    for _ in range(STEPS):
        began = time.thread_time()
        output = forward()
        output.sum().backward()
        taken.append(time.thread_time() - began)
    return statistics.median(taken)
