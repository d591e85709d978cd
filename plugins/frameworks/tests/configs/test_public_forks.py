"""Causes of wrong or missing values in files of forks and labs, each with a separate example."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.unused_keys import report_unused
from shardwright_frameworks.imported_run import ImportedRun
from shardwright_frameworks.reading.read_config import read_config
from shardwright_frameworks.shell.text_marks import Place

from profiles.errors import DocumentError

MEGATRON = (
    "torchrun --nproc_per_node 8 {} --num-layers 4 --hidden-size 64 "
    "--num-attention-heads 4 --micro-batch-size 1 --seq-length 512\n"
)


def read(folder: Path, name: str, text: str) -> ImportedRun:
    path = folder / name
    path.write_text(text)
    return read_config(path)


def unresolved(run: ImportedRun) -> list[str]:
    return [each.option for each in run.unresolved]


def unused(run: ImportedRun) -> list[str]:
    return [each.option for each in run.unused]


# A part of a configuration has no defaults: the file that it changes decides.


def test_changes_of_an_unnamed_recipe_of_bridge_have_no_defaults(tmp_path: Path) -> None:
    text = (
        "model: {tensor_model_parallel_size: 1, pipeline_model_parallel_size: 4, seq_length: 64}\n"
        "train: {micro_batch_size: 1, global_batch_size: 8}\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.pp, run.vpp, run.defaults) == (4, None, {})
    assert unresolved(run) == ["recipe"]


def test_changes_of_an_unnamed_file_of_nemo_rl_have_no_defaults(tmp_path: Path) -> None:
    text = (
        "policy:\n  train_micro_batch_size: 1\n  dtensor_cfg: {enabled: false}\n"
        "  megatron_cfg: {enabled: true, activation_checkpointing: true}\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.micro_batch, run.recompute, run.defaults) == (1, "full", {})
    assert unresolved(run) == ["defaults"]


def test_a_file_of_a_separate_training_loop_has_no_defaults_of_the_trainer(tmp_path: Path) -> None:
    text = (
        "model_name_or_path: meta-llama/Meta-Llama-3-8B\nper_device_train_batch_size: 1\n"
        "gradient_accumulation_steps: 4\nlearning_rate: 1e-5\nmax_seq_length: 4096\n"
        "with_tracking: true\ncheckpointing_steps: epoch\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.micro_batch, run.seq_len) == (1, 4096)
    assert not {"precision", "recompute", "zero_stage"} & run.defaults.keys()
    assert unresolved(run) == ["with_tracking"]


# Models of other blocks.


@pytest.mark.parametrize("program", ["pretrain_t5.py", "pretrain_bert.py", "pretrain_vlm.py"])
def test_a_model_that_is_no_decoder_is_named(tmp_path: Path, program: str) -> None:
    run = read(tmp_path, "a.sh", MEGATRON.format(program))
    assert unresolved(run) == [program]
    assert (run.model.num_layers is None) == (program == "pretrain_t5.py")
    assert unresolved(read(tmp_path, "b.sh", MEGATRON.format("pretrain_gpt.py"))) == []


def test_blocks_without_attention_of_neox_are_named(tmp_path: Path) -> None:
    text = (
        '{"pipe_parallel_size": 0, "model_parallel_size": 1, "num_layers": 24,\n'
        '"hidden_size": 768, "num_attention_heads": 12, "attention_config": [[["KIND"], 24]]}'
    )
    run = read(tmp_path, "a.yml", text.replace("KIND", "mamba"))
    assert unresolved(run) == ["attention_config"]
    assert unresolved(read(tmp_path, "b.yml", text.replace("KIND", "flash"))) == []


# Commands in a container.


@pytest.mark.parametrize(
    "start",
    [
        'docker exec sft bash -lc "NPROC_PER_NODE=4 {}"',
        "docker exec -e NPROC_PER_NODE=4 -e A=b sft {}",
        "docker run --rm --gpus all -e NPROC_PER_NODE=4 image:1 {}",
        "podman exec --env NPROC_PER_NODE=4 sft {}",
    ],
)
def test_a_command_in_a_container_is_followed(tmp_path: Path, start: str) -> None:
    command = "swift sft --model Qwen/Qwen3-8B --tuner_type full --max_length 2048"
    run = read(tmp_path, "a.sh", start.format(command) + "\n")
    assert (run.framework, run.devices, run.seq_len) == ("ms-swift", 4, 2048)


# Single keys.


def test_openrlhf_adds_the_lengths_of_prompt_and_answer(tmp_path: Path) -> None:
    command = "python3 -m openrlhf.cli.train_ppo_ray --train_batch_size 8"
    run = read(tmp_path, "a.sh", f"{command} --prompt_max_len 1024 --generate_max_len 512\n")
    assert run.seq_len == 1536


TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
mixed_precision_reduce = "bfloat16"
[parallelism]
tensor_parallel_degree = 8
expert_parallel_degree = 1
expert_tensor_parallel_degree = 8
[metrics]
log_freq = 1
"""


