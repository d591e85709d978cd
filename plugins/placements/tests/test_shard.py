"""`shardwright shard` and `run` of its file, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plugins.placements.tests.running.sharding_cases import write_models
from tests.shardwright.test_cli import shardwright

ASKED = ("--on", "8xh100-sxm", "--mesh", "2", "--seq", "16", "--micro-batch", "2")


@pytest.mark.slow
def test_a_file_is_made_and_run(tmp_path: Path) -> None:
    model = write_models(tmp_path)["gpt2"]
    done = shardwright("shard", model, *ASKED, "-o", "s.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "proven optimal" in done.stdout
    assert "Megatron's layout" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    ran = shardwright("run", "s.json", "--steps", "1", "-o", "r.json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "as planned" in ran.stdout
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["schema"] == "shardwright/sharded-run@1"
    assert found["worst_relative_error"] < 1e-5
    # Another number of processes, and a file whose trace is not this model's.
    other = shardwright("run", "s.json", "--processes", "4", cwd=tmp_path)
    assert other.returncode == 2
    assert "for a mesh of 2 devices, --processes is 4" in " ".join(other.stderr.split())


def test_the_answer_as_json_and_what_does_not_fit(tmp_path: Path) -> None:
    model = write_models(tmp_path)["llama"]
    block = ("--block", "LlamaDecoderLayer", "--memory", "10KiB")
    small = shardwright("shard", model, *ASKED, *block, "--json", cwd=tmp_path)
    assert small.returncode == 3
    found = json.loads(small.stdout)
    assert found["schema"] == "shardwright/op-sharding@1"
    assert found["status"] == "infeasible"
    assert found["fits_with"]
    wrong = shardwright("shard", model, "--on", "8xh100-sxm", "--mesh", "two", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "write the devices of one axis, 8, or of two, 2x4" in " ".join(wrong.stderr.split())
