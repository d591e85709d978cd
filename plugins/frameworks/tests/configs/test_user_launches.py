"""Launch scripts as users write them: paths below an unknown folder, objectives with other models,
settings of other programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.imported_run import ImportedRun
from shardwright_frameworks.reading.read_config import read_config

from plugins.frameworks.tests.configs.written_config import read
from profiles.errors import DocumentError

TRAINER = (
    "torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 1 --output_dir out "
    "--learning_rate 1e-5 --num_train_epochs 3 --bf16 True"
)


def options(run: ImportedRun) -> list[str]:
    """Of the unresolved values."""
    return [each.option for each in run.unresolved]


def test_the_end_of_a_path_names_the_model_and_the_file(tmp_path: Path) -> None:
    (tmp_path / "z3.json").write_text('{"zero_optimization": {"stage": 3}}')
    words = "--model_name_or_path $ROOT/models/Qwen2.5-7B --deepspeed $ROOT/z3.json"
    run = read(tmp_path, "a.sh", f"ROOT=$1\n{TRAINER} {words}\n")
    assert (run.model.num_layers, run.zero_stage, options(run)) == (28, 3, [])
    words = "actor_rollout_ref.model.path=$HOME/Qwen2.5-7B trainer.n_gpus_per_node=8"
    run = read(tmp_path, "b.sh", f"python3 -m verl.trainer.main_ppo {words}\n")
    assert (run.model.name, run.model.hidden_size, options(run)) == ("Qwen2.5-7B", 3584, [])


def test_an_unknown_deepspeed_file_leaves_the_stage_open(tmp_path: Path) -> None:
    run = read(tmp_path, "a.sh", f"{TRAINER} --model_name_or_path gpt2 --deepspeed $CONFIG\n")
    assert (run.zero_stage, "zero_stage" in run.defaults) == (None, False)
    assert options(run) == ["--deepspeed"]


def test_other_models_of_an_objective_are_named(tmp_path: Path) -> None:
    swift = "NPROC_PER_NODE=4 megatron rlhf --rlhf_type dpo --model Qwen/Qwen2.5-7B --max_length 64"
    axolotl = "base_model: gpt2\ndatasets: []\nmicro_batch_size: 1\nsequence_len: 64\nrl: kto\n"
    factory = (
        "model_name_or_path: gpt2\nstage: dpo\nfinetuning_type: full\ncutoff_len: 64\n"
        "per_device_train_batch_size: 1\noutput_dir: out\n"
    )
    assert "--rlhf_type" in options(read(tmp_path, "a.sh", swift + "\n"))
    assert "rl" in options(read(tmp_path, "a.yaml", axolotl))
    assert "stage" in options(read(tmp_path, "b.yaml", factory))
    text = factory.replace("stage: dpo", "stage: sft\nuse_asft_loss: true")
    assert "use_asft_loss" in options(read(tmp_path, "c.yaml", text))
    policy = "dpo: {max_num_epochs: 1}\npolicy: {train_micro_batch_size: 1, model_name: gpt2}\n"
    assert "dpo" in options(read(tmp_path, "d.yaml", policy))


def test_the_length_of_texts_is_that_of_a_model_of_images(tmp_path: Path) -> None:
    recipe = (
        "import nemo_run as run\nfrom nemo.collections import llm, vlm\n\n\ndef tune():\n"
        "    data = run.Config(vlm.Mock, seq_length=6404, decoder_seq_length=2048,\n"
        "                      global_batch_size=8, micro_batch_size=1)\n"
        "    return run.Partial(llm.finetune, data=data)\n"
    )
    path = tmp_path / "recipe.py"
    path.write_text(recipe)
    assert read_config(f"{path}:tune").seq_len == 2048


def test_activations_of_verl_are_in_host_memory(tmp_path: Path) -> None:
    words = "actor_rollout_ref.model.enable_activation_offload=True trainer.nnodes=1"
    run = read(tmp_path, "a.sh", f"python3 -m verl.trainer.main_ppo {words}\n")
    assert run.activation_offload == 1.0


BRIDGE = """from typing import cast
from megatron.bridge.recipes.common import _pretrain_common


