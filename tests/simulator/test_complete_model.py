"""Completing a run's model: from its name, from known models, from its widths."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.errors import InputError
from shardwright.runs.complete import complete_run
from shardwright.runs.complete_model import parameters_in_name
from shardwright.runs.run import PublishedRun
from tests.simulator.gpt_row import GPT_ROW


def test_layers_come_from_the_name() -> None:
    """GPT 200B, hidden 14400: a layer has 12 h^2 + 13 h = 2.4885e9 weights, the embeddings
    (250000 + 2048) h = 3.629e9; (200 - 3.629) / 2.4885 = 78.9, the nearest multiple of 10 is 80."""
    run = replace(
        GPT_ROW,
        model="GPT 200B",
        num_layers=None,
        hidden_size=14400,
        ffn_size=57600,
        num_heads=None,
        num_kv_heads=None,
        head_dim=None,
        vocab_size=250000,
        seq_len=2048,
        num_devices=320,
        dp=4,
        tp=8,
        pp=10,
        micro_batch=1,
        global_batch=2048,
    )
    done = complete_run(run)
    assert done.model.num_layers == 80
    # 96 heads are published for this width.
    assert (done.model.num_heads, done.model.head_size) == (96, 150)
    assert "80 layers (200 billion parameters in the name need 78.9; a multiple of pp=10)" in (
        done.defaults
    )
    assert "96 heads of 150 (published for this width)" in done.defaults
    # Of 13824, 108 heads of 128 do not divide by tp=8; 96 of 144 is the nearest that does.
    other = complete_run(replace(run, hidden_size=13824, ffn_size=55296)).model
    assert (other.num_heads, other.head_size) == (96, 144)


@pytest.mark.parametrize(
    ("name", "parts"), [("Gemma 2 9B", "four norms"), ("mixtral-8x7b", "experts")]
)
def test_rows_of_our_executor_need_layers_that_it_counts(name: str, parts: str) -> None:
    run = PublishedRun(
        row=2,
        id="1",
        source="mine",
        model=name,
        device="h100-sxm-80gb",
        num_devices=16,
        dp=16,
        zero_stage=3,
        micro_batch=1,
        global_batch=64,
        seq_len=4096,
        framework="torchtitan",
    )
    assert complete_run(run).model.num_layers in (42, 32)
    with pytest.raises(InputError, match=f"these layers have {parts}.*block by block"):
        complete_run(replace(run, framework="shardwright"))
    assert complete_run(replace(run, model="Qwen3 8B", framework="shardwright")).model.num_layers


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("GPT 181B", 181e9),
        ("GPT-1.5B", 1.5e9),
        ("mpt-125m", 125e6),
        ("megatron-1T", 1e12),
        ("GPT h3072 L30 (3.6B)", 3.6e9),
        ("GPT h2048 L24", None),
        ("v5p-128", None),
    ],
)
def test_parameters_in_a_name(name: str, parameters: float | None) -> None:
    assert parameters_in_name(name) == parameters


def test_a_known_model_fills_what_the_row_leaves_empty() -> None:
    bare = PublishedRun(
        row=1,
        id="r",
        model="deepseek-v3",
        family="dense",
        device="tpu-v7x",
        num_devices=128,
        seq_len=4096,
        global_batch=2048,
        precision="fp8",
    )
    done = complete_run(bare)
    assert done.model.num_experts == 256
    assert done.model.latent is not None
    assert done.model.latent.key_value_rank == 512
    # 128 devices of one slice, sharded by the compiler: 2048 / 128 sequences each.
    assert done.degrees.text == "tp1 pp1 dp128"
    assert (done.micro_batch, done.zero_stage, done.stack) == (16, 3, "maxtext")
    assert "arXiv 2412.19437" in "; ".join(done.defaults)


def test_rows_win_over_known_models() -> None:
    cut = replace(
        GPT_ROW,
        model="llama3-70b truncated to 12 layers",
        num_layers=12,
        hidden_size=8192,
        ffn_size=28672,
        num_heads=64,
        num_kv_heads=8,
        vocab_size=128256,
        gated_mlp=True,
        tied_embeddings=False,
    )
    model = complete_run(cut).model
    assert (model.num_layers, model.num_kv_heads, model.gated, model.biases) == (12, 8, True, False)


def test_gated_feed_forward_is_told_by_its_width() -> None:
    wide = replace(GPT_ROW, gated_mlp=None, vocab_size=32000)
    assert not complete_run(wide).model.gated
    llama = complete_run(replace(wide, ffn_size=5504))
    assert llama.model.gated
    assert not llama.model.biases
    assert "gated feed-forward" in llama.defaults
