"""Completing published runs: each rule by hand, and all open rows."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.runs.complete import UnsupportedRunError, complete_run
from shardwright.runs.run import PublishedRun
from shardwright.runs.run_table import read_runs
from simulator.schedules.schedule import schedule_names
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.degrees import Degrees
from tests.simulator.gpt_row import GPT_ROW, reason, said

TRUTH = Path(__file__).parents[3] / "shared" / "truth"


def test_a_run_of_2021_gets_what_its_stack_did() -> None:
    done = complete_run(GPT_ROW)
    assert done.degrees == Degrees(tp=4, pp=2, dp=2)
    assert (done.stack, done.precision, done.zero_stage) == ("megatron-2021", "fp16", 0)
    assert not done.sequence_parallel
    assert done.num_microbatches == 2
    assert done.num_nodes == 2
    assert done.model.vocab_size == 50257
    assert done.model.biases
    assert done.model.learned_positions == 1024
    for words in ("fp16", "vocabulary 50257", "ZeRO stage 0", "sequence parallelism off", "cp 1"):
        assert words in "; ".join(done.defaults)


def test_what_the_row_says_is_no_default() -> None:
    told = replace(
        GPT_ROW, cp=1, vocab_size=51200, precision="bf16", zero_stage=1, sequence_parallel=True
    )
    done = complete_run(told)
    assert (done.precision, done.zero_stage, done.sequence_parallel) == ("bf16", 1, True)
    # Left are the biases and positions and the network between the two nodes.
    assert len(done.defaults) == 2


def test_model_parallelism_fills_nodes_first() -> None:
    """Narayanan et al., table 2: 175B on 384 GPUs with dp 4 is 96-way model-parallel."""
    run = replace(
        GPT_ROW,
        num_layers=96,
        hidden_size=12288,
        ffn_size=None,
        num_heads=96,
        num_kv_heads=None,
        num_devices=384,
        dp=4,
        tp=None,
        pp=None,
        micro_batch=1,
        global_batch=1536,
    )
    done = complete_run(run)
    assert (done.degrees.tp, done.degrees.pp, done.model.ffn_size) == (8, 12, 49152)
    assert "tp 8 and pp 12" in said(run)


def test_a_wrong_dp_is_corrected_openly() -> None:
    assert complete_run(replace(GPT_ROW, dp=4)).degrees.dp == 2
    assert "dp 2 (16 devices / (tp 4 x pp 2 x cp 1)); 4 as printed contradicts it" in said(
        replace(GPT_ROW, dp=4)
    )
    assert "4 which counts the ranks of cp" in said(
        replace(GPT_ROW, dp=4, cp=2, num_devices=32, micro_batch=2)
    )


def test_micro_batch_of_sharded_runs_is_the_whole_batch() -> None:
    run = replace(GPT_ROW, pp=1, tp=1, dp=16, micro_batch=None, global_batch=64)
    assert complete_run(run).micro_batch == 1
    assert complete_run(replace(run, zero_stage=3)).micro_batch == 4


@pytest.mark.parametrize(("framework", "staged"), [("torchtitan", 1), ("PyTorch FSDP", 3)])
def test_zero_3_in_a_pipeline_is_zero_1_where_parameters_stay_gathered(
    framework: str, staged: int
) -> None:
    run = replace(GPT_ROW, framework=framework, zero_stage=3)
    assert complete_run(run).zero_stage == staged
    assert complete_run(replace(run, pp=1, dp=4)).zero_stage == 3


def test_long_sequences_are_split() -> None:
    run = PublishedRun(
        row=1,
        id="r",
        model="llama3.1-70b",
        device="tpu-v7x",
        num_devices=256,
        seq_len=131072,
        global_batch=32,
    )
    done = complete_run(run)
    assert (done.degrees.dp, done.degrees.cp, done.degrees.tp, done.micro_batch) == (32, 8, 1, 1)
    assert done.recompute == "full"  # MaxText's default
    short = complete_run(replace(run, seq_len=2048))
    assert (short.degrees.dp, short.degrees.cp, short.degrees.tp) == (32, 1, 8)


def test_a_recipe_answers_for_a_silent_row() -> None:
    """tpu-recipes' Llama3.1-8B on v6e-16 prints 3 sequences of 8192 per chip: 393,216 tokens."""
    run = PublishedRun(row=1, id="r", model="Llama3.1-8B-MaxText", device="tpu-v6e", num_devices=16)
    done = complete_run(run)
    assert done.global_batch * done.seq_len == 393216
    assert (done.degrees.dp, done.degrees.tp, done.micro_batch, done.recompute) == (16, 1, 3, "mlp")
    assert "recipe: tpu-recipes" in said(run)
    # Another size, batch or sequence is another run, which that recipe does not describe.
    assert reason(replace(run, num_devices=24)) == "no global batch is given"
    assert reason(replace(run, seq_len=2048)) == "no global batch is given"
    assert complete_run(replace(run, global_batch=64)).global_batch == 64


def test_a_recipe_may_complete_a_printed_layout() -> None:
    run = replace(
        GPT_ROW,
        model="turing-530B",
        num_layers=105,
        hidden_size=20480,
        ffn_size=81920,
        num_heads=128,
        num_kv_heads=128,
        head_dim=160,
        seq_len=2048,
        num_devices=2240,
        dp=8,
        tp=8,
        pp=35,
        vpp=3,
        micro_batch=1,
        global_batch=None,
    )
    assert complete_run(run).global_batch == 2240
    assert reason(replace(run, dp=20, tp=4, pp=28)) == "no global batch is given"


