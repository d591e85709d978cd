"""Forms of public recipes of 2026: verl's overrides, Primus's backends, files that are named from
the root of their repository."""

from __future__ import annotations

from pathlib import Path

from shardwright_frameworks.reading.read_config import read_config

VERL = """set -x
PP=2
response=1024
python3 -m verl.trainer.main_ppo --config-path=config --config-name=ppo_megatron_trainer \\
    data.max_prompt_length=1024 data.max_response_length=$response data.train_batch_size=512 \\
    actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 {batch} \\
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=$PP \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \\
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=4 \\
    actor_rollout_ref.ref.megatron.tensor_model_parallel_size=4 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=8 actor_rollout_ref.rollout.n=4 \\
    trainer.n_gpus_per_node=8 trainer.nnodes=2
"""
PRIMUS = """
modules:
  pre_trainer:
    framework: torchtitan
    config: pre_trainer.yaml
    model: {model}.yaml
    overrides:
      training:
        local_batch_size: 2
        seq_len: 8192
      parallelism:
        tensor_parallel_degree: 8
      activation_checkpoint:
        mode: full
"""


def test_verl_trains_with_the_degrees_of_its_actor(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(VERL.format(batch="actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2"))
    run = read_config(path)
    assert run.framework == "verl"
    assert (run.tp, run.pp, run.ep, run.devices, run.dp) == (2, 2, 4, 16, 4)
    # 64 prompts of 4 responses each.
    assert (run.micro_batch, run.global_batch, run.seq_len) == (2, 256, 2048)
    assert run.model.num_layers == 48
    assert run.answer("zero_stage") == 1
    assert run.contradictions == ()


def test_a_budget_of_tokens_is_no_micro_batch(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    dynamic = "actor_rollout_ref.actor.use_dynamic_bsz=True"
    both = f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 {dynamic}"
    path.write_text(VERL.format(batch=both))
    run = read_config(path)
    assert run.answer("micro_batch") is None
    assert any("use_dynamic_bsz" in each.option for each in run.unresolved)


def test_primus_starts_torchtitan(tmp_path: Path) -> None:
    path = tmp_path / "llama.yaml"
    path.write_text(PRIMUS.format(model="llama3.1_70B"))
    run = read_config(path)
    assert (run.framework, run.tp, run.micro_batch, run.seq_len) == ("torchtitan", 8, 2, 8192)
    assert (run.recompute, run.model.num_layers) == ("full", 80)
    assert (run.answer("zero_stage"), run.answer("precision")) == (3, "bf16")
    path.write_text(PRIMUS.format(model="llama3.1_70B-fp8"))
    assert read_config(path).precision == "fp8"


def test_a_file_is_named_from_the_root_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "zero2.json").write_text('{"zero_optimization": {"stage": 2}}')
    repository = tmp_path / "repository"
    (repository / "examples" / "llama").mkdir(parents=True)
    (repository / "shared").mkdir()
    (repository / "pyproject.toml").write_text("")
    (repository / "shared" / "zero3.json").write_text('{"zero_optimization": {"stage": 3}}')
    path = repository / "examples" / "llama" / "fft.yaml"
    text = "base_model: a/b\ndatasets: []\nmicro_batch_size: 1\nbf16: auto\ndeepspeed: {file}\n"
    path.write_text(text.format(file="shared/zero3.json"))
    run = read_config(path)
    assert (run.zero_stage, run.answer("precision")) == (3, "bf16")
    # Nothing above the repository is read.
    path.write_text(text.format(file="outside/zero2.json"))
    run = read_config(path)
    assert run.zero_stage is None
    assert [each.option for each in run.unresolved] == ["deepspeed"]


BRIDGE = """
from megatron.bridge import AutoBridge

def large_pretrain_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-70B").get_model_config()
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.recompute_granularity = None
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 128
    return cfg

def wide_pretrain_config():
    cfg = large_pretrain_config()
    cfg.model.tensor_model_parallel_size = 8
    return cfg
"""


def test_a_recipe_of_a_model_of_the_hub(tmp_path: Path) -> None:
    path = tmp_path / "known_models.py"
    path.write_text(BRIDGE)
    run = read_config(f"{path}:wide_pretrain_config")
    assert (run.framework, run.tp, run.pp) == ("megatron-bridge", 8, 2)
    assert (run.recompute, run.model.num_layers) == ("none", 80)


def test_an_open_accumulation_leaves_the_batch_open(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "NPROC_PER_NODE=4 swift sft --model Qwen/Qwen3-8B --tuner_type full "
        "--per_device_train_batch_size 1 --gradient_accumulation_steps $(python batch.py 4)\n"
    )
    run = read_config(path)
    assert run.answer("global_batch") is None
    assert [each.option for each in run.unresolved] == ["--gradient_accumulation_steps"]
