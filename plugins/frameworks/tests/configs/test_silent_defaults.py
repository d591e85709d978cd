"""Keys whose absence or default once gave a wrong value without a word, each in a short file."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.reading.read_config import read_config

from shardwright.requests.imported_run import ImportedRun

AXOLOTL = "base_model: meta-llama/Llama-3.2-3B\ndatasets:\n- path: a\nsequence_len: 4096\n"
FACTORY = (
    "model_name_or_path: Qwen/Qwen2-1.5B-Instruct\nstage: sft\ncutoff_len: 2048\n"
    "per_device_train_batch_size: 1\nbf16: true\noutput_dir: out\nfinetuning_type: {kind}\n"
)
NANOTRON = (
    "general:\n  run: a\ntokens:\n  micro_batch_size: 1\n  sequence_length: 512\n"
    "parallelism:\n  dp: 2\n  tp: 1\n  pp: 1\nmodel:\n  model_config:\n"
    "    hidden_size: 256\n    num_hidden_layers: 4\n    sliding_window_size: 20\n"
    "    moe_config:\n      num_experts: 8\n      top_k: 1\n      enable_shared_expert: true\n"
)


def read(folder: Path, text: str) -> ImportedRun:
    (folder / "run.yaml").write_text(text)
    return read_config(folder / "run.yaml")


@pytest.mark.parametrize("key", ["activation_checkpointing", "fsdp_activation_checkpointing"])
def test_axolotl_recomputes_by_its_fsdp_section(tmp_path: Path, key: str) -> None:
    text = AXOLOTL + f"fsdp_version: 2\nfsdp_config:\n  {key}: "
    assert read(tmp_path, text + "true\n").recompute == "full"
    assert read(tmp_path, text + "false\n").recompute is None


def test_axolotl_keeps_activations_in_host_memory(tmp_path: Path) -> None:
    assert read(tmp_path, AXOLOTL + "activation_offloading: true\n").activation_offload == 1.0
    assert read(tmp_path, AXOLOTL).activation_offload is None


def test_weights_in_four_bits_are_named(tmp_path: Path) -> None:
    unused = read(tmp_path, AXOLOTL + "load_in_4bit: true\n").unused
    assert [each.option for each in unused] == ["load_in_4bit"]
    assert read(tmp_path, AXOLOTL + "load_in_4bit: false\n").unused == ()


def test_llama_factory_s_own_defaults(tmp_path: Path) -> None:
    """Layers are recomputed unless it is switched off, and adapters have rank 8."""
    run = read(tmp_path, FACTORY.format(kind="full"))
    assert (run.answer("recompute"), run.model.lora_rank, run.precision) == ("full", None, "bf16")
    assert read(tmp_path, FACTORY.format(kind="lora")).model.lora_rank == 8
    ranked = read(tmp_path, FACTORY.format(kind="lora") + "lora_rank: 16\n")
    assert ranked.model.lora_rank == 16
    off = read(tmp_path, FACTORY.format(kind="full") + "disable_gradient_checkpointing: true\n")
    assert off.recompute == "none"
    assert read(tmp_path, FACTORY.format(kind="full") + "fp8: true\n").precision == "fp8"


def test_llama_factory_s_megatron_adapter_has_its_own_recomputation(tmp_path: Path) -> None:
    keys = "tensor_model_parallel_size: 2\npipeline_model_parallel_size: 2\n"
    run = read(tmp_path, FACTORY.format(kind="full") + keys)
    assert (run.tp, run.pp, run.answer("recompute")) == (2, 2, "none")


def test_nanotron_s_window_and_shared_expert(tmp_path: Path) -> None:
    model = read(tmp_path, NANOTRON).model
    assert (model.sliding_window, model.num_shared_experts, model.num_experts) == (20, 1, 8)
