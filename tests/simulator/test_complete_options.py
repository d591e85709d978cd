"""Columns of a table of runs that are options of `plan --stack`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from profiles.errors import UnknownNameError
from shardwright.runs.complete import UnsupportedRunError, complete_run
from shardwright.runs.predict_runs import predict_runs
from shardwright.runs.run import MEASURED_COLUMNS, PublishedRun
from shardwright.runs.run_table import read_runs
from simulator.training_run.fit.step_spread import run_spreads
from simulator.training_run.run.training_run import setting_of
from simulator.training_run.step.coefficients import shipped_coefficients

RUN = PublishedRun(
    row=1,
    id="r",
    model="Mixtral 8x7B",
    device="h100-sxm-80gb",
    num_devices=64,
    dp=64,
    tp=1,
    pp=1,
    ep=8,
    micro_batch=1,
    global_batch=256,
    seq_len=8192,
    recompute="none",
    framework="Megatron-Core r0.12",
)


@pytest.mark.parametrize(
    ("column", "value", "field", "kept"),
    [
        ("expert_imbalance", 1.5, "expert_imbalance", 1.5),
        ("optimizer_offload", True, "optimizer_offload", True),
        ("activation_offload", 0.5, "activation_offload", 0.5),
        ("reduce", "bf16", "gradient_reduction", "bf16"),
        ("compress", "powersgd-4", "compression", "powersgd-4"),
        ("compress", "none", "compression", ""),
        ("local_steps", 50, "local_steps", 50),
        ("order", "tp-cp-pp-dp", "axis_order", "tp-cp-pp-dp"),
        ("dp_replicate", 8, "dp_replicate", 8),
    ],
)
def test_an_option_reaches_the_run(column: str, value: object, field: str, kept: object) -> None:
    asked = replace(RUN, **{column: value})  # type: ignore[arg-type]  # by name
    assert setting_of(complete_run(asked), field) == kept


def test_silence_changes_nothing() -> None:
    assert complete_run(RUN).as_published() == complete_run(RUN)


def test_local_workers_are_all_replicas_where_silent() -> None:
    run = complete_run(replace(RUN, local_steps=50))
    assert run.local_workers == 64
    assert "64 local workers (every replica)" in run.defaults


def test_windows_and_predicted_tokens_are_the_model_s() -> None:
    model = complete_run(replace(RUN, sliding_window=1024, window_layers=16, mtp_layers=1)).model
    assert (model.window, model.window_layers, model.predicted_ahead) == (1024, 16, 1)
    every = complete_run(replace(RUN, sliding_window=1024)).model
    assert every.window_layers == 32
    mistral = replace(RUN, model="Mistral 7B", ep=None)
    assert complete_run(mistral).model.window == 4096
    assert complete_run(replace(mistral, sliding_window=0)).model.window_layers == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"expert_imbalance": 0.5}, "expert_imbalance=0.5"),
        ({"expert_imbalance": 2.0, "model": "Llama 3 8B", "ep": None}, "has no experts"),
        ({"activation_offload": 2.0}, "activation_offload=2 must be a share"),
        ({"reduce": "bf61"}, "Did you mean 'bf16'"),
        ({"compress": "zip"}, "compression 'zip' is unknown"),
        ({"order": "dp-tp"}, "unknown order 'dp-tp'"),
        ({"local_steps": 9, "local_workers": 3}, "divide dp=64"),
        ({"local_workers": 4}, "need local_steps"),
        ({"dp_replicate": 3}, "dp_replicate=3 does not divide dp=64"),
        ({"dp_replicate": 2, "zero_stage": 0}, "dp_replicate=2 needs a zero_stage of 1, 2 or 3"),
        ({"wide_layers": 2}, "the precision is bf16"),
        ({"lora_rank": 8}, "family is not lora"),
        ({"recompute_layers": 2}, "recompute is 'none'"),
        ({"window_layers": 4}, "need a sliding_window"),
        (
            {"pipeline_layout": "Et*16|t*16L", "pp": 4, "dp": 16, "vpp": 1},
            "has 2 stages and needs pp 2; the run has pp 4 x vpp 1",
        ),
        (
            {"pipeline_layout": "Et*16|t*15L", "pp": 2, "dp": 32, "vpp": 1},
            r"31 layers \(t\), the model 32",
        ),
        ({"sliding_window": 8, "window_layers": 99}, "99 layers with a window"),
    ],
)
def test_what_cannot_be_says_why(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UnsupportedRunError, match=words):
        complete_run(replace(RUN, **changes))  # type: ignore[arg-type]  # by name


def test_a_layout_of_stages_is_kept_where_there_are_stages() -> None:
    row = replace(RUN, pp=2, dp=32, vpp=1, pipeline_layout="Et*20|t*12,L")
    assert complete_run(row).pipeline_layout == "Et*20|t*12L"
    with pytest.raises(UnsupportedRunError, match="has 2 stages and needs pp 2; the run has pp 1"):
        complete_run(replace(row, pp=1, dp=64))


def test_options_widen_the_interval_by_half_of_what_they_change() -> None:
    plain, uneven = predict_runs([RUN, replace(RUN, id="u", expert_imbalance=2.0)])
    assert plain.step_time_s is not None
    assert uneven.step_time_s is not None
    slower = uneven.step_time_s.value - plain.step_time_s.value
    assert slower > 0
    # The interval by hand: e to the power of the shipped quantile times the step's spread.
    for found, beside_s in ((plain, 0.0), (uneven, 0.5 * slower)):
        assert found.run is not None
        spread = float(run_spreads([found.run])[0])
        half = shipped_coefficients().quantile * spread
        time = found.step_time_s
        assert time is not None
        assert time.high == pytest.approx(time.value * math.exp(half) + beside_s)


def test_columns_are_checked_and_measured_ones_pass(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    header = ["id", "num_layers", "expert_imbalance", "optimizer_offload", *MEASURED_COLUMNS]
    row = ["a", "32", "1.5", "1", *("x" for _ in MEASURED_COLUMNS)]
    path.write_text(",".join(header) + "\n" + ",".join(row) + "\n", encoding="utf-8")
    (run,) = read_runs(path)
    assert (run.expert_imbalance, run.optimizer_offload) == (1.5, True)
    path.write_text("id,num_layers,expert_imbalence\na,32,1.5\n", encoding="utf-8")
    with pytest.raises(UnknownNameError, match="Did you mean 'expert_imbalance'"):
        read_runs(path)
