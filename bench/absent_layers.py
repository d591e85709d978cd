"""Host time that a layer of another stage adds to a stage's forward, in CPU seconds."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import torch

from executor.replay.data_flow import flow_of
from executor.stage_inputs import model_arguments
from executor.stages import StageModule
from executor.starting_weights import StartingWeights, build_meta
from profiles.model.building.build import BuiltModel
from profiles.model.loaders import resolve_model

LAYERS, OWN, ROUNDS = 40, 5, 60
# So many microseconds of the host are little beside a layer's own launches.
MOST_US = 20.0
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "vocab_size": 96,
}


def forward_us(first: int) -> float:
    """Of a stage of OWN layers from `first` on, the fewest microseconds of a forward."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "layers.json"
        config.write_text(json.dumps(TINY))
        spec = resolve_model(str(config))
        entries = ("", *(f"model.layers.{i}" for i in range(LAYERS)), "model.norm")

        def build() -> BuiltModel:
            return build_meta(spec, micro_batch=1, sequence_length=8, dtype="float32", seed=0)

        built = build()
        flow = flow_of(build(), entries)
    starting = StartingWeights(built.module, torch.device("cpu"), 0)
    stage = StageModule(built, flow, first + 1, first + 1 + OWN)
    starting.fill(stage.model)
    stage.watch_entries()
    given = model_arguments(built.args, built.targets)
    received = [
        torch.zeros(shape, dtype=dtype, requires_grad=True)
        for shape, dtype in flow.shapes(first + 1)
    ]
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time_ns()
        stage(*received, **given)
        best = min(best, (time.thread_time_ns() - began) * 1e-3)
    return best


def run() -> int:
    """Prints the table; 1 where an absent layer takes more than MOST_US."""
    torch.set_num_threads(1)
    # A replay ends behind the last layer of its own: of two stages the later one runs past more.
    early, late = forward_us(0), forward_us(LAYERS - OWN)
    each = (late - early) / (LAYERS - OWN)
    print(f"stage of {OWN} of {LAYERS} layers: first {early:.0f} us, last {late:.0f} us")
    print(f"an absent layer: {each:.1f} us of CPU time, {MOST_US:.0f} are allowed")
    return int(each > MOST_US)
