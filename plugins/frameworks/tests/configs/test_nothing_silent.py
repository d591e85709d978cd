"""What an import must not pass over in silence: two frameworks in one file, keys that no value was
taken from, keys without effect, layouts that cannot start."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugins.frameworks.tests.configs.written_config import read
from profiles.errors import DocumentError

AXOLOTL = """base_model: Qwen/Qwen3-8B
datasets:
  - path: tatsu-lab/alpaca
micro_batch_size: 1
"""
MEGATRON = (
    "torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
    "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--micro-batch-size 1 --global-batch-size 256 --bf16 "
)


def test_a_file_of_two_frameworks_is_an_error_that_names_both(tmp_path: Path) -> None:
    text = AXOLOTL + "parallelism:\n  dp: 1\ntokens:\n  micro_batch_size: 1\n"
    with pytest.raises(DocumentError, match="two frameworks, nanotron and axolotl"):
        read(tmp_path, "a.yaml", text)


@pytest.mark.parametrize(("reshards", "stage"), [("true", 3), ("false", 2)])
def test_axolotl_shards_as_fsdp_2_says(tmp_path: Path, reshards: str, stage: int) -> None:
    fsdp = f"fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: {reshards}\n"
    run = read(tmp_path, "a.yaml", AXOLOTL + "dp_shard_size: 2\n" + fsdp)
    assert (run.framework, run.zero_stage, run.dp, run.devices) == ("axolotl", stage, 2, 2)
    assert run.unused == ()


def test_a_strategy_beside_fsdp_2_is_named(tmp_path: Path) -> None:
    fsdp = "fsdp_version: 2\nfsdp_config:\n  sharding_strategy: SHARD_GRAD_OP\n"
    run = read(tmp_path, "a.yaml", AXOLOTL + fsdp)
    assert run.zero_stage == 3
    assert [each.option for each in run.unused] == ["fsdp_config.sharding_strategy"]


@pytest.mark.parametrize(
    ("name", "text", "option"),
    [
        ("a.yaml", AXOLOTL + "quantize_moe_experts: true\n", "quantize_moe_experts"),
        (
            "a.json",
            '{"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, '
            '"zero_quantized_weights": true}}',
            "zero_optimization.zero_quantized_weights",
        ),
        (
            "a.yaml",
            "parallelism:\n  dp: 2\n  tp: 1\n  pp: 1\ntokens:\n  micro_batch_size: 1\n"
            "optimizer:\n  zero_stage: 0\nmodel:\n  model_config:\n    qk_lora_rank: 8\n",
            "model.model_config.qk_lora_rank",
        ),
    ],
)
def test_keys_without_a_reader_are_named(tmp_path: Path, name: str, text: str, option: str) -> None:
    run = read(tmp_path, name, text)
    assert [each.option for each in run.unused] == [option]


def test_keys_without_effect_are_named(tmp_path: Path) -> None:
    text = (
        "parallelism:\n  dp: 2\n  tp: 1\n  pp: 1\n  pp_engine: 1f1b\n  tp_mode: REDUCE_SCATTER\n"
        "tokens:\n  micro_batch_size: 1\noptimizer:\n  zero_stage: 0\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert {each.option: each.why for each in run.unused} == {
        "parallelism.pp_engine": "no effect without a pipeline (pp 1)",
        "parallelism.tp_mode": "no effect without tensor parallelism (tp 1)",
    }


_OVERLAP = (
    "--overlap-moe-expert-parallel-comm --pipeline-model-parallel-size 4 "
    "--num-layers-per-virtual-pipeline-stage 4"
)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            "--num-experts 64 --expert-model-parallel-size 32 --pipeline-model-parallel-size 8",
            "does not divide the 8 ranks of a stage (64 devices / pp 8)",
        ),
        ("--tensor-model-parallel-size 3", "tp 3"),
        (f"{_OVERLAP} --num-experts 64", "needs ep of 2 or more; ep 1 (default)"),
        (
            f"{_OVERLAP} --num-experts 64 --expert-model-parallel-size 8 "
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            "needs experts that are not computed again; recompute full",
        ),
    ],
)
def test_a_layout_that_cannot_start_is_a_contradiction(
    tmp_path: Path, options: str, reason: str
) -> None:
    run = read(tmp_path, "a.sh", MEGATRON + options + "\n")
    assert any(each.impossible and reason in each.text for each in run.contradictions)


def test_maxtext_counts_the_devices_of_experts(tmp_path: Path) -> None:
    text = (
        "base_emb_dim: 4096\nnum_experts: 8\nper_device_batch_size: 4\n"
        "ici_fsdp_parallelism: 8\nici_expert_parallelism: 8\n"
    )
    run = read(tmp_path, "a.yml", text)
    assert (run.devices, run.dp, run.global_batch) == (64, 64, 256)
