"""Trainers of policies (NeMo RL, verl, OpenRLHF), NeMo Automodel, and experts of old nanotron."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.imported_run import ImportedRun
from shardwright_frameworks.reading.read_config import read_config

BASE = """
policy:
  model_name: Qwen/Qwen3-8B
  train_global_batch_size: 512
  train_micro_batch_size: 4
  max_total_sequence_length: 2048
  precision: bfloat16
  dtensor_cfg: {enabled: true, tensor_parallel_size: 2, activation_checkpointing: false}
  megatron_cfg:
    enabled: false
    tensor_model_parallel_size: 1
    pipeline_model_parallel_size: 1
    activation_checkpointing: false
    recompute_granularity: full
    optimizer: {optimizer: adam, use_distributed_optimizer: true}
    fp8_cfg: {enabled: false, fp8: e4m3}
  generation: {colocated: {enabled: true}, vllm_cfg: {tensor_parallel_size: 4}}
cluster: {num_nodes: 1, gpus_per_node: 8}
"""
RECIPE = """
defaults: ../base.yaml
policy:
  train_micro_batch_size: 1
  dtensor_cfg: {enabled: false}
  megatron_cfg:
    enabled: true
    pipeline_model_parallel_size: 4
    activation_checkpointing: true
cluster: {num_nodes: 4}
"""
LEAF = """
defaults: recipes/four.yaml
policy:
  max_total_sequence_length: 4096
  generation: {colocated: {enabled: false, resources: {num_nodes: 1, gpus_per_node: 8}}}
"""
AUTOMODEL = """
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 64, local_batch_size: 8}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B
  torch_dtype: torch.bfloat16
distributed:
  strategy: fsdp2
  tp_size: 1
  ep_size: 8
  activation_checkpointing: true
