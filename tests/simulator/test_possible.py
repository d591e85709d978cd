"""A run that ran is not completed with answers under which it could not have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.hardware.catalogue.catalog import get_device
from shardwright.runs.complete import UnsupportedRunError, complete_run
from shardwright.runs.run import PublishedRun
from shardwright.runs.usual_answers import complete_as_usual
from simulator.memory.footprint import footprint

# MT-NLG 530B as its paper prints it (Smith et al., arXiv 2201.11990, sections 2 and 3): nothing is
# said of recomputation, and no framework in the row.
MT_NLG = PublishedRun(
    row=1,
    id="mt-nlg",
    source="arXiv 2201.11990",
    model="MT-NLG 530B",
    num_layers=105,
    hidden_size=20480,
    num_heads=128,
    vocab_size=50257,
    seq_len=2048,
    device="a100-sxm-80gb",
    num_devices=2240,
    dp=8,
    tp=8,
    pp=35,
    micro_batch=1,
    global_batch=1920,
)


def fits(run: PublishedRun) -> bool:
    done = complete_run(run)
    return footprint(done).needed_bytes <= get_device(done.device).usable_bytes


def test_recomputation_is_taken_where_a_run_needs_it() -> None:
    usual = complete_as_usual(MT_NLG)
    assert usual.recompute == "none"
    assert footprint(usual).allocated_bytes > 1.1 * get_device(usual.device).usable_bytes
    done = complete_run(MT_NLG)
    assert done.recompute in ("selective", "full")
    assert done.stack == "megatron-2021"
    assert fits(MT_NLG)
    assert done.defaults[0].startswith(f"recompute {done.recompute} (else its tensors need")


def test_what_a_row_says_is_not_changed() -> None:
    run = replace(MT_NLG, recompute="none")
    assert complete_run(run).recompute == "none"
    assert not fits(run)


def test_a_layout_that_failed_keeps_the_usual_answers() -> None:
    assert complete_run(replace(MT_NLG, ran=False)) == complete_as_usual(MT_NLG)


def test_attention_is_fused_where_its_scores_do_not_fit() -> None:
    run = replace(
        MT_NLG, model="GPT", source="", num_layers=32, hidden_size=4096, num_heads=32,
        num_devices=8, dp=8, tp=1, pp=1, micro_batch=2, global_batch=64, recompute="none",
        zero_stage=1,
    )  # fmt: skip
    assert complete_as_usual(run).stack == "megatron-deepspeed"
    assert complete_run(run).stack == "unknown-2023"
    assert complete_run(replace(run, source="arXiv 2201.11990")).stack == "megatron-deepspeed"


def test_ranks_without_a_sequence_make_another_layout() -> None:
    run = PublishedRun(
        row=1, id="r", model="Llama 2 70B", family="lora", device="h100-sxm-80gb", num_devices=16,
        global_batch=8, seq_len=8192, framework="Megatron-Core 0.12",
    )  # fmt: skip
    done = complete_run(run)
    assert done.degrees.dp <= 8
    assert fits(run)
    assert "dp=16 needs 16 sequences per step, the run has 8" in done.defaults[0]
    with pytest.raises(
        UnsupportedRunError, match="dp=16 needs 16 sequences per step, the run has 8"
    ):
        complete_run(replace(run, ran=False))


def test_long_sequences_that_no_rank_can_have_whole_are_split() -> None:
    run = PublishedRun(
        row=1, id="r", model="Llama 3 8B", device="h100-sxm-80gb", num_devices=64, tp=8, pp=1,
        global_batch=1, seq_len=1048576, recompute="full", framework="Megatron-Core 0.12",
    )  # fmt: skip
    done = complete_run(run)
    assert (done.degrees.dp, done.degrees.tp, done.degrees.pp, done.degrees.cp) == (1, 8, 1, 8)
    assert done.defaults[0].startswith("cp 8 (dp=8 needs 8 sequences per step, the run has 1")


def test_no_claim_rests_on_memory_that_was_never_compared() -> None:
    run = replace(
        MT_NLG, model="GPT", device="tpu-v5e", num_devices=256, dp=256, tp=1, pp=1,
        micro_batch=None,
        num_layers=96, hidden_size=12288, num_heads=96, global_batch=1024, framework="MaxText",
    )  # fmt: skip
    usual = complete_as_usual(run)
    assert footprint(usual).allocated_bytes > get_device("tpu-v5e").usable_bytes
    assert complete_run(run) == usual
