"""A GPT of 8 layers on one device, small enough for memory by hand."""

from __future__ import annotations

from profiles.model.figures.transformer import Transformer
from simulator.memory.run_tensors import RunTensors
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.run.training_run import TrainingRun
from tests.simulator.described_runs import GPT_RUN, changed

# h = 1024, a = 16, V = 50,000; a layer has 12 h^2 + 13 h parameters.
SMALL_GPT = Transformer(
    num_layers=8,
    hidden_size=1024,
    ffn_size=4096,
    num_heads=16,
    num_kv_heads=16,
    head_size=64,
    vocab_size=50_000,
    gated=False,
    tied_embeddings=True,
    learned_positions=512,
    biases=True,
)
RUN = changed(
    GPT_RUN,
    id="r",
    model=SMALL_GPT,
    tp=1,
    pp=1,
    micro_batch=2,
    global_batch=16,
    seq_len=512,
    schedule="none",
)


def layer_bytes(run: TrainingRun) -> float:
    return RunTensors(run, load_framework(run.stack)).layer(run.recompute).dense
