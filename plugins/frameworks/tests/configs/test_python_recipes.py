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
    with pytest.raises(DocumentError, match=r"a\.py:f: no configuration of a known framework"):
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


NEMO = """import nemo_run as run
from nemo import lightning as nl
from nemo.collections.llm.recipes.precision import bf16_mixed

def trainer(tensor_parallelism: int = 4, num_nodes: int = 1, devices: int = 8):
    strategy = run.Config(
        nl.MegatronStrategy, tensor_model_parallel_size=tensor_parallelism,
        pipeline_model_parallel_size=2,
    )
    trainer = run.Config(
        nl.Trainer, devices=devices, num_nodes=num_nodes, plugins=bf16_mixed(), strategy=strategy
    )
    return trainer

def pretrain_recipe(fn=pretrain, num_nodes: int = 2, performance_mode: bool = False):
    recipe = run.Partial(
        fn, trainer=trainer(num_nodes=num_nodes),
        data=run.Config(MockDataModule, seq_length=8192, global_batch_size=512, micro_batch_size=1),
    )
    if performance_mode:
        recipe.trainer.strategy.tensor_model_parallel_size = 8
    return recipe
"""


def test_functions_that_give_parts_are_followed_with_their_arguments(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(NEMO)
    run = read_config(f"{tmp_path}/a.py:pretrain_recipe")
    assert (run.tp, run.pp, run.devices, run.precision) == (4, 2, 16, "bf16")
    assert (run.global_batch, run.micro_batch, run.seq_len) == (512, 1, 8192)
    assert run.contradictions == ()


@pytest.mark.parametrize(
    ("condition", "tp"),
    [("scheme == 'lora'", 8), ("scheme.lower() in ['dora', None]", 4), ("unknown", None)],
)
def test_a_condition_is_followed_or_leaves_its_value_open(
    tmp_path: Path, condition: str, tp: int | None
) -> None:
    (tmp_path / "a.py").write_text(
        "import nemo_run as run\n\ndef finetune_recipe(scheme='lora'):\n"
        "    recipe = run.Partial(f, data=run.Config(D, micro_batch_size=1))\n"
        "    recipe.trainer.strategy.tensor_model_parallel_size = 4\n"
        f"    if {condition}:\n"
        "        recipe.trainer.strategy.tensor_model_parallel_size = 8\n"
        "    return recipe\n"
    )
    run = read_config(f"{tmp_path}/a.py:finetune_recipe")
    assert run.tp == tp
    assert ("tp" in run.defaults, bool(run.unresolved)) == (False, tp is None)


def test_a_launch_of_a_recipe_by_its_name_follows_the_recipe(tree: Path) -> None:
    root = tree.parents[2]
    (root / ".git").mkdir()
    (tree / "recipes" / "__init__.py").write_text("from megatron.bridge.recipes.big import *\n")
    path = root / "examples" / "launch.sh"
    path.parent.mkdir()
    command = "torchrun --nproc_per_node 8 --nnodes 128 scripts/training/run_recipe.py"
    overrides = "model.tensor_model_parallel_size=4 train.micro_batch_size=2"
    path.write_text(f"{command} --recipe big_pretrain_config {overrides}\n")
    run = read_config(path)
    assert (run.tp, run.pp, run.ep, run.micro_batch, run.devices) == (4, 16, 64, 2, 1024)
    assert run.model.name == "deepseek-ai/DeepSeek-V3"
    path.write_text(f"{command} --recipe qwen_pretrain_config {overrides}\n")
    run = read_config(path)
    assert (run.tp, run.pp, run.model.name) == (4, None, "qwen")
    assert "pp" not in run.defaults


def test_a_part_that_nobody_knows_has_no_defaults(tmp_path: Path) -> None:
    (tmp_path / "config_registry.py").write_text(
        "from . import model_registry\n\ndef debug() -> Trainer.Config:\n"
        '    return Trainer.Config(model_spec=model_registry("8B"),\n'
        "        parallelism=elsewhere(), training=TrainingConfig(max_context_length=2048))\n"
    )
    run = read_config(f"{tmp_path}/config_registry.py:debug")
    assert not {"tp", "pp", "zero_stage"} & run.defaults.keys()
    assert [one.option for one in run.unresolved] == ["parallelism"]


def test_a_copy_of_a_configuration_keeps_its_parts(tmp_path: Path) -> None:
    """torchtitan's graph trainer copies another trainer's configuration field by field."""
    (tmp_path / "config_registry.py").write_text(
        "from dataclasses import fields, replace\nfrom . import model_registry\n\n"
        'def base():\n    return Trainer.Config(model_spec=model_registry("8B"),\n'
        "        parallelism=ParallelismConfig(tensor_parallel_degree=8),\n"
        "        training=TrainingConfig(max_context_length=2048),\n"
        "        activation_checkpoint=FullAC.Config())\n\n"
        "def copied(config):\n"
        "    d = {f.name: getattr(config, f.name) for f in fields(config)}\n"
        '    d["parallelism"] = replace(config.parallelism, spmd_backend="x")\n'
        '    if d.get("activation_checkpoint") is not None:\n'
        '        d["activation_checkpoint"] = SelectiveAC.Config()\n'
        "    return Other.Config(**d)\n\n"
        "def graph():\n    return copied(base())\n"
    )
    run = read_config(f"{tmp_path}/config_registry.py:graph")
    assert (run.tp, run.seq_len, run.recompute, run.model.flavor) == (8, 2048, "selective", "8B")


def test_the_generator_of_reinforcement_learning_has_degrees_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config_registry.py").write_text(
        "from . import model_registry\n\ndef rl():\n"
        '    return Controller.Config(model_spec=model_registry("8B"),\n'
        "        async_loop=Loop(num_prompts_per_train_step=8, num_samples_per_prompt=4),\n"
        "        trainer=Policy.Config(training=TrainingConfig(seq_len=2048),\n"
        "            parallelism=ParallelismConfig(tensor_parallel_degree=2)),\n"
        "        generator=V.Config(parallelism=P(tensor_parallel_degree=4)))\n"
    )
    run = read_config(f"{tmp_path}/config_registry.py:rl")
    assert (run.tp, run.global_batch) == (2, 32)


def test_matmuls_in_few_bits_and_the_switch_of_both_optimizers(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "from megatron.bridge.training.config import ConfigContainer\n\n"
        "def precision():\n    cfg = MixedPrecisionConfig(bf16=True)\n"
        '    cfg.fp4, cfg.fp4_recipe = "e2m1", "nvfp4"\n    return cfg\n\n'
        "def small_config() -> ConfigContainer:\n    cfg = ConfigContainer(\n"
        "        optimizer=OptimizerConfig(use_distributed_optimizer=True))\n"
        "    cfg.mixed_precision = precision()\n"
        "    cfg.model.tensor_model_parallel_size = 2\n"
        "    cfg.ddp.use_distributed_optimizer = False\n    return cfg\n"
    )
    run = read_config(f"{tmp_path}/a.py:small_config")
    assert (run.precision, run.zero_stage, run.contradictions) == ("nvfp4", 1, ())
