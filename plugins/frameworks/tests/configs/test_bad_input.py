"""Files that are no configuration, that lie, or that are meant to harm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from shardwright_frameworks.imported_run import read_imported, write_imported
from shardwright_frameworks.reading.read_config import read_config

from plugins.frameworks.tests.configs.written_config import read
from profiles.errors import DocumentError
from shardwright.requests.imported_file import is_imported

MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 512 "
    "--num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 --micro-batch-size 2 "
)


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("a.sh", b"\x7fELF\0\0\1", "is not a text file"),
        ("a.yaml", b"a: [1, 2\nb: {", "not valid YAML"),
        ("a.json", b'{"train_batch_size": 4, ', "not valid JSON"),
        ("a.toml", b"[model\nname = 1", "not valid TOML"),
        ("a.py", b"def f(:\n", "a.py:1: not valid Python"),
        ("a.sh", b"echo hello\n", "no configuration of a known framework"),
        ("a.yaml", b"hello: world\n", "no configuration of a known framework"),
        ("a.yaml", b"- !!python/object/apply:os.system ['touch x']\n", "no configuration"),
        ("empty.sh", b"", "no configuration"),
    ],
)
def test_clear_errors(tmp_path: Path, name: str, raw: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(DocumentError, match=re.escape(message)):
        read_config(tmp_path / name)
    assert not (tmp_path / "x").exists()


def test_missing_huge_and_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="no such file or folder"):
        read_config(tmp_path / "none.sh")
    (tmp_path / "huge.yaml").write_bytes(b"a: 1\n" * 900_000)
    with pytest.raises(DocumentError, match="more than 4 MiB"):
        read_config(tmp_path / "huge.yaml")
    (tmp_path / "sub").mkdir()
    with pytest.raises(DocumentError, match="0 files"):
        read_config(tmp_path / "sub")


def test_aliases_that_grow_end(tmp_path: Path) -> None:
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}, r: *a{n - 1}}}" for n in range(1, 30)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    with pytest.raises(DocumentError, match="nested too deeply, or too long"):
        read_config(tmp_path / "bomb.yaml")


def test_files_outside_the_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.sh").write_text("TP=8\n")
    inner = tmp_path / "run"
    inner.mkdir()
    run = read(inner, "a.sh", f"source ../secret.sh\n{MEGATRON} --tensor-model-parallel-size $TP\n")
    assert run.tp is None
    assert [each.option for each in run.unresolved] == ["--tensor-model-parallel-size", "source"]


def test_a_value_that_is_no_number_is_none(tmp_path: Path) -> None:
    run = read(tmp_path, "a.sh", f"{MEGATRON} --tensor-model-parallel-size many --bf16\n")
    assert run.tp is None
    assert run.dp is None
    assert [each.option for each in run.unresolved] == ["--tensor-model-parallel-size"]


def test_options_behind_a_comment_are_never_passed(tmp_path: Path) -> None:
    run = read(
        tmp_path, "a.sh", f"{MEGATRON} \\\n  --bf16 \\\n  # note \\\n  --fp8-format hybrid\n"
    )
    assert run.precision == "bf16"
    assert ["is outside any command" in each.text for each in run.contradictions] == [True]
    assert run.contradictions[0].places == ("a.sh:4",)


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ("--tensor-model-parallel-size 3", "dp"),
        ("--global-batch-size 20", "global_batch"),
        ("--tensor-model-parallel-size 2 --tensor-model-parallel-size 4", "tp"),
        ("--expert-model-parallel-size 4", "ep"),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3", "vpp"),
        ("--recompute-granularity full --recompute-activations", "recompute"),
    ],
)
def test_contradictions_name_field_and_place(tmp_path: Path, flags: str, field: str) -> None:
    run = read(tmp_path, "a.sh", f"{MEGATRON} --bf16 {flags}\n")
    found = [each for each in run.contradictions if each.field == field]
    assert found
    assert all(place.startswith("a.sh:1") for each in found for place in each.places)


def test_every_task_of_a_node_starts_all_its_ranks(tmp_path: Path) -> None:
    header = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n"
    run = read(
        tmp_path, "a.sh", f"{header}srun {MEGATRON.replace('8', '8 --nnodes 2', 1)} --bf16\n"
    )
    assert run.devices == 16
    (found,) = run.contradictions
    assert found.places == ("a.sh:3", "a.sh:4")
    assert "srun starts 8 tasks on a node" in found.text


def test_imported_json_comes_back(tmp_path: Path) -> None:
    run = read(tmp_path, "a.sh", f"{MEGATRON} --bf16 --recompute-activations --oops 1\n")
    write_imported(tmp_path / "imported.json", run)
    assert is_imported(tmp_path / "imported.json")
    assert read_imported(tmp_path / "imported.json") == run


def test_a_variable_that_is_not_set_is_no_silence(tmp_path: Path) -> None:
    """A degree with an unknown value has no default: dp does not follow from one."""
    (tmp_path / "run.sh").write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 "
        "--micro-batch-size 1 --tensor-model-parallel-size $TP --pipeline-model-parallel-size 2\n"
    )
    run = read_config(tmp_path / "run.sh")
    assert "tp" not in run.defaults
    assert run.dp is None
    assert run.answer("tp") is None
    assert run.answer("cp") == 1
    assert [each.option for each in run.unresolved] == ["--tensor-model-parallel-size"]


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        (
            "tune run --nproc_per_node 8 full_finetune_distributed batch_size=2 "
            "tensor_parallel_dim=$TP",
            ["tp"],
        ),
        (
            "torchrun examples/nlp/language_modeling/megatron_gpt_pretraining.py "
            "trainer.num_nodes=2 model.micro_batch_size=1 model.tensor_model_parallel_size=$TP "
            "model.pipeline_model_parallel_size=2",
            ["tp"],
        ),
        (
            "python3 -m MaxText.train MaxText/configs/base.yml per_device_batch_size=1 "
            "max_target_length=2048 gradient_accumulation_steps=$N ici_tensor_parallelism=$TP "
            "remat_policy=$R",
            ["gradient_accumulation", "recompute", "tp"],
        ),
        (
            "torchrun --nproc_per_node 8 run_clm.py --model_name_or_path a/b --output_dir o "
            "--per_device_train_batch_size $B --gradient_accumulation_steps 2 --optim $O",
            ["micro_batch", "optimizer"],
        ),
    ],
)
def test_no_default_answers_for_a_hole(tmp_path: Path, command: str, keys: list[str]) -> None:
    run = read(tmp_path, "run.sh", f"{command}\n")
    assert run.defaults
    assert [key for key in keys if key in run.defaults] == []
    assert [run.answer(key) for key in keys] == [None] * len(keys)


COLOSSALAI = "colossalai run --nproc_per_node 8 benchmark.py -l 4096 "


@pytest.mark.parametrize(
    ("options", "stage"),
    [("", 3), ("-p gemini_auto", 3), ("-p zero2", 2), ("-p 3d", 0), ("-p 3d --zero 1", 1),
     ("-p $PLUGIN", None), ("-p another", None)],
)  # fmt: skip
def test_the_plugin_of_colossalai_says_the_stage(
    tmp_path: Path, options: str, stage: int | None
) -> None:
    assert read(tmp_path, "run.sh", f"{COLOSSALAI}{options}\n").answer("zero_stage") == stage


@pytest.mark.parametrize(
    ("options", "micro_batch", "accumulation"),
    [
        ("-p gemini -b 16 --mbs 2", 16, None),
        ("-p 3d -b 16 --mbs 2 --accumulation_steps 4", 16, 4),
        ("-p 3d --pp 2 -b 16 --mbs 2 --accumulation_steps 4", 2, 8),
        ("-p 3d --pp $PP -b 16 --mbs 2", None, None),
        ("-p $PLUGIN --pp 2 -b 16 --mbs 2", None, None),
        ("-p zero2 -b 4 --accumulation_steps 4", 4, 4),
    ],
)
def test_only_a_pipeline_of_colossalai_cuts_a_batch(
    tmp_path: Path, options: str, micro_batch: int | None, accumulation: int | None
) -> None:
    run = read(tmp_path, "run.sh", f"{COLOSSALAI}{options}\n")
    assert (run.micro_batch, run.gradient_accumulation) == (micro_batch, accumulation)
    assert run.contradictions == ()