def test_expert_parallelism_is_bounded_by_its_ranks() -> None:
    """A misprint of a publication is corrected and reported; a user's row is refused."""
    run = replace(
        GPT_ROW,
        source="paper",
        model="DeepSeekV3",
        family="moe",
        device="gb200-nvl72",
        num_devices=256,
        dp=32,
        tp=1,
        pp=8,
        ep=64,
        global_batch=2048,
        micro_batch=1,
        num_layers=61,
        gated_mlp=True,
        num_heads=128,
        num_kv_heads=128,
    )
    assert complete_run(run).degrees.ep == 32
    assert "ep 32: 64 as printed" in said(run)
    assert complete_run(replace(run, ep=16)).degrees.ep == 16
    with pytest.raises(UnsupportedRunError, match="ep 64 does not divide the 32 ranks"):
        complete_run(replace(run, source=""))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "nan"}, "no device is given"),
        ({"device": "h1000"}, "unknown device 'h1000'"),
        ({"num_devices": None, "dp": None}, "no number of devices"),
        ({"global_batch": None}, "no global batch"),
        ({"tp": 3}, "tp=3 x pp=2 x cp=1 does not divide 16 devices"),
        ({"precision": "int4"}, "the precision 'int4' is not known"),
        ({"precision": "fp8"}, "a100-sxm-80gb has no rate for float8"),
        ({"recompute": "some"}, "the recompute 'some' is not known"),
        ({"schedule": "fancy"}, "the schedule 'fancy' is not known"),
        ({"hidden_size": None}, "no hidden size is given and 'GPT h2048 L24' is not a known"),
        ({"num_layers": None}, "is no known model and has no parameter count"),
        ({"num_experts": 8}, "8 experts, but no top_k"),
        ({"model": "Nemotron-H-47B"}, "a hybrid whose figures are not known"),
        ({"global_batch": 1}, "dp=2 needs 2 sequences per step, the run has 1"),
        ({"faults": ("line 3: bad",)}, "line 3: bad"),
        (
            {"dp": None, "tp": None, "pp": None, "hidden_size": 163840, "num_heads": 1280},
            "no layout is given, and plain data parallelism does not fit",
        ),
    ],
)
def test_what_cannot_be_predicted_says_why(changes: dict[str, object], words: str) -> None:
    assert words in reason(replace(GPT_ROW, **changes))  # type: ignore[arg-type]  # names by test


degrees = st.integers(0, 4).map(lambda n: 2**n)


@given(dp=degrees, tp=degrees, pp=degrees, cp=degrees, micro_batch=degrees, passes=degrees)
def test_consistent_layouts_are_kept(
    dp: int, tp: int, pp: int, cp: int, micro_batch: int, passes: int
) -> None:
    run = replace(
        GPT_ROW,
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        num_devices=dp * tp * pp * cp,
        micro_batch=micro_batch,
        global_batch=dp * micro_batch * passes,
    )
    done = complete_run(run)
    assert done.degrees == Degrees(dp=dp, tp=tp, pp=pp, cp=cp)
    assert (done.micro_batch, done.num_microbatches) == (micro_batch, passes)
    # What is said once is not assumed twice: a completed layout completes to itself.
    assert complete_run(replace(run, dp=None)).degrees.dp == dp


def _open_rows(name: str) -> tuple[PublishedRun, ...]:
    path = TRUTH / name
    if not path.is_file():
        pytest.skip(f"{name} of the published runs is not beside the repository (shared/truth)")
    return read_runs(path, lenient=True)


def _completed(runs: tuple[PublishedRun, ...]) -> dict[str, TrainingRun | str]:
    done: dict[str, TrainingRun | str] = {}
    for run in runs:
        try:
            done[run.id] = complete_run(run)
        except UnsupportedRunError as error:
            done[run.id] = error.reason
    return done


def test_open_rows_that_name_their_layout_complete() -> None:
    runs = _open_rows("runs.csv")
    done = _completed(runs)
    named = [r for r in runs if r.dp is not None or r.tp is not None or r.pp is not None]
    good = [done[r.id] for r in named if isinstance(done[r.id], TrainingRun)]
    assert len(good) >= 0.99 * len(named)
    for completed in done.values():
        if isinstance(completed, str):
            assert completed
            continue
        assert completed.schedule in schedule_names()
        assert completed.micro_batch * completed.degrees.dp <= completed.global_batch


def test_failed_layouts_complete() -> None:
    done = _completed(_open_rows("failed.csv"))
    assert len(done) == 753
    assert all(isinstance(completed, TrainingRun) for completed in done.values())


def test_measured_columns_and_notes_change_nothing(tmp_path: Path) -> None:
    source = TRUTH / "runs.csv"
    runs = _open_rows("runs.csv")
    hidden = {"step_time_s", "peak_memory_gib", "quality", "notes", "step_time_kind"}
    blind = tmp_path / "blind.csv"
    with source.open(newline="", encoding="utf-8") as read, blind.open("w", newline="") as write:
        rows = csv.DictReader(read)
        columns = [c for c in rows.fieldnames or () if c not in hidden]
        writer = csv.DictWriter(write, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    assert read_runs(blind, lenient=True) == runs
