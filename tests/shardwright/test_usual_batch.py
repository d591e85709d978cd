"""The batch of `plan` and `size` if the request gives none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from profiles.errors import InputError
from shardwright.options.plan_options import PlanOptions
from shardwright.requests.local_paths import local_profile
from shardwright.requests.named_model import described_of
from shardwright.requests.plan_request import plan_batch, plan_request
from shardwright.requests.usual_batch import usual_batch
from shardwright.runs.known_models import whole_run, whole_runs
from tests.shardwright.test_cli import shardwright


@pytest.mark.parametrize(
    ("model", "seq", "sequences"),
    [
        ("deepseek-v3", 4096, 15360),  # its paper, section 4.2
        ("llama-3.1-405b", 8192, 2048),  # 16 Mi / 8 Ki
        ("qwen3-235b-a22b", 4096, 4096),  # 16 Mi / 4 Ki, from 65 B
        ("llama-3.1-8b", 4096, 1024),  # 4 Mi / 4 Ki
        ("gpt2", 1024, 512),  # 0.5 Mi / 1 Ki
        ("llama-3.1-8b", 3000, 1280),  # 1,398.1, to a multiple of 256
    ],
)
def test_a_batch_is_the_models_own_or_that_of_its_size(
    model: str, seq: int, sequences: int
) -> None:
    found = usual_batch(model, described_of(model, seq).figures.parameters, seq, adapters=False)
    assert found.sequences == sequences
    assert f"{sequences:,} sequences a step" in found.words
    assert "arXiv" in found.words
    assert "--global-batch" in found.words


def test_plan_takes_it_and_says_so() -> None:
    given = PlanOptions(model="deepseek-v3", on="256x8xh800-sxm")
    request = plan_request(given, profile=local_profile(), today="2026-11-27")
    assert request.global_batch == 15360
    assert request.assumed[0].startswith("15,360 sequences a step")
    typed = plan_request(
        replace(given, global_batch=64), profile=local_profile(), today="2026-11-27"
    )
    assert (typed.global_batch, typed.assumed) == (64, ())


@pytest.mark.parametrize("model", ["vit-huge", "mymodels:build"])
def test_models_without_tokens_need_a_batch(model: str) -> None:
    with pytest.raises(InputError, match="give --global-batch"):
        plan_request(PlanOptions(model=model, on="h100-sxm"), profile=local_profile(), today="")


def test_a_model_without_figures_has_the_batch_of_its_size(tmp_path: Path) -> None:
    config = {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "d_model": 64,
        "d_ff": 128,
        "d_kv": 16,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 256,
        "decoder_start_token_id": 0,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    found = plan_batch(str(path), 512)
    assert found.sequences == 2**19 // 512  # below 1 B parameters


def test_published_runs_are_of_shipped_models() -> None:
    for run in whole_runs():
        assert all(whole_run(name) is run for name in run.models)
    # 2.664 M device-hours for 14.8 T tokens.
    found = whole_run("deepseek-v3")
    assert found is not None
    assert found.hours_per_trillion == pytest.approx(180e3)


def test_a_batch_meant_in_tokens_is_noticed() -> None:
    """`--global-batch 4M` is no error, but a step of hours."""
    done = shardwright(
        *("plan", "gpt2", "--on", "8xh100-sxm", "--global-batch", "4M", "--seq", "1024"),
        *("--stack", "megatron-core"),
    )
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("Assumed "))
    assert "a step has 4.10 B tokens: --global-batch counts sequences" in line
    usual = shardwright("plan", "gpt2", "--on", "8xh100-sxm", "--stack", "megatron-core")
    assert "counts sequences" not in usual.stdout
