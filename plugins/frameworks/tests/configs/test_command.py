"""`shardwright import --command`: an expanded command line in the place of a script."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.reading.read_config import read_command
from typer.testing import CliRunner

from profiles.errors import DocumentError
from shardwright.cli import app

COMMAND = (
    "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
    "--num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 "
    "--tensor-model-parallel-size 4 --bf16"
)


def test_all_values_of_a_command(tmp_path: Path) -> None:
    run = read_command(f"A=1 B='x y' {COMMAND}", tmp_path)
    assert (run.devices, run.tp, run.dp, run.precision) == (16, 4, 4, "bf16")
    assert run.options["tp"] == "--tensor-model-parallel-size (--command:1)"
    assert run.unresolved == ()


def test_files_that_a_command_names(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {}}')
    run = read_command(f"{COMMAND} --deepspeed --deepspeed_config ds.json", tmp_path)
    assert (run.framework, run.zero_stage) == ("megatron-deepspeed", 2)
    (tmp_path / "sub").mkdir()
    (tmp_path / "ds.json").rename(tmp_path / "sub" / "ds.json")
    run = read_command(f"{COMMAND} --deepspeed --deepspeed_config ds.json", tmp_path)
    assert [each.option for each in run.unresolved] == ["deepspeed"]


@pytest.mark.parametrize("command", ["", "ls -l", "python preprocess_data.py --a 1", '"'])
def test_a_command_that_trains_nothing(tmp_path: Path, command: str) -> None:
    with pytest.raises(DocumentError, match="starts no training run"):
        read_command(command, tmp_path)


def test_the_option_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["import", "--command", COMMAND, "-o", "imported.json"])
    assert done.exit_code == 0
    assert "written" in done.stderr
    Path("a.sh").write_text(f"{COMMAND} --pipeline-model-parallel-size $(cat pp.txt)\n")
    done = CliRunner().invoke(app, ["import", "a.sh"])
    assert "shardwright import --command 'torchrun ...'" in " ".join(done.stderr.split())
    assert "the output of `cat pp.txt`, which is not run (a.sh:1)" in " ".join(done.stdout.split())
    done = CliRunner().invoke(app, ["import", "a.sh", "--command", COMMAND])
    assert done.exit_code != 0
