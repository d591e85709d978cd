"""A row of a table of runs as a paper of 2021 would fill it, and what is said of it."""

from __future__ import annotations

import pytest

from shardwright.runs.complete import UnsupportedRunError, complete_run
from shardwright.runs.run import PublishedRun

GPT_ROW = PublishedRun(
    row=1,
    id="r",
    model="GPT h2048 L24",
    family="dense",
    num_layers=24,
    hidden_size=2048,
    ffn_size=8192,
    num_heads=16,
    num_kv_heads=16,
    head_dim=128,
    seq_len=1024,
    gated_mlp=False,
    tied_embeddings=True,
    device="a100-sxm-80gb",
    num_devices=16,
    devices_per_node=8,
    dp=2,
    tp=4,
    pp=2,
    vpp=1,
    micro_batch=4,
    global_batch=16,
    recompute="full",
    schedule="1f1b",
    framework="Megatron-LM (per paper)",
)


def said(run: PublishedRun) -> str:
    return "; ".join(complete_run(run).defaults)


def reason(run: PublishedRun) -> str:
    with pytest.raises(UnsupportedRunError) as caught:
        complete_run(run)
    assert "run 'r' cannot be predicted: " in str(caught.value)
    return caught.value.reason