def test_tensor_parallel_experts_of_torchtitan_need_spread_experts(tmp_path: Path) -> None:
    run = read(tmp_path, "a.toml", TITAN)
    assert (run.etp, unused(run)) == (None, ["parallelism.expert_tensor_parallel_degree"])
    text = TITAN.replace("expert_parallel_degree = 1", "expert_parallel_degree = 2")
    assert read(tmp_path, "b.toml", text).etp == 8


def test_torchtitan_names_the_type_of_reduced_gradients(tmp_path: Path) -> None:
    assert read(tmp_path, "a.toml", TITAN).gradient_reduction == "bf16"


def test_axes_of_one_device_of_maxtext_are_used(tmp_path: Path) -> None:
    axes = ("data", "fsdp", "sequence", "context", "tensor", "pipeline", "expert")
    text = "".join(f"{part}_{axis}_parallelism: 1\n" for part in ("dcn", "ici") for axis in axes)
    run = read(tmp_path, "a.yml", f"{text}per_device_batch_size: 1\nmax_target_length: 64\n")
    assert (run.devices, unused(run)) == (1, [])


def test_quantized_training_of_torchtune_is_named(tmp_path: Path) -> None:
    text = (
        "model: {_component_: torchtune.models.llama3_2.llama3_2_1b}\nbatch_size: 4\n"
        "tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 64}\n"
        "optimizer: {_component_: torch.optim.AdamW}\ndtype: bf16\n"
        "quantizer: {_component_: torchtune.training.quantization.Int8WeightQATQuantizer}\n"
    )
    assert "quantizer._component_" in unused(read(tmp_path, "a.yaml", text))


def test_frozen_parts_of_a_model_are_named(tmp_path: Path) -> None:
    text = (
        "model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct\nfinetuning_type: full\n"
        "cutoff_len: 2048\nper_device_train_batch_size: 1\noutput_dir: a\n"
        "freeze_vision_tower: true\nfreeze_language_model: false\n"
    )
    assert unused(read(tmp_path, "a.yaml", text)) == ["freeze_vision_tower"]


def test_the_reference_of_a_policy_is_named(tmp_path: Path) -> None:
    command = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-0.6B"
    switch = "actor_rollout_ref.actor.use_kl_loss"
    assert switch in unresolved(read(tmp_path, "a.sh", f"{command} {switch}=True\n"))
    assert switch not in unresolved(read(tmp_path, "b.sh", f"{command} {switch}=False\n"))
    text = (
        "policy: {model_name: Qwen/Qwen3-0.6B, train_micro_batch_size: 1,\n"
        "  dtensor_cfg: {enabled: true, tensor_parallel_size: 1}}\n"
        "grpo: {num_prompts_per_step: 8}\n"
    )
    assert unresolved(read(tmp_path, "a.yaml", text)) == ["grpo"]


