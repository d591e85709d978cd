"""Unknown values of a command: neither omitted nor replaced by another program's default."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.imported_run import ImportedRun
from shardwright_frameworks.reading.read_config import read_config


def read(folder: Path, text: str, **files: str) -> ImportedRun:
    for name, inner in files.items():
        (folder / f"{name}.yaml").write_text(inner)
    (folder / "run.sh").write_text(text)
    return read_config(folder / "run.sh")


SWIFT = "NPROC_PER_NODE=4 swift sft --model Qwen/Qwen2.5-7B --max_length 2048 "


@pytest.mark.parametrize(
    ("words", "rank", "open_"),
    [
        ("", None, ["--train_type"]),
        ("--tuner_type lora", 8, []),
        ("--train_type lora --lora_rank 16", 16, []),
        ("--train_type full", None, []),
    ],
)
def test_swift_trains_an_adapter_unasked(
    tmp_path: Path, words: str, rank: int | None, open_: list[str]
) -> None:
    run = read(tmp_path, SWIFT + words)
    assert run.model.lora_rank == rank
    assert [each.option for each in run.unresolved] == open_
    assert "precision" not in run.defaults
    assert (run.answer("micro_batch"), run.answer("optimizer")) == (1, "adamw_torch")
    assert run.answer("recompute") == "full"  # of swift/trainers/arguments.py


def test_swift_names_options_that_neither_it_nor_megatron_has(tmp_path: Path) -> None:
    own = "--model Qwen/Qwen2.5-7B --micro_batch_size 1 --tensor_model_paralel_size 2 --turbo"
    run = read(tmp_path, f"NPROC_PER_NODE=4 megatron sft {own} --lora_rank 8 --dataset_shuffle no")
    assert [each.option for each in run.unknown] == ["--tensor_model_paralel_size", "--turbo"]


@pytest.mark.parametrize(
    ("option", "about"),
    [
        ("parallelism.pipeline_parallel_microbatch_size", "micro_batch"),
        ("training.mixed_precision_param", "precision"),
    ],
)
def test_torchtitan_answers_for_no_hole(tmp_path: Path, option: str, about: str) -> None:
    run = read(
        tmp_path,
        "torchrun --nproc_per_node 8 torchtitan/train.py --training.local_batch_size 8 "
        f"--parallelism.pipeline_parallel_degree 4 --{option} $SIZE",
    )
    assert getattr(run, about) is None
    assert about not in run.defaults


TUNE = "tune run --nproc_per_node 8 full_finetune_distributed --config recipe.yaml "


@pytest.mark.parametrize(("words", "tp"), [("", None), ("tensor_parallel_dim=2", 2)])
def test_a_recipe_leaves_its_holes_open(tmp_path: Path, words: str, tp: int | None) -> None:
    recipe = "tensor_parallel_dim: ${oc.env:TP}\nbatch_size: 2\n"
    run = read(tmp_path, TUNE + words, recipe=recipe)
    assert run.tp == tp
    assert "tp" not in run.defaults


@pytest.mark.parametrize(
    ("before", "tp"),
    [("export TP=8\n", 8), ("export TP=$1\n", None), ("TP=8\n", 4), ("TP=8 ", 8), ("", 4)],
)
def test_a_file_reads_what_its_script_exports(tmp_path: Path, before: str, tp: int | None) -> None:
    recipe = "tensor_parallel_dim: ${oc.env:TP,4}\nbatch_size: 2\n"
    run = read(tmp_path, before + TUNE, recipe=recipe)
    assert run.tp == tp
    keys = "tensor_model_parallel_size: ${oc.env:TP,4}\n  pipeline_model_parallel_size: 1\n"
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "sft.yaml").write_text(f"model:\n  {keys}trainer:\n  num_nodes: 1\n")
    words = "torchrun --nproc_per_node 8 train.py --config-path=conf --config-name=sft"
    assert read(tmp_path, f"{before}{words} trainer.devices=8").tp == tp


def test_a_file_of_a_trainer_leaves_its_holes_open(tmp_path: Path) -> None:
    text = "per_device_train_batch_size: ???\noutput_dir: x\nmax_steps: 4\nbf16: true\n"
    run = read(tmp_path, "torchrun --nproc_per_node 8 train.py own.yaml", own=text)
    assert [each.option for each in run.unresolved] == ["per_device_train_batch_size"]
    assert "micro_batch" not in run.defaults


@pytest.mark.parametrize("program", ["train_sft", "train_dpo", "train_ppo_ray"])
def test_more_than_one_model_is_reported(tmp_path: Path, program: str) -> None:
    own = "--pretrain Qwen/Qwen2.5-7B --micro_train_batch_size 1 --zero_stage 2"
    run = read(tmp_path, f"deepspeed --num_gpus 8 --module openrlhf.cli.{program} {own}")
    assert bool(run.unresolved) == (program != "train_sft")
    assert "tp" in run.defaults