def layout(model):
    stages = []
    for rank in range(2):
        stage = ["embedding"] if not rank else []
        stage.extend(["decoder"] * model.num_layers)
        stages.append(stage)
    model.pipeline_model_parallel_layout = stages


def tuned_config():
    cfg = _pretrain_common()
    cfg.model = cast(Provider, Bridge.from_hf_pretrained("x/y").to_megatron_provider())
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_size = 2
    layout(cfg.model)
    cfg.train.micro_batch_size = 1
    return cfg
"""


def test_a_layout_of_unknown_layers_is_open(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(BRIDGE)
    run = read_config(f"{tmp_path}/recipe.py:tuned_config")
    assert (run.tp, run.pp, run.model.name) == (2, 2, "x/y")
    assert (run.pipeline_layout, run.vpp, "vpp" in run.defaults) == (None, None, False)
    assert "model.pipeline_model_parallel_layout" in options(run)


def test_other_files_of_verl_are_not_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text("def score(x: int) -> int:\n    return {1: 2}[x]\n")
    (tmp_path / "tools.yaml").write_text("tools: [{name: a}]\ndata: {max_prompt_length: 7}\n")
    words = (
        "reward.custom_reward_function.path=$ROOT/score.py data.max_prompt_length=8 "
        "actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml "
        "data.max_response_length=8"
    )
    run = read(tmp_path, "a.sh", f"python3 -m verl.trainer.main_ppo {words}\n")
    assert (run.seq_len, run.overridden) == (16, ())


def test_an_override_replaces_a_field_under_all_names(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "model: {seq_length: 64, tensor_model_parallel_size: 2}\n"
        "dataset: {seq_length: 64}\ntrain: {micro_batch_size: 1, global_batch_size: 8}\n"
    )
    command = "torchrun --nproc_per_node 8 finetune.py --config-file recipe.yaml"
    run = read(tmp_path, "a.sh", f"{command} model.seq_length=128\n")
    assert (run.seq_len, run.contradictions) == (128, ())
    run = read(tmp_path, "b.sh", f"{command} model.seq_length=128 dataset.seq_length=32\n")
    assert [each.field for each in run.contradictions] == ["seq_len"]


def test_layers_trained_whole_next_to_adapters_are_named(tmp_path: Path) -> None:
    text = (
        "base_model: gpt2\ndatasets: []\nmicro_batch_size: 1\nsequence_len: 64\nadapter: lora\n"
        "lora_r: 8\nlora_modules_to_save: [embed_tokens, lm_head]\n"
    )
    unused = read(tmp_path, "a.yaml", text).unused
    assert [each.option for each in unused] == ["lora_modules_to_save"]


def test_experts_of_nemo_are_those_of_megatron(tmp_path: Path) -> None:
    text = (
        "model: {tensor_model_parallel_size: 1, context_parallel_size: 1, num_layers: 4,\n"
        "        micro_batch_size: 1, num_moe_experts: 8, moe_ffn_hidden_size: 32,\n"
        "        moe_shared_expert_intermediate_size: 64, moe_layer_freq: FREQ}\ntrainer: {}\n"
    )
    model = read(tmp_path, "a.yaml", text.replace("FREQ", "'([0]*1+[1]*3)'")).model
    assert (model.num_shared_experts, model.first_dense_layers) == (2, 1)
    assert read(tmp_path, "b.yaml", text.replace("FREQ", "1")).model.first_dense_layers == 0


NANOTRON = """import argparse
from nanotron.config import Config, ParallelismArgs, TokensArgs


def arguments():
    parser = argparse.ArgumentParser(description="a run")
    group = parser.add_argument_group("parallelism")
    group.add_argument("--dp", type=int, default=2)
    group.add_argument("-t", "--tensor-parallel", type=int, default=4)
    group.add_argument("--async", dest="overlap", action="store_true")
    parser.add_argument("--seq", required=True)
    return parser.parse_args()


PARTS = {"a": 1, "b": 3}


def pipeline(part):
    return PARTS[part]