@pytest.mark.parametrize(
    ("size", "stage", "groups"), [(-1, 3, None), (1, 0, None), (2, 3, 4), (8, 3, None)]
)
def test_groups_of_shards_of_verl(
    tmp_path: Path, size: int, stage: int, groups: int | None
) -> None:
    words = f"trainer.n_gpus_per_node=8 actor_rollout_ref.actor.fsdp_config.fsdp_size={size}"
    run = read(tmp_path, "a.sh", f"python3 -m verl.trainer.main_ppo {words}\n")
    assert (run.answer("zero_stage"), run.dp_replicate, unresolved(run)) == (stage, groups, [])


def test_swift_shards_as_a_file_says(tmp_path: Path) -> None:
    command = "NPROC_PER_NODE=2 swift sft --model Qwen/Qwen3-8B --tuner_type full --fsdp"
    file = (
        '{"fsdp": "full_shard auto_wrap offload",\n'
        '"fsdp_config": {"reshard_after_forward": false, "activation_checkpointing": true}}'
    )
    script = f"OUT=/out/$(date)\ncat > $OUT/fsdp.json <<'EOF'\n{file}\nEOF\n"
    run = read(tmp_path, "a.sh", f"{script}{command} $OUT/fsdp.json\n")
    assert (run.zero_stage, run.optimizer_offload, run.recompute) == (2, True, "full")
    assert unresolved(run) == []
    assert read(tmp_path, "b.sh", f"{command} fsdp2\n").zero_stage == 3


def test_a_used_key_hides_no_other_of_its_line(tmp_path: Path) -> None:
    actor = "actor_rollout_ref.actor"
    words = (
        f"actor_rollout_ref.model.path=Qwen/Qwen3-0.6B {actor}.fsdp_config.dtype=bfloat16 "
        f"{actor}.optim.dtype=float32 actor_rollout_ref.model.override_config.dtype=float32"
    )
    run = read(tmp_path, "a.sh", f"python3 -m verl.trainer.main_ppo {words}\n")
    assert f"{actor}.optim.dtype" in unused(run)


@pytest.mark.parametrize(
    ("guarded", "missing"),
    [
        ("[ -f a.env ] && source a.env", []),
        ('if [[ -e "$HOME/a.env" ]]; then . "$HOME/a.env"; fi', []),
        ("[ ! -f a.env ] && source a.env", ["source"]),
        ("[ -f b.env ] && source a.env", ["source"]),
    ],
)
def test_a_file_that_a_script_can_do_without(
    tmp_path: Path, guarded: str, missing: list[str]
) -> None:
    run = read(tmp_path, "a.sh", f"{guarded}\n{MEGATRON.format('pretrain_gpt.py')}")
    assert unresolved(run) == missing


def test_degrees_of_cores_are_named(tmp_path: Path) -> None:
    command = (
        "xpk workload create --device-type=tpu7x-4x4x4 --command='python3 -m maxtext.train base.yml"
        " model_name=llama3.1-70b per_device_batch_size=1 max_target_length=64 {}'\n"
    )
    run = read(tmp_path, "a.sh", command.format("ici_tensor_parallelism=2"))
    assert (run.devices, run.tp, unresolved(run)) == (64, 2, ["device"])
    assert unresolved(read(tmp_path, "b.sh", command.format("ici_fsdp_parallelism=128"))) == []


def test_keys_of_a_base_file_are_known_to_its_program(tmp_path: Path) -> None:
    (tmp_path / "base.yml").write_text("own_of_a_fork: 1\nper_device_batch_size: 1\n")
    command = "python3 -m MaxText.train base.yml model_name=llama2-7b max_target_length=64"
    assert read(tmp_path, "a.sh", f"{command}\n").unknown == ()
    run = read(tmp_path, "b.sh", f"{command} misspelled=2\n")
    assert [each.option for each in run.unknown] == ["misspelled"]


