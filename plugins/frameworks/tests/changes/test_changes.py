"""Single changes of a run: which are legal, how they are ranked, and the frameworks' options."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from shardwright_frameworks.changes.flags import FLAGS, change_words, flag_of
from shardwright_frameworks.changes.ranked_changes import ranked_changes
from shardwright_frameworks.changes.single_change import SETTINGS, single_changes
from shardwright_frameworks.imported_run import ImportedRun
from typer.testing import CliRunner

from shardwright.cli import app
from shardwright.runs.complete import complete_run
from shardwright.runs.run import PublishedRun
from simulator.training_run.run.training_run import TrainingRun, with_settings


def run_of(**changed: object) -> TrainingRun:
    row = PublishedRun(
        row=1, id="r", model="llama-3-8b", device="h100-sxm-80gb", num_devices=16,
        devices_per_node=8, tp=4, pp=2, dp=2, cp=1, vpp=1, micro_batch=1, global_batch=64,
        seq_len=8192, precision="bf16", framework="Megatron-Core 0.14", recompute="full",
        sequence_parallel=True, zero_stage=1, schedule="1f1b",
    )  # fmt: skip
    return complete_run(replace(row, **changed))  # type: ignore[arg-type]  # values of several types by name


def test_neighbours_by_hand() -> None:
    # tp 4 -> 8 leaves dp 1, tp 2 dp 4; pp 4 dp 1, pp 1 dp 4; cp 2 dp 1; 32 layers on 2 ranks in 2
    # chunks; ZeRO 0; batch 64 / dp 2 takes a micro-batch of 2.
    found = {(c.setting, c.new): c.run for c in single_changes(run_of())}
    assert set(found) == {
        ("micro_batch", 2), ("recompute", "none"), ("recompute", "selective"), ("tp", 8), ("tp", 2),
        ("pp", 4), ("pp", 1), ("cp", 2), ("vpp", 2), ("zero_stage", 0),
        ("sequence_parallel", False),
    }  # fmt: skip
    assert (found["tp", 2].degrees.dp, found["tp", 8].degrees.dp) == (4, 1)
    assert (found["pp", 1].schedule, found["vpp", 2].schedule) == ("none", "interleaved")
    assert all(run.degrees.num_devices == 16 for run in found.values())


def test_illegal_ones_are_left_out() -> None:
    # One sequence per replica and step: no larger micro-batch; tp 16 would leave the node.
    found = {(c.setting, c.new) for c in single_changes(run_of(global_batch=2, tp=8, dp=1, pp=2))}
    assert ("tp", 16) not in found
    assert ("micro_batch", 4) not in found


def test_all_to_alls_are_hidden_where_experts_are_spread_and_stages_interleave() -> None:
    settings = {"model": "Mixtral 8x7B", "tp": 1, "dp": 8, "pp": 2, "ep": 8, "recompute": "none"}
    for schedule, vpp, proposed in (("1f1b", 1, False), ("interleaved", 2, True)):
        run = run_of(**settings)
        run = with_settings(run, {"vpp": vpp, "schedule": schedule})
        found = {(c.setting, c.new): c.run for c in single_changes(run)}
        assert (("schedule", "interleaved-overlap") in found) == proposed
    hidden = found["schedule", "interleaved-overlap"]
    (change,) = (c for c in single_changes(run) if c.setting == "schedule")
    words = change_words(ImportedRun(framework="megatron-lm"), change)
    assert words == "--overlap-moe-expert-parallel-comm: left out -> given"
    again = {(c.setting, c.new): c.run for c in single_changes(hidden)}
    assert again["vpp", 4].schedule == "interleaved-overlap"
    assert again["vpp", 1].schedule == "1f1b"
    assert ("recompute", "full") not in again


def test_precision_only_where_requested() -> None:
    assert "precision" not in {c.setting for c in single_changes(run_of())}
    changes = single_changes(run_of(), precisions=("fp8",))
    assert {c.new for c in changes if c.setting == "precision"} == {"fp8"}


def test_ranked_by_gain_and_all_fit() -> None:
    # Full recomputation of a small model that has room is the obvious waste: a quarter of the step.
    ranked = ranked_changes(run_of())
    assert ranked
    assert [p.gain for p in ranked] == sorted((p.gain for p in ranked), reverse=True)
    assert "recompute" in {p.change.setting for p in ranked[:3]}
    assert all(p.needed_bytes is None or p.needed_bytes < 80e9 for p in ranked)


def test_flags_are_of_settings_that_exist() -> None:
    assert all(set(flags) <= set(SETTINGS) for flags in FLAGS.values())
    change = next(c for c in single_changes(run_of()) if c.setting == "recompute")
    assert flag_of("megatron-lm", change) == "--recompute-granularity"
    assert flag_of(None, change) == "recompute"
    off = replace(change, old="full", new="none")
    words = change_words(ImportedRun(framework="llama-factory"), off)
    assert words == "disable_gradient_checkpointing: false -> true"


def test_from_a_script_to_a_better_one(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
        "--num-query-groups 8 --swiglu --seq-length 8192 --max-position-embeddings 8192 "
        "--vocab-size 128256 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 "
        "--micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer "
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1\n"
    )
    imported = tmp_path / "imported.json"
    runner = CliRunner()
    done = runner.invoke(app, ["import", str(script), "-o", str(imported), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(imported.read_text())["dp"] == 2
    on = ["--on", "2x8xh100-sxm-80gb", "--json"]
    predicted = runner.invoke(app, ["predict", str(imported), *on])
    step_s = json.loads(predicted.stdout)["step_time_s"]["value"]
    planned = json.loads(runner.invoke(app, ["plan", "--from", str(imported), *on]).stdout)
    first = planned["changes"][0]
    assert planned["step_time_s"]["value"] == step_s
    assert first["step_time_s"] < step_s
    assert first["flag"].startswith("--")
    refused = runner.invoke(app, ["predict", str(imported)])
    assert "names no device" in str(refused.exception)
