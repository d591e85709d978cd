"""Files that a Hydra configuration is put together of."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.configs.hydra_defaults import hydra_parts
from shardwright_frameworks.configs.keyed_file import read_keyed
from shardwright_frameworks.imported_run import ImportedRun
from shardwright_frameworks.reading.read_config import read_config
from shardwright_frameworks.shell.config_folder import ConfigFolder

SIZE = "tensor_model_parallel_size: {}\npipeline_model_parallel_size: 2\nmicro_batch_size: 1\n"
LAUNCH = "torchrun --nproc_per_node 16 run.py --config-path conf --config-name train {}\n"


def imported(folder: Path, defaults: str, words: str = "", **files: str) -> ImportedRun:
    files |= {"train": f"defaults:\n{defaults}\ntrainer:\n  devices: 16\n"}
    files |= {f"train/{n}": SIZE.format(n[1:]) for n in ("t1", "t8")}
    for name, text in files.items():
        path = folder / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "run.sh").write_text(LAUNCH.format(words))
    return read_config(folder / "run.sh")


@pytest.mark.parametrize("words", ["train=t8", "train=t8 trainer.devices=16"])
def test_the_command_line_chooses_a_group(tmp_path: Path, words: str) -> None:
    run = imported(tmp_path, "  - train: t1\n  - _self_", words)
    assert run.tp == 8
    assert "conf/train/t1.yaml" not in run.files


@pytest.mark.parametrize(
    ("defaults", "words"),
    [("  - train: t1\n  - experiment: a", ""), ("  - train: t1", "+experiment=a")],
)
def test_an_override_replaces_the_entry(tmp_path: Path, defaults: str, words: str) -> None:
    own = "# @package _global_\ndefaults:\n  - override /train: t8\nseq_length: 512\n"
    run = imported(tmp_path, defaults, words, **{"experiment/a": own})
    assert (run.tp, run.seq_len) == (8, 512)
    assert "conf/train/t1.yaml" not in run.files


@pytest.mark.parametrize("entry", ["train: t4", "train: ${size}", "train: [t1, t4]"])
def test_what_is_not_beside_it_is_said(tmp_path: Path, entry: str) -> None:
    run = imported(tmp_path, f"  - train: t1\n  - {entry}")
    assert [each.option for each in run.unresolved] == ["defaults"]
    assert "cp" not in run.defaults


def test_lists_that_grow_end(tmp_path: Path) -> None:
    for number in range(8):
        names = "".join(f"  - k{number + 1}\n" for _ in range(10))
        (tmp_path / f"k{number}.yaml").write_text(f"defaults:\n{names}")
    folder = ConfigFolder(tmp_path)
    read = hydra_parts(read_keyed("k0.yaml", folder), folder)
    assert len(read.parts) <= 101
    assert "too many files" in read.missing[0]