def test_sections_that_nanotron_does_not_have_are_named(tmp_path: Path) -> None:
    text = (
        "general: {run: a}\ninfini_attention: {segment_length: 1024}\n"
        "model: {model_config: {num_hidden_layers: 1}}\n"
        "parallelism: {dp: 1, tp: 1, pp: 1}\ntokens: {micro_batch_size: 1, sequence_length: 64}\n"
    )
    found = [each.option for each in read(tmp_path, "a.yaml", text).unknown]
    assert found == ["infini_attention"]


def test_an_encoder_of_images_is_named(tmp_path: Path) -> None:
    command = MEGATRON.format("multimodal/train.py --tensor-model-parallel-size 1").strip()
    assert unresolved(read(tmp_path, "a.sh", f"{command} --patch-dim 14\n")) == ["--patch-dim"]


def test_parts_of_torchtune_that_are_not_trained_are_named(tmp_path: Path) -> None:
    text = (
        "model: {_component_: torchtune.models.llama3_2_vision.llama3_2_vision_11b,\n"
        "  decoder_trainable: false, encoder_trainable: true}\nbatch_size: 4\n"
    )
    assert unused(read(tmp_path, "a.yaml", text)) == ["model.decoder_trainable"]


def test_the_actor_has_some_nodes_of_a_job(tmp_path: Path) -> None:
    words = "--actor_num_nodes 1 --actor_num_gpus_per_node 4 --train_batch_size 8"
    script = f"#SBATCH -N 2\nsrun python3 -m openrlhf.cli.train_ppo_ray {words}\n"
    run = read(tmp_path, "a.sh", script)
    assert (run.devices, run.contradictions) == (4, ())


def test_keys_with_dashes_of_a_file_are_used(tmp_path: Path) -> None:
    text = "MODEL_ARGS:\n  --num-layers: 4\n  --hidden-size: 64\n  --micro-batch-size: 2\n"
    run = read(tmp_path, "a.yaml", text)
    assert (run.micro_batch, unused(run)) == (2, [])


def test_swift_computes_in_the_type_of_mixed_precision(tmp_path: Path) -> None:
    command = "swift sft --model Qwen/Qwen3-8B --tuner_type full --torch_dtype float32"
    assert read(tmp_path, "a.sh", f"{command}\n").precision == "fp32"
    run = read(tmp_path, "b.sh", f"{command} --bf16 true\n")
    assert (run.precision, run.contradictions) == ("bf16", ())


def test_the_launcher_of_a_driver_starts_no_ranks(tmp_path: Path) -> None:
    command = "python3 -m verl.trainer.main_ppo trainer.nnodes=4 trainer.n_gpus_per_node=8"
    header = "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\n"
    words = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=8"
    run = read(tmp_path, "a.sh", f"{header}srun --nodes=1 --ntasks=1 {command} {words}\n")
    assert (run.devices, run.dp, run.contradictions) == (32, 4, ())


def test_accelerate_counts_the_ranks_of_swift(tmp_path: Path) -> None:
    (tmp_path / "fsdp.json").write_text(
        '{"distributed_type": "FSDP", "num_processes": 8, "num_machines": 1}'
    )
    command = "accelerate launch --config_file fsdp.json swift/cli/sft.py --model Qwen/Qwen3-8B"
    run = read(tmp_path, "a.sh", f"{command}\n")
    assert (run.devices, run.contradictions) == (8, ())


def test_a_diffusion_model_is_refused(tmp_path: Path) -> None:
    command = "python3 -m src.maxdiffusion.train_sdxl base_xl.yml per_device_batch_size=1"
    with pytest.raises(DocumentError, match="no configuration of a known framework"):
        read(tmp_path, "a.sh", f"{command} ici_fsdp_parallelism=4 dcn_data_parallelism=1\n")


def test_keys_that_are_comments_are_no_options(tmp_path: Path) -> None:
    assert (
        read(
            tmp_path,
            "ds.json",
            '{"_note": "a", "zero_optimization": {"stage": 2},\n'
            '"train_micro_batch_size_per_gpu": 1}',
        ).unknown
        == ()
    )


