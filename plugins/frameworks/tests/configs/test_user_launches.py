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
