"""Launch scripts as users write them: paths below an unknown folder, objectives with other models,
settings of other programs."""

from __future__ import annotations

from pathlib import Path

from shardwright_frameworks.reading.read_config import read_config

from shardwright.requests.imported_run import ImportedRun

TRAINER = (
    "torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 1 --output_dir out "
    "--learning_rate 1e-5 --num_train_epochs 3 --bf16 True"
)


def read(folder: Path, name: str, text: str) -> ImportedRun:
    path = folder / name
    path.write_text(text)
    return read_config(path)


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