def test_the_second_engine_of_nemo_rl_is_read(tmp_path: Path) -> None:
    text = (
        "policy:\n  model_name: Qwen/Qwen3-0.6B\n  dtensor_cfg: {enabled: false}\n"
        "  dtensor_v2_cfg: {enabled: true, tensor_parallel_size: 2, pipeline_parallel_size: 4,\n"
        "    activation_checkpointing: true}\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.tp, run.pp, run.recompute, unused(run)) == (2, 4, "full", [])


def test_a_script_that_submits_itself_is_no_circle(tmp_path: Path) -> None:
    text = 'if [ -z $SLURM_JOB_ID ]; then\n  sbatch "$0"\n  exit\nfi\n'
    run = read(tmp_path, "a.sh", text + MEGATRON.format("pretrain_gpt.py"))
    assert (run.devices, run.runs, run.contradictions) == (8, 1, ())


@pytest.mark.parametrize(
    ("command", "framework"),
    [
        (
            "python -u examples/run_sft.py --config a.yaml policy.model_name=Qwen/Qwen3-0.6B",
            "nemo-rl",
        ),
        ("env A=1 swift sft --model Qwen/Qwen3-8B --max_length 64", "ms-swift"),
    ],
)
def test_the_command_of_a_ray_job(tmp_path: Path, command: str, framework: str) -> None:
    text = f"apiVersion: ray.io/v1\nkind: RayJob\nspec:\n  entrypoint: |\n    cd a\n    {command}\n"
    assert read(tmp_path, "a.yaml", text).framework == framework


def test_changes_of_a_recipe_can_have_its_figures(tmp_path: Path) -> None:
    text = (
        "model: {num_layers: 4, hidden_size: 64, tensor_model_parallel_size: 2, seq_length: 64}\n"
        "train: {micro_batch_size: 1, global_batch_size: 8}\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.tp, run.model.num_layers, run.defaults) == (2, 4, {})


def test_heads_of_one_group(tmp_path: Path) -> None:
    command = MEGATRON.format("pretrain_gpt.py").strip()
    run = read(tmp_path, "a.sh", f"{command} --attention-head-type multiquery\n")
    assert run.model.num_kv_heads == 1
    run = read(tmp_path, "b.sh", f"{command} --attention-head-type multihead\n")
    assert run.model.num_kv_heads is None


def test_tensors_in_host_memory_of_maxtext_are_named(tmp_path: Path) -> None:
    words = "remat_policy=custom decoder_layer_input=offload query_proj=device"
    run = read(tmp_path, "a.sh", f"python3 -m maxtext.train base.yml {words} run_name=a\n")
    assert unused(run) == ["decoder_layer_input"]


def test_another_task_of_swift_is_named(tmp_path: Path) -> None:
    command = "swift sft --model Qwen/Qwen3-Reranker-4B --max_length 64 --task_type"
    assert (
        unresolved(read(tmp_path, "a.sh", f"{command} generative_reranker\n"))[0] == "--task_type"
    )
    assert "--task_type" not in unresolved(read(tmp_path, "b.sh", f"{command} causal_lm\n"))


KEYS = (
    "n_layer", "n_head", "moe_top_k", "moe_world_size", "capacity_factor", "window_attn_skip_freq",
    "attention_output_gate", "master_weight_bits", "spmd_2d_sharding", "zero_hpz_partition_size",
    "num_learners_per_node", "pack_length", "num_mini_batches",
)  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_the_model_and_the_layout_are_named(key: str) -> None:
    collected, place = Collected(), Place("a.yaml", 1)
    report_unused([((key,), 2, place)], collected)
    assert [each.option for each in collected.unused] == [key]


def test_the_stage_of_open_instruct_is_read(tmp_path: Path) -> None:
    words = "--per_device_train_batch_size 1 --learning_rate 1 --output_dir a --deepspeed_stage 3"
    run = read(tmp_path, "a.sh", f"python open_instruct/grpo_fast.py {words} --num_epochs 1\n")
    assert (run.micro_batch, run.zero_stage) == (1, 3)


def test_header_lines_behind_a_command_have_no_effect(tmp_path: Path) -> None:
    command = MEGATRON.format("pretrain_gpt.py")
    late = f"#!/bin/bash\n#SBATCH --nodes=2\nset -e\n#SBATCH --nodes=4\n{command}"
    run = read(tmp_path, "a.sh", late)
    assert (run.nodes, [each.places for each in run.contradictions]) == (2, [("a.sh:4",)])
    written = f"#!/bin/bash\nset -e\ncat > b.sh <<EOF\n#SBATCH --nodes=4\nEOF\n{command}"
    assert read(tmp_path, "c.sh", written).contradictions == ()


def test_one_rank_of_an_expert_needs_no_note(tmp_path: Path) -> None:
    text = TITAN.replace("expert_tensor_parallel_degree = 8", "expert_tensor_parallel_degree = 1")
    assert unused(read(tmp_path, "a.toml", text)) == []


FLAVORS = """llama3_args = {
    "own": Args(dim=8192, n_layers=32, n_heads=64, n_kv_heads=8, ffn_dim_multiplier=3 / 2,
                multiple_of=4096, moe_args=MoEArgs(num_experts=4, top_k=2)),
    "8B": Args(dim=4096, n_layers=32, n_heads=32),
    "70B": Args(dim=4096, n_layers=32, n_heads=16),
}
"""


def test_a_flavor_of_the_source_tree_has_its_figures(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    tree = tmp_path / "torchtitan" / "models" / "llama3"
    (tree / "train_configs").mkdir(parents=True)
    (tree / "__init__.py").write_text(FLAVORS)
    run = read(tree / "train_configs", "a.toml", TITAN.replace('"8B"', '"own"'))
    assert (run.model.num_layers, run.model.ffn_size, run.model.num_kv_heads) == (32, 32768, 8)
    assert (run.model.num_experts, run.model.figures_of) == (
        4,
        "torchtitan/models/llama3/__init__.py",
    )
    published = read(tree / "train_configs", "b.toml", TITAN).model
    assert (published.num_layers, published.vocab_size) == (32, 128256)
    other = read(tree / "train_configs", "d.toml", TITAN.replace('"8B"', '"70B"')).model
    assert (other.num_layers, other.num_heads, other.vocab_size) == (32, 16, None)
    tree.rename(tree.with_name("llama4"))
    open_ = TITAN.replace('"llama3"', '"llama4"').replace('"8B"', '"70B"')
    run = read(tree.with_name("llama4") / "train_configs", "a.toml", open_)
    assert (run.model.num_layers, unresolved(run)) == (32, ["model.flavor"])
    tree.with_name("llama4").rename(tree)
    unknown = TITAN.replace('"8B"', '"12B"')
    assert read(tree / "train_configs", "c.toml", unknown).model.num_layers is None


FUNCTIONS = """def _tiny(attention):
    dim = 64
    n_layers = 3
    return Model.Config(
        dim=dim, vocab_size=100, layers=build_layers(
            n_layers=n_layers, dim=dim, n_heads=4, num_experts=8, router_top_k=2,
            moe_hidden_dim=32, dense_hidden_dim=128, rope=Rope.Config(dim=16)),
    )


def _called(*, depth):
    return _shape(dim=96, n_layers=depth and 5, n_heads=6) if depth else _tiny("flex")


own_configs = {"tiny": _tiny, "tiny_mm": partial(_tiny, attention="flex"), "called": _called}


def model_registry(flavor, num_mtp_layers=0):
    return ModelSpec(name="own", flavor=flavor, model=own_configs[flavor]("flex"))
"""
REGISTRY = """from {module} import model_registry


def own_{flavor}():
    return Trainer.Config(
        model_spec=model_registry("{flavor}", num_mtp_layers=1),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2048,
                                max_context_length=1024),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
    )
"""


@pytest.mark.parametrize("flavor", ["tiny", "tiny_mm", "called"])
@pytest.mark.parametrize("module", [".", "torchtitan.models.own"])
def test_a_flavor_that_a_function_gives_has_its_figures(
    tmp_path: Path, flavor: str, module: str
) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    tree = tmp_path / "torchtitan" / "models" / "own"
    tree.mkdir(parents=True)
    (tree / "__init__.py").write_text(FUNCTIONS)
    at = tree if module == "." else tmp_path
    model = read(at, "config_registry.py", REGISTRY.format(flavor=flavor, module=module)).model
    assert (model.num_layers, model.hidden_size, model.num_heads) == (3, 64, 4)
    assert (model.num_experts, model.top_k, model.moe_ffn_size, model.ffn_size) == (8, 2, 32, 128)
    assert (model.vocab_size, model.mtp_layers) == (100, 1)


def test_a_flavor_is_that_of_the_called_registry(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    for name in ("own", "other"):
        tree = tmp_path / "torchtitan" / "models" / name
        tree.mkdir(parents=True)
        (tree / "__init__.py").write_text(FUNCTIONS.replace("64", {"own": "64"}.get(name, "48")))
    both = (
        "from torchtitan.models.own import model_registry\n"
        "from torchtitan.models.other import model_registry as other_model_registry\n"
    )
    text = REGISTRY.format(flavor="tiny", module=".").replace("from . import model_registry", both)
    text = text.replace("model_spec=model", "model_spec=other_model")
    assert read(tmp_path, "config_registry.py", text).model.hidden_size == 48


def test_a_flavor_that_changes_a_model_of_transformers(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text(
        'flavors = {"full": Model.Config(model=Shape()), "tiny": Model.Config(\n'
        "    model=Shape(dim=64, n_layers=2, n_heads=4, num_experts_per_tok=2))}\n\n\n"
        "def model_registry(flavor):\n    return ModelSpec(model=flavors[flavor])\n"
    )
    for flavor, layers in (("tiny", 2), ("full", 36)):
        text = REGISTRY.format(flavor=flavor, module=".").replace(", num_mtp_layers=1", "")
        text = text.replace("training=", 'hf_model="Qwen/Qwen3-8B",\n        training=')
        model = read(tmp_path, "config_registry.py", text).model
        assert (model.name, model.num_layers) == ("Qwen/Qwen3-8B", layers)
        assert (model.vocab_size, model.top_k) == ((None, 2) if layers == 2 else (151936, None))


def test_recomputed_modules_of_verl_and_nemo_rl(tmp_path: Path) -> None:
    section = "actor_rollout_ref.actor.megatron.override_transformer_config"
    words = f'{section}.recompute_granularity=selective {section}.recompute_modules=["mlp","moe"]'
    run = read(tmp_path, "a.sh", f"python3 -m verl.trainer.main_ppo {words}\n")
    assert (run.recompute, unused(run)) == ("selective modules: mlp,moe", [])
    text = (
        "policy:\n  model_name: Qwen/Qwen3-30B-A3B\n  megatron_cfg: {enabled: true,\n"
        "    activation_checkpointing: true, recompute_granularity: selective,\n"
        "    recompute_modules: [moe, mlp]}\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.recompute, unused(run)) == ("selective modules: mlp,moe", [])


def test_a_count_of_the_devices_of_a_node_is_not_that_of_all(tmp_path: Path) -> None:
    command = MEGATRON.format("pretrain_gpt.py").replace("8 ", "$NPROC $R ", 1)
    script = f'NPROC=4\nif [ "$A" = b ]; then R="--nnodes=$N"; else R="--nnodes=$M"; fi\n{command}'
    run = read(tmp_path, "a.sh", script)
    assert (run.devices, run.devices_per_node) == (None, 4)
    assert unresolved(run) == ["--nnodes"]
    assert "`--nnodes=` depends on a condition" in run.unresolved[0].why
    assert read(tmp_path, "b.sh", f"NPROC=4\n{command}").devices == 4