args = arguments()
parallelism = ParallelismArgs(dp=args.dp, tp=args.tensor_parallel, pp=pipeline("b"))
tokens = TokensArgs(sequence_length=args.seq, micro_batch_size=1, batch_accumulation_per_replica=1)
config = Config(parallelism=parallelism, tokens=tokens)
"""


def test_arguments_of_a_program_have_their_defaults(tmp_path: Path) -> None:
    run = read(tmp_path, "a.py", NANOTRON)
    assert (run.dp, run.tp, run.pp, run.seq_len) == (2, 4, 3, None)
    assert options(run) == ["tokens.sequence_length"]


def test_the_named_configuration_of_verl_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("data: {max_prompt_length: 8, max_response_length: 24}\n")
    words = "--config-name=mine actor_rollout_ref.actor.ppo_mini_batch_size=4"
    run = read(tmp_path, "a.sh", f"python3 -m verl.trainer.main_ppo {words}\n")
    assert (run.seq_len, run.global_batch) == (32, 4)


def test_options_of_llama_factory_have_its_defaults(tmp_path: Path) -> None:
    words = (
        "--stage sft --finetuning_type full --model_name_or_path Qwen/Qwen3-8B --cutoff_len 64 "
        "--per_device_train_batch_size 8 --bf16 True --deepspeed $DS --output_dir out"
    )
    run = read(tmp_path, "a.sh", f"llamafactory-cli train {words}\n")
    assert (run.framework, run.defaults["recompute"].value) == ("llama-factory", "full")
    assert (run.micro_batch, run.model.lora_rank, run.zero_stage) == (8, None, None)
    assert "deepspeed" in options(run)


def test_words_behind_a_file_replace_its_values(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(
        "model_name_or_path: Qwen/Qwen3-4B\nstage: sft\nfinetuning_type: full\ncutoff_len: 64\n"
        "per_device_train_batch_size: 2\noutput_dir: out\nbf16: true\n"
    )
    words = "cutoff_len=128 model_name_or_path=Qwen/Qwen3-0.6B"
    run = read(tmp_path, "a.sh", f"llamafactory-cli train sft.yaml {words}\n")
    assert (run.seq_len, run.model.num_layers, run.contradictions) == (128, 28, ())
    assert {each.field for each in run.overridden} == {"seq_len", "name"}


def test_a_shipped_deepspeed_file_gives_the_stage(tmp_path: Path) -> None:
    factory = (
        "model_name_or_path: gpt2\nfinetuning_type: full\ncutoff_len: 64\nbf16: true\n"
        "per_device_train_batch_size: 1\noutput_dir: out\ndeepspeed: FILE\n"
    )
    shipped = factory.replace("FILE", "examples/deepspeed/ds_z2_offload_config.json")
    run = read(tmp_path, "a.yaml", shipped)
    assert (run.zero_stage, run.optimizer_offload) == (2, True)
    assert ("zero_stage" in run.derived, options(run)) == (True, ["deepspeed"])
    run = read(tmp_path, "b.yaml", factory.replace("FILE", "mine/z2.json"))
    assert (run.zero_stage, options(run)) == (None, ["deepspeed"])


def test_deepspeed_of_the_second_llama_factory(tmp_path: Path) -> None:
    (tmp_path / "z3.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {}}')
    text = (
        "model: Qwen/Qwen3-4B\nmodel_class: llm\ntrain_dataset: a.yaml\nmicro_batch_size: 1\n"
        "dist_config: {name: deepspeed, config_file: z3.json}\ncutoff_len: 64\n"
    )
    assert read(tmp_path, "a.yaml", text).zero_stage == 3


def test_unknown_ranks_of_a_node_are_not_one(tmp_path: Path) -> None:
    command = "torchrun --nproc_per_node $(nvidia-smi -L | wc -l) swift/cli/sft.py --model gpt2"
    run = read(tmp_path, "a.sh", f"{command} --max_length 64\n")
    assert (run.devices, "devices_per_node" in run.defaults) == (None, False)


def test_auto_of_deepspeed_is_no_precision(tmp_path: Path) -> None:
    (tmp_path / "z3.json").write_text(
        '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}, '
        '"gradient_accumulation_steps": "auto"}'
    )
    run = read(tmp_path, "a.sh", "torchrun --nproc_per_node 8 train.py --deepspeed z3.json\n")
    assert (run.zero_stage, run.precision) == (3, None)
    assert not {"precision", "gradient_accumulation"} & run.defaults.keys()


def test_an_adapter_that_is_off_and_weights_in_few_bytes(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(
        "model_name_or_path: Qwen/Qwen3-4B\nper_device_train_batch_size: 2\noutput_dir: out\n"
        "learning_rate: 1e-4\nuse_peft: false\nlora_r: 64\ntorch_dtype: bfloat16\n"
    )
    run = read(tmp_path, "a.sh", "accelerate launch train.py --config sft.yaml\n")
    assert (run.model.lora_rank, run.precision) == (None, "bf16")


def test_grpo_of_trl_trains_on_prompts_with_answers(tmp_path: Path) -> None:
    (tmp_path / "grpo.yaml").write_text(
        "model_name_or_path: Qwen/Qwen3-4B\nper_device_train_batch_size: 2\noutput_dir: out\n"
        "learning_rate: 1e-4\nmax_prompt_length: 100\nmax_completion_length: 400\n"
    )
    run = read(tmp_path, "a.sh", "accelerate launch src/open_r1/grpo.py --config grpo.yaml\n")
    assert (run.seq_len, options(run)) == (500, ["src/open_r1/grpo.py"])


def test_a_missing_file_is_named_next_to_others(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 4\n"
        "mixed_precision: bf16\nnum_machines: 1\n"
    )
    command = "accelerate launch --config_file acc.yaml src/sft.py --config /far/sft.yaml"
    assert "--config" in options(read(tmp_path, "a.sh", command + "\n"))


def test_files_by_the_end_of_their_path_in_the_repository(tmp_path: Path) -> None:
    for name in (".git", "scripts", "configs"):
        (tmp_path / name).mkdir()
    (tmp_path / "configs" / "sft.yaml").write_text(
        "model_name_or_path: Qwen/Qwen3-4B\nper_device_train_batch_size: 2\noutput_dir: out\n"
    )
    command = "accelerate launch src/sft.py --config /home/me/project/configs/sft.yaml"
    assert read(tmp_path / "scripts", "a.sh", command + "\n").micro_batch == 2


def test_empty_sections_of_fsdp_switch_nothing_on(tmp_path: Path) -> None:
    text = "base_model: gpt2\ndatasets: []\nmicro_batch_size: 1\nsequence_len: 64\nREST"
    run = read(tmp_path, "a.yaml", text.replace("REST", "fsdp:\nfsdp_config:\n"))
    assert (run.zero_stage, run.defaults["zero_stage"].value) == (None, 0)


def test_ms_swift_fills_up_a_batch_of_sixteen(tmp_path: Path) -> None:
    command = "NPROC_PER_NODE=2 swift sft --model gpt2 --max_length 64 --tuner_type full"
    run = read(tmp_path, "a.sh", f"{command} --per_device_train_batch_size 2\n")
    assert (run.gradient_accumulation, run.global_batch) == (4, 16)
    rlhf = command.replace("sft", "rlhf --rlhf_type grpo")
    run = read(tmp_path, "b.sh", f"{rlhf} --per_device_train_batch_size 2\n")
    assert run.defaults["global_batch"].value == 4
    own = "torchrun --nproc_per_node 2 mine.py --rlhf_type grpo --model gpt2 --max_length 64"
    run = read(tmp_path, "c.sh", f"{own} --max_completion_length 64 --train_type full\n")
    assert (run.framework, run.seq_len) == ("ms-swift", 128)


def test_slime_on_fsdp(tmp_path: Path) -> None:
    command = (
        "ray job submit -- python3 train.py --train-backend fsdp --actor-num-nodes 1 "
        "--actor-num-gpus-per-node 4 --gradient-checkpointing --fsdp-cpu-offload "
        "--hf-checkpoint $ROOT/Qwen3-4B --rollout-batch-size 8 --global-batch-size 16 "
    )
    run = read(tmp_path, "a.sh", command + "\n")
    assert run.defaults["zero_stage"].value == 3
    assert (run.recompute, run.optimizer_offload) == ("full", True)
    assert (run.model.num_layers, run.distributed_optimizer) == (36, None)
    assert "distributed_optimizer" not in run.defaults


def test_the_teacher_of_a_distillation_is_another_model(tmp_path: Path) -> None:
    text = (
        "model: {seq_length: 64, tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1,\n"
        "        teacher: {tensor_model_parallel_size: 4, seq_length: 64}}\n"
        "train: {micro_batch_size: 1, global_batch_size: 8}\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.tp, run.contradictions, options(run)) == (2, (), ["model.teacher", "recipe"])


def test_a_file_of_ms_swift_has_its_options(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(
        "model: Qwen/Qwen3-4B\ntuner_type: lora\nlora_rank: 16\nmax_length: 64\n"
        "torch_dtype: bfloat16\nper_device_train_batch_size: 1\n"
        "gradient_accumulation_steps: 8\ndeepspeed: zero2\n"
    )
    command = "NPROC_PER_NODE=2 swift sft sft.yaml --max_length 128"
    run = read(tmp_path, "a.sh", command + "\n")
    assert (run.model.lora_rank, run.zero_stage, run.seq_len) == (16, 2, 128)
    assert (run.gradient_accumulation, options(run)) == (8, [])
    assert "gradient_accumulation" not in run.derived


def test_older_options_of_ms_swift(tmp_path: Path) -> None:
    words = "--sft_type lora --dtype bf16 --batch_size 2 --max_length 64 --model_type qwen-7b-chat"
    run = read(tmp_path, "a.sh", f"torchrun --nproc_per_node 4 src/llm_sft.py {words}\n")
    assert (run.framework, run.micro_batch, run.precision) == ("ms-swift", 2, "bf16")
    words = "--rlhf_type gkd --lmbda 0 --model gpt2 --max_length 64 --tuner_type full"
    assert read(tmp_path, "b.sh", f"NPROC_PER_NODE=2 swift rlhf {words}\n").seq_len == 64


def test_a_command_switches_deepspeed_off_or_to_another_file(tmp_path: Path) -> None:
    (tmp_path / "z3.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {}}')
    (tmp_path / "sft.yaml").write_text(
        "model_name_or_path: gpt2\nfinetuning_type: full\ncutoff_len: 64\nbf16: true\n"
        "per_device_train_batch_size: 1\noutput_dir: out\ndeepspeed: z3.json\n"
    )
    run = read(tmp_path, "a.sh", "llamafactory-cli train sft.yaml deepspeed=null\n")
    assert (run.zero_stage, run.defaults["zero_stage"].value) == (None, 0)
    (tmp_path / "axo.yml").write_text(
        "base_model: gpt2\ndatasets: []\nmicro_batch_size: 1\nsequence_len: 64\n"
        "deepspeed: deepspeed_configs/zero3_bf16.json\n"
    )
    run = read(tmp_path, "b.sh", "accelerate launch -m axolotl.cli.train axo.yml\n")
    assert run.zero_stage == 3
    words = "--deepspeed deepspeed_configs/zero2.json"
    run = read(tmp_path, "c.sh", f"accelerate launch -m axolotl.cli.train axo.yml {words}\n")
    assert run.zero_stage == 2


def test_a_missing_file_of_accelerate_leaves_the_stage_open(tmp_path: Path) -> None:
    words = (
        "--model_name_or_path gpt2 --per_device_train_batch_size 2 --output_dir out "
        "--learning_rate 1e-4 --bf16"
    )
    command = f"accelerate launch --config_file zero3.yaml -m trl.scripts.sft {words}"
    run = read(tmp_path, "a.sh", command + "\n")
    assert (run.zero_stage, run.recompute, options(run)) == (None, None, ["--config_file"])
    assert not {"zero_stage", "recompute"} & run.defaults.keys()


def test_an_override_of_primus_is_named_the_right_way_round(tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(
        "modules:\n  pre_trainer:\n    framework: megatron\n    model: a.yaml\n    overrides:\n"
        "      micro_batch_size: 12\n      tensor_model_parallel_size: 1\n"
    )
    words = "primus-cli direct -- train pretrain --config exp.yaml --micro_batch_size 14"
    run = read(tmp_path, "a.sh", words + "\n")
    assert run.micro_batch == 14
    first = [each.text.partition(" in the place of ")[0] for each in run.overridden]
    assert [text.endswith("14 (a.sh:1)") for text in first] == [True]


def test_a_recipe_that_a_model_file_of_primus_names_is_reported(tmp_path: Path) -> None:
    for name, text in {
        "modules/megatron_bridge/sft.yaml": "trainable: true\n",
        "models/megatron_bridge/m.yaml": "recipe: qwen.qwen3\nflavor: qwen3_8b_sft\n",
    }.items():
        path = tmp_path / "primus" / "configs" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    text = (
        "modules:\n  post_trainer:\n    framework: megatron_bridge\n    config: sft.yaml\n"
        "    model: m.yaml\n    overrides:\n      tensor_model_parallel_size: 2\n"
    )
    run = read(tmp_path, "exp.yaml", text)
    assert (run.tp, options(run)) == (2, ["modules.post_trainer.overrides.flavor"])


def test_a_process_that_sees_several_devices_of_swift_has_no_number(tmp_path: Path) -> None:
    words = "swift sft --model Qwen/Qwen3-8B --tuner_type full --per_device_train_batch_size 2"
    run = read(tmp_path, "a.sh", f"CUDA_VISIBLE_DEVICES=0,1 {words}\n")
    assert (run.devices, run.global_batch, options(run)) == (None, None, ["CUDA_VISIBLE_DEVICES"])
    run = read(tmp_path, "b.sh", f"CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 {words}\n")
    assert (run.devices, options(run)) == (2, [])
    run = read(tmp_path, "c.sh", f"CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=$N {words}\n")
    assert (run.devices, options(run)) == (None, ["NPROC_PER_NODE"])


def test_other_models_are_named_by_the_keys_that_only_they_have(tmp_path: Path) -> None:
    text = (
        "model_name_or_path: gpt2\nper_device_train_batch_size: 4\noutput_dir: out\nbf16: true\n"
        "num_generations: 8\nmax_completion_length: 512\n"
    )
    assert options(read(tmp_path, "grpo.yaml", text)) == ["num_generations"]
    run = read(tmp_path, "a.sh", "accelerate launch --num_processes 2 grpo.py --config grpo.yaml\n")
    assert options(run) == ["num_generations"]
    words = "actor_rollout_ref.model.path=gpt2 distillation.enabled=True trainer.n_gpus_per_node=8"
    run = read(tmp_path, "b.sh", f"python3 -m verl.trainer.main_ppo {words}\n")
    assert options(run) == ["distillation.enabled"]


def test_llamafactory_cli_starts_a_rank_for_each_visible_device(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(
        "model_name_or_path: gpt2\nfinetuning_type: full\ncutoff_len: 64\nbf16: true\n"
        "per_device_train_batch_size: 1\ngradient_accumulation_steps: 2\noutput_dir: out\n"
    )
    command = "llamafactory-cli train sft.yaml\n"
    run = read(tmp_path, "a.sh", f"export CUDA_VISIBLE_DEVICES=0,1,2,3\n{command}")
    assert (run.devices, run.dp, run.global_batch) == (4, 4, 8)
    run = read(tmp_path, "b.sh", f"NNODES=2 CUDA_VISIBLE_DEVICES=0,1,2,3 {command}")
    assert (run.devices, run.nodes) == (8, 2)
    run = read(tmp_path, "c.sh", f"CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=$N {command}")
    assert run.devices is None


def test_own_names_of_a_program_have_no_defaults_of_a_trainer(tmp_path: Path) -> None:
    words = (
        "--model_name gpt2 --finetuning_type lora --lora_rank 4 --cutoff_len 512 --batch 8 "
        "--grad_accum 4 --learning_rate 1e-4 --output_dir out"
    )
    run = read(tmp_path, "a.sh", f"python src/train.py {words}\n")
    assert (run.seq_len, run.model.lora_rank, dict(run.defaults)) == (512, 4, {})
    assert options(run) == ["src/train.py"]


def test_an_unknown_name_of_the_model_is_reported(tmp_path: Path) -> None:
    words = "--finetuning_type lora --stage sft --output_dir out --model_name_or_path $1"
    run = read(tmp_path, "a.sh", f"llamafactory-cli train {words} --cutoff_len 64\n")
    assert (run.model.name, options(run)) == (None, ["model_name_or_path"])


def test_a_missing_file_of_a_command_is_named(tmp_path: Path) -> None:
    run = read(tmp_path, "a.sh", "accelerate launch -m axolotl.cli.train none/config.yml\n")
    assert options(run) == ["axolotl.cli.train"]
    for command in (
        "torchrun --nproc_per_node=8 run_train.py --config-file /far/tiny.yaml",
        "llamafactory-cli train /far/tiny.yaml",
    ):
        with pytest.raises(DocumentError, match=r"tiny\.yaml' is not in the folder"):
            read(tmp_path, "b.sh", command + "\n")


def test_the_text_that_ssh_runs_on_another_host_is_read(tmp_path: Path) -> None:
    command = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B"
    words = "trainer.n_gpus_per_node=8 trainer.nnodes=4"
    run = read(tmp_path, "a.sh", f'ssh $HEAD "cd $DIR && {command} \\\n  {words}"\n')
    assert (run.model.name, run.devices) == ("Qwen/Qwen3-8B", 32)


def test_megatron_of_swift_reads_its_own_checkpoints_and_leaves_nodes_open(tmp_path: Path) -> None:
    words = "megatron sft --load out/Qwen2.5-7B-Instruct-mcore --global_batch_size 8"
    run = read(tmp_path, "a.sh", f"NPROC_PER_NODE=8 NNODES=$COUNT {words}\n")
    assert (run.model.name, run.model.num_layers) == ("Qwen2.5-7B-Instruct", 28)
    assert (run.devices, run.devices_per_node, options(run)) == (None, 8, ["NNODES"])


def test_copies_across_slices_of_maxtext_hold_shards(tmp_path: Path) -> None:
    words = "dcn_data_parallelism=4 ici_fsdp_parallelism=8 model_name=llama2-7b"
    run = read(tmp_path, "a.sh", f"python MaxText/train.py MaxText/configs/base.yml {words}\n")
    assert (run.dp, run.dp_replicate, run.zero_stage) == (32, 4, 3)


def test_a_registry_of_torchtitan_that_is_not_there_is_named(tmp_path: Path) -> None:
    words = "--module own --config own_1b_fp8 --training.seq_len 2048"
    run = read(tmp_path, "a.sh", f"torchrun --nproc_per_node=8 -m torchtitan.train {words}\n")
    assert (run.devices, run.seq_len, options(run)) == (8, 2048, ["--config"])
    assert (run.overridden, "precision" in run.defaults) == ((), False)


def test_the_older_form_of_arithmetic_is_computed(tmp_path: Path) -> None:
    words = "model.partial_pretrain=gpt2 data.train_batch_size=$batch"
    text = f"n=2\nbatch=$[$n * 8]\ntorchrun --nproc_per_node=$n -m verl.trainer.sft_trainer {words}"
    assert read(tmp_path, "a.sh", text + "\n").global_batch == 16
    run = read(tmp_path, "b.sh", text.replace("$[$n * 8]", "many") + "\n")
    assert (run.global_batch, "global_batch" in run.defaults) == (None, False)


def test_what_sets_no_value_of_the_run_is_not_reported(tmp_path: Path) -> None:
    text = "source ~/venv/bin/activate\n. /etc/profile.d/modules.sh\nsource sizes.sh\n"
    words = "run_name=$NAME per_device_batch_size=$BATCH ici_fsdp_parallelism=8"
    text += f"python MaxText/train.py base.yml {words}\n"
    assert sorted(options(read(tmp_path, "a.sh", text))) == ["per_device_batch_size", "source"]