packed_sequence: {packed_sequence_size: 4096}
optimizer: {_target_: torch.optim.AdamW, lr: 1.0e-5}
"""


def _tree(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("")
    (folder / "recipes").mkdir()
    (folder / "base.yaml").write_text(BASE)
    (folder / "recipes" / "four.yaml").write_text(RECIPE)
    (folder / "leaf.yaml").write_text(LEAF)


def test_nemo_rl_follows_defaults_from_folder_to_folder(tmp_path: Path) -> None:
    _tree(tmp_path)
    run = read_config(tmp_path / "recipes" / "four.yaml")
    assert (run.framework, run.tp, run.pp, run.devices, run.dp) == ("nemo-rl", 1, 4, 32, 8)
    assert (run.micro_batch, run.global_batch, run.seq_len) == (1, 512, 2048)
    assert (run.recompute, run.zero_stage, run.precision) == ("full", 1, "bf16")
    assert run.model.num_layers == 36
    assert run.files == ("four.yaml", "base.yaml")
    assert run.contradictions == ()


def test_nodes_that_generate_do_not_train(tmp_path: Path) -> None:
    _tree(tmp_path)
    run = read_config(tmp_path / "leaf.yaml")
    assert (run.nodes, run.devices, run.seq_len) == (3, 24, 4096)
    assert run.files == ("leaf.yaml", "base.yaml", "recipes/four.yaml")


def test_nemo_rl_s_own_engine(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(BASE)
    run = read_config(tmp_path / "run.yaml")
    assert (run.tp, run.dp, run.recompute) == (2, 4, "none")
    assert run.answer("zero_stage") == 3
    assert run.unused == ()


def test_a_missing_file_of_defaults_leaves_degrees_open(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RECIPE)
    run = read_config(tmp_path / "run.yaml")
    assert [each.option for each in run.unresolved] == ["defaults"]
    assert run.answer("tp") is None


def _automodel(folder: Path, text: str) -> ImportedRun:
    (folder / "run.yaml").write_text(text)
    return read_config(folder / "run.yaml")


def test_automodel_shards_with_fsdp_and_experts_apart(tmp_path: Path) -> None:
    run = _automodel(tmp_path, AUTOMODEL)
    assert (run.framework, run.tp, run.ep, run.zero_stage) == ("automodel", 1, 8, 3)
    assert (run.micro_batch, run.global_batch, run.seq_len) == (8, 64, 4096)
    assert (run.recompute, run.precision, run.optimizer) == ("full", "bf16", "adamw")
    assert run.model.num_experts == 128


@pytest.mark.parametrize(
    ("more", "stage"),
    [("", 2), ("  reshard_after_forward: true\n", 3)],
)
def test_automodel_s_pipeline_keeps_weights_and_splits_the_batch(
    tmp_path: Path, more: str, stage: int
) -> None:
    pipeline = (
        f"distributed:\n{more}  pp_size: 4\n"
        "  pipeline: {pp_schedule: interleaved1f1b, pp_microbatch_size: 1}\n"
    )
    run = _automodel(tmp_path, AUTOMODEL.replace("distributed:\n", pipeline))
    assert (run.pp, run.micro_batch, run.schedule) == (4, 1, "interleaved")
    assert run.zero_stage == stage


def test_automodel_trains_adapters_over_four_bits_in_fp8(tmp_path: Path) -> None:
    more = (
        "peft: {_target_: nemo_automodel.components._peft.lora.PeftConfig, dim: 16}\n"
        "quantization: {load_in_4bit: true}\nfp8: {enabled: true}\n"
    )
    run = _automodel(tmp_path, AUTOMODEL + more)
    assert (run.model.lora_rank, run.base_precision, run.precision) == (16, "nf4", "fp8")


def test_verl_s_offloads_are_between_updates(tmp_path: Path) -> None:
    actor = "actor_rollout_ref.actor"
    text = (
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B "
        f"{actor}.fsdp_config.optimizer_offload=True {actor}.fsdp_config.param_offload=False "
        f"{actor}.ppo_mini_batch_size=64 trainer.nnodes=1 trainer.n_gpus_per_node=8\n"
    )
    (tmp_path / "run.sh").write_text(text)
    run = read_config(tmp_path / "run.sh")
    assert run.optimizer_offload is None
    (unused,) = run.unused
    assert unused.option == f"{actor}.fsdp_config.optimizer_offload"
    assert "on the device again during each update" in unused.why
    # FSDP2's policy and Megatron's optimizer on the CPU are in use during it.
    policy = text.replace("optimizer_offload=True", "offload_policy=True")
    (tmp_path / "run.sh").write_text(policy)
    assert read_config(tmp_path / "run.sh").optimizer_offload is True


def test_openrlhf_s_actor_is_the_run(tmp_path: Path) -> None:
    text = (
        "python3 -m openrlhf.cli.train_ppo_ray --critic.num_nodes 4 --actor.num_nodes 2 "
        "--actor.num_gpus_per_node 8 --actor.model_name_or_path Qwen/Qwen3-8B --ds.zero_stage 3 "
        "--train.batch_size 128 --train.micro_batch_size 2 --actor.gradient_checkpointing_enable {}"
    )
    (tmp_path / "run.sh").write_text(text.format(""))
    run = read_config(tmp_path / "run.sh")
    assert (run.devices, run.dp, run.zero_stage, run.recompute) == (16, 16, 3, "full")
    assert (run.micro_batch, run.global_batch, run.model.num_layers) == (2, 128, 36)
    assert "only the actor" in run.unresolved[0].why
    (tmp_path / "run.sh").write_text(text.format("--train.dynamic_batch_enable"))
    assert read_config(tmp_path / "run.sh").micro_batch is None


def test_ranks_of_old_nanotron_s_experts_are_no_replicas(tmp_path: Path) -> None:
    text = """
model: {dtype: bfloat16, model_config: {num_hidden_layers: 2, hidden_size: 64, NAME: 4}}
parallelism: {dp: 2, tp: 2, pp: 1, expert_parallel_size: 2}
tokens: {micro_batch_size: 4, sequence_length: 128, batch_accumulation_per_replica: 2}
"""
    path = tmp_path / "run.yaml"
    path.write_text(text.replace("NAME", "moe_num_experts"))
    run = read_config(path)
    assert (run.ep, run.contradictions) == (None, ())
    assert [each.option for each in run.unresolved] == ["parallelism.expert_parallel_size"]
