"""Recipes in Python that call functions of other files and change what they return."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.reading.read_config import read_config

from profiles.errors import DocumentError, UnknownNameError

BASE = """from megatron.bridge.recipes.common import _pretrain_common

def big_pretrain_1024gpu_h100_bf16_config() -> ConfigContainer:
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("deepseek-ai/DeepSeek-V3").to_megatron_provider()
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_size = 16
    cfg.model.expert_model_parallel_size = 64
    cfg.model.seq_length = 4096
    cfg.train.global_batch_size = 4096
    cfg.train.micro_batch_size = 1
    cfg.mixed_precision = MixedPrecisionConfig(bf16=True)
    return cfg
"""
COMMON = """def _pretrain_common():
    return ConfigContainer(ddp=DistributedDataParallelConfig(use_distributed_optimizer=True))
"""
ALIASES = """from megatron.bridge.recipes.h100.big import (
    big_pretrain_1024gpu_h100_bf16_config as big_pretrain_config,
)
"""
TUNED = """from megatron.bridge.recipes.big import big_pretrain_config
from .helpers import _perf_precision, tune

def big_pretrain_256gpu_gb200_fp8mx_config() -> ConfigContainer:
    cfg = big_pretrain_config()
    cfg.mixed_precision = _perf_precision("fp8_mx")
    cfg.model.tensor_model_parallel_size = 1
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = 4
    tune(cfg, batch=2048)
    return cfg

def small_scale_config():
    cfg = big_pretrain_256gpu_gb200_fp8mx_config()
    cfg.train.global_batch_size = 256
    return cfg
"""
HELPERS = """def tune(cfg, *, batch=1):
    cfg.train.global_batch_size = batch
    cfg.model.recompute_granularity = "selective"
    cfg.model.recompute_modules = ["mla_up_proj"]
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    bridge = tmp_path / "src" / "megatron" / "bridge"
    files = {
        "recipes/h100/big.py": BASE,
        "recipes/common.py": COMMON,
        "recipes/big.py": ALIASES,
        "perf_recipes/gb200.py": TUNED,
        "perf_recipes/helpers.py": HELPERS,
    }
    for name, text in files.items():
        path = bridge / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return bridge


def test_a_recipe_is_followed_through_aliases_helpers_and_modules(tree: Path) -> None:
    run = read_config(f"{tree}/perf_recipes/gb200.py:big_pretrain_256gpu_gb200_fp8mx_config")
    assert run.framework == "megatron-bridge"
    assert (run.tp, run.pp, run.vpp, run.ep, run.devices) == (1, 4, 4, 64, 256)
    assert (run.global_batch, run.micro_batch, run.seq_len) == (2048, 1, 4096)
    assert (run.precision, run.recompute) == ("mxfp8", "selective modules: mla_up_proj")
    assert (run.zero_stage, run.model.num_layers) == (1, 61)
    assert run.contradictions == ()


def test_an_alias_names_the_recipe_of_another_file(tree: Path) -> None:
    run = read_config(f"{tree}/recipes/big.py:big_pretrain_config")
    assert (run.tp, run.pp, run.devices, run.precision) == (2, 16, 1024, "bf16")


def test_a_changed_recipe_changes_one_value(tree: Path) -> None:
    run = read_config(f"{tree}/perf_recipes/gb200.py:small_scale_config")
    assert (run.global_batch, run.pp) == (256, 4)


def test_a_function_of_a_missing_module_answers_for_no_default(tree: Path) -> None:
    (tree / "recipes" / "common.py").unlink()
    run = read_config(f"{tree}/recipes/h100/big.py:big_pretrain_1024gpu_h100_bf16_config")
    assert [each.option for each in run.unresolved] == ["_pretrain_common"]
    assert "cp" not in run.defaults


def test_an_unknown_function_names_the_nearest(tree: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'small_scale_config'"):
        read_config(f"{tree}/perf_recipes/gb200.py:small_scale_conf")


def test_a_file_with_several_recipes_lists_them(tree: Path) -> None:
    run = read_config(tree / "perf_recipes" / "gb200.py")
    (why,) = [each.why for each in run.unresolved]
    assert why.endswith("name one (gb200.py:big_pretrain_256gpu_gb200_fp8mx_config)")


def test_a_replaced_part_keeps_nothing_of_the_old_one(tmp_path: Path) -> None:
    """torchtitan's registry: the second function replaces `parallelism` as a whole."""
    text = """from . import model_registry

def debug() -> Trainer.Config:
    model_spec = model_registry("8B")
    return Trainer.Config(
        model_spec=model_spec,
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=8 * 2048, max_context_length=2048
        ),
        parallelism=ParallelismConfig(tensor_parallel_degree=4, pipeline_parallel_degree=2),
    )

def changed() -> Trainer.Config:
    config = debug()
    config.parallelism = ParallelismConfig(pipeline_parallel_degree=4)
    return config
"""
    path = tmp_path / "config_registry.py"
    path.write_text(text)
    first, second = (read_config(f"{path}:{name}") for name in ("debug", "changed"))
    assert (first.tp, first.pp, first.micro_batch) == (4, 2, 8)
    assert (second.tp, second.pp, second.micro_batch) == (None, 4, 8)
    assert second.defaults["tp"].value == 1


def test_a_function_of_no_configuration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def f():\n    return 1\n")
    with pytest.raises(DocumentError, match=r"a\.py:f: no configuration of a framework"):
        read_config(f"{path}:f")


def test_the_family_of_a_registry_s_function(tmp_path: Path) -> None:
    text = """from . import model_registry

def rl_grpo_qwen3() -> Trainer.Config:
    return Trainer.Config(model_spec=model_registry("8B"), training=TrainingConfig(seq_len=4096))

def qwen3_0_6b() -> Trainer.Config:
    return Trainer.Config(model_spec=model_registry("0.6B"), training=TrainingConfig(seq_len=4096))
"""
    path = tmp_path / "config_registry.py"
    path.write_text(text)
    layers = [read_config(f"{path}:{n}").model.num_layers for n in ("rl_grpo_qwen3", "qwen3_0_6b")]
    assert layers == [36, 28]


@pytest.mark.parametrize(
    ("call", "optimizer", "unresolved"),
    [("_dist_muon_optimizer(lr=1)", "muon", []), ("_other(lr=1)", None, ["optimizer"])],
)
def test_a_called_optimizer_is_read_or_left_open(
    tmp_path: Path, call: str, optimizer: str | None, unresolved: list[str]
) -> None:
    path = tmp_path / "config_registry.py"
    path.write_text(
        "from . import model_registry\n\ndef debug() -> Trainer.Config:\n"
        '    return Trainer.Config(model_spec=model_registry("8B"),\n'
        f"        optimizer={call}, training=TrainingConfig(max_context_length=2048))\n"
    )
    run = read_config(f"{path}:debug")
    assert run.optimizer == optimizer
    assert ("optimizer" in run.defaults, [one.option for one in run.unresolved]) == (
        False, unresolved,
    )  # fmt: skip
