"""`--lengths` and `--expert-imbalance`: the data of a run, as options of plan and size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwright as public
from planner.layout.layout_answer import LayoutChoice
from shardwright.options.read_text import lengths
from tests.shardwright.test_cli import shardwright

WORK = public.Workload(global_batch=64, sequence_length=8192)
ON = "2x8xh100-sxm"
PINS = {"tp": 2, "pp": 1, "cp": 1, "micro_batch": 1, "zero": 1, "recompute": "full"}


def _chosen(model: str, **options: object) -> LayoutChoice:
    pins = {**PINS, **options}
    answer = public.plan(model, ON, WORK, stack="megatron-core", **pins)  # type: ignore[call-overload]  # by name
    assert answer.chosen is not None, answer.infeasibility
    found: LayoutChoice = answer.chosen
    return found


def test_an_imbalance_takes_time_where_experts_are_spread() -> None:
    even, uneven = (_chosen("qwen3-30b-a3b", ep=8, expert_imbalance=by) for by in (1.0, 1.5))
    assert uneven.run.expert_imbalance == 1.5
    assert uneven.prediction.step_time_s.value > even.prediction.step_time_s.value


def test_short_documents_take_less_time_and_model_flops() -> None:
    whole, packed = (
        _chosen("llama-3.1-8b", lengths=each) for each in ((), ((1024, 3.0), (8192, 1.0)))
    )
    assert packed.run.document_length == (3 * 1024**2 + 8192**2) / (3 * 1024 + 8192)
    assert packed.prediction.step_time_s.value < whole.prediction.step_time_s.value
    assert packed.required_memory_bytes == whole.required_memory_bytes


def test_the_plan_file_keeps_them_and_predict_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    done = shardwright(
        *("plan", "llama-3.1-8b", "--on", ON, "--global-batch", "64", "--seq", "8192"),
        *("--stack", "megatron-core", "--lengths", "1024:3,8k:1", "--no-cache", "-o", str(path)),
    )
    assert done.returncode == 0, done.stderr
    again = json.loads(shardwright("predict", str(path), "--json").stdout)
    planned = json.loads(path.read_text())["chosen"]
    assert planned["run"]["document_length"] == pytest.approx((3 * 1024**2 + 8192**2) / 11264)
    assert again["step_time_s"] == planned["prediction"]["step_time_s"]


def test_wrong_values_name_their_flag() -> None:
    with pytest.raises(public.InputError, match=r"--expert-imbalance 1\.2: llama-3\.1-8b has no"):
        _chosen("llama-3.1-8b", expert_imbalance=1.2)
    with pytest.raises(public.InputError, match=r"--expert-imbalance 0\.5: .* must be 1 "):
        _chosen("qwen3-30b-a3b", expert_imbalance=0.5)
    for text in ("512", "x:1", "512:y"):
        with pytest.raises(public.InputError, match=r"--lengths .* write 512:3,4k:1"):
            lengths(text, "--lengths")
    with pytest.raises(public.InputError, match=r"must be above 0"):
        lengths("512:0", "--lengths")


def test_size_takes_them_too() -> None:
    whole, packed = (
        public.size(
            *("llama-3.1-8b", "h100-sxm"),
            tokens="20B",
            nodes="1..4",
            stack="megatron-core",
            sequence_length=8192,
            lengths=each,
        ).answer
        for each in ((), ((512, 1.0),))
    )
    assert packed.flop < whole.flop
