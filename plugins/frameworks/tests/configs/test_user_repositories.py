"""Causes of wrong or missing values in configurations of users' own repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugins.frameworks.tests.configs.written_config import read
from profiles.errors import DocumentError

TRAINER = (
    "import os\nfrom transformers import TrainingArguments\n"
    "args = TrainingArguments(per_device_train_batch_size=int(os.environ.get('BATCH', 4)), "
    "gradient_accumulation_steps=32 // int(os.environ.get('WORLD_SIZE', 1)), deepspeed=None)\n"
)


def test_a_wrapper_before_a_command_changes_none_of_its_options(tmp_path: Path) -> None:
    script = (
        "CMD=(torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 "
        "--num-attention-heads 4 --tensor-model-parallel-size 2)\n"
        'if command -v WRAPPER; then\n  CMD=(WRAPPER -c 0-7 "${CMD[@]}")\nfi\n"${CMD[@]}" --bf16\n'
    )
    run = read(tmp_path, "a.sh", script.replace("WRAPPER", "taskset"))
    assert (run.devices, run.tp, run.precision, run.model.num_layers) == (8, 2, "bf16", 4)
    with pytest.raises(DocumentError, match=r"CMD depends on a condition.*\(b\.sh:2\)"):
        read(tmp_path, "b.sh", script.replace("WRAPPER -c 0-7", "srun --nodes 4"))


def test_variables_of_python_have_their_defaults_but_not_those_of_ranks(tmp_path: Path) -> None:
    run = read(tmp_path, "train.py", TRAINER)
    assert (run.micro_batch, run.gradient_accumulation) == (4, None)
    assert "gradient_accumulation" not in run.defaults
    run = read(tmp_path, "a.sh", "export BATCH=2\ntorchrun --nproc_per_node 8 train.py\n")
    assert (run.micro_batch, run.devices, run.defaults["zero_stage"].value) == (2, 8, 0)


@pytest.mark.parametrize("start", ["run.run(recipe, name='a')", "exp.add(recipe)"])
def test_the_configuration_that_nemo_run_starts(tmp_path: Path, start: str) -> None:
    text = (
        "import nemo_run as run\nfrom nemo.collections import llm\n\n"
        "def recipe_of(nodes: int = 1, tp: int = 1):\n"
        "    recipe = llm.llama3_8b.pretrain_recipe(num_nodes=nodes, num_gpus_per_node=8)\n"
        "    recipe.trainer.strategy.tensor_model_parallel_size = tp\n    return recipe\n\n"
        "def main():\n    recipe = recipe_of(nodes=4, tp=2)\n"
        f"    with run.Experiment('a') as exp:\n        {start}\n\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    run = read(tmp_path, "a.py", text)
    assert (run.tp, run.nodes, run.devices) == (2, 4, 32)


def test_figures_of_a_class_of_nemo(tmp_path: Path) -> None:
    text = (
        "import nemo_run as run\nfrom nemo.collections import llm\n\ndef recipe():\n"
        "    model = run.Config(llm.LlamaModel, run.Config(llm.Llama2Config70B, seq_length=8192))\n"
        "    return run.Partial(llm.finetune, model=model, micro_batch_size=1)\n"
    )
    run = read(tmp_path, "a.py", text)
    assert (run.model.num_layers, run.model.hidden_size, run.seq_len) == (80, 8192, 8192)


def test_a_program_that_extends_nanotron(tmp_path: Path) -> None:
    text = (
        "import os\nfrom nanotron.models.llama import LlamaConfig\n"
        "from own.config import OwnConfig, ParallelismArgs, TokensArgs\n\nNODES = 2\n"
        "config = OwnConfig(parallelism=ParallelismArgs(dp=16, tp=1, pp=1), tokens=TokensArgs("
        "batch_accumulation_per_replica=1, micro_batch_size=4, sequence_length=2048))\n"
        "if os.environ.get('DEBUG_MODE', '0') != '0':\n    config.parallelism.dp = 2\n"
    )
    run = read(tmp_path, "a.py", text)
    assert (run.framework, run.devices, run.global_batch) == ("nanotron", 16, 64)
    assert run.unknown == ()


YAML = """language_model:
  num_layers: 4
  hidden_size: 1024
  num_attention_heads: 16
  num_moe_experts: 8
  ffn_hidden_size: null
  activation_func: swiglu
model_parallel: {tensor_model_parallel_size: 2, bf16: True, sequence_parallel: False}
micro_batch_size: 2
global_batch_size: 128
swiglu: True
optimizer: sgd
"""


def test_a_file_of_megatron_in_the_place_of_its_options(tmp_path: Path) -> None:
    (tmp_path / "gpt.yaml").write_text(YAML)
    command = "torchrun --nproc_per_node 4 pretrain_gpt.py --yaml-cfg gpt.yaml --seq-length 512"
    run = read(tmp_path, "a.sh", command + "\n")
    assert (run.framework, run.tp, run.dp, run.precision) == ("megatron-lm", 2, 2, "bf16")
    assert (run.optimizer, run.micro_batch, run.seq_len) == ("sgd", 2, None)
    assert (run.model.num_experts, run.model.ffn_size) == (8, 2688)
    assert [each.option for each in run.unused] == ["seq_length"]


def test_versions_of_a_model_have_vocabularies_of_their_own(tmp_path: Path) -> None:
    text = (
        "base_model: mistralai/Mistral-7B-Instruct-v0.X\nsequence_len: 2048\nmicro_batch_size: 1\n"
    )
    for version, size in (("1", 32000), ("2", 32000), ("3", 32768)):
        run = read(tmp_path, "a.yml", text.replace("X", version) + "datasets: [{path: a}]\n")
        assert run.model.vocab_size == size


def test_rows_of_olmo_s_embedding(tmp_path: Path) -> None:
    text = (
        "model: {d_model: 64, n_heads: 4, n_layers: 2, mlp_ratio: 8, activation_type: swiglu, "
        "max_sequence_length: 512, vocab_size: 50280, embedding_size: 50304}\n"
        "global_train_batch_size: 64\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.model.vocab_size, run.model.ffn_size, run.contradictions) == (50304, 256, ())


def test_overrides_of_a_missing_file(tmp_path: Path) -> None:
    command = "CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train /far/sft.yaml"
    words = "per_device_train_batch_size=8 gradient_accumulation_steps=4"
    run = read(tmp_path, "a.sh", f"{command} {words}\n")
    found = (run.framework, run.devices, run.micro_batch, run.gradient_accumulation)
    assert found == ("llama-factory", 2, 8, 4)
    assert (run.defaults.keys(), len(run.unresolved)) == (set(), 1)


def test_the_header_of_a_script_inside_a_job_is_a_comment(tmp_path: Path) -> None:
    inner = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\ntorchrun --nnodes "
    options = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 8"
    (tmp_path / "inner.sh").write_text(
        f"{inner}$SLURM_NNODES --nproc_per_node 4 pretrain_gpt.py {options}\n"
    )
    header = "#!/bin/bash\n#SBATCH --nodes=8\n#SBATCH --gpus-per-node=4\n"
    run = read(tmp_path, "job.sbatch", f"{header}exec bash inner.sh\n")
    assert (run.devices, run.contradictions) == (32, ())


def test_a_length_that_trl_limits(tmp_path: Path) -> None:
    text = (
        "from trl import SFTConfig, SFTTrainer\n"
        "SFTTrainer(args=SFTConfig(per_device_train_batch_size=2LENGTH))\n"
    )
    run = read(tmp_path, "a.py", text.replace("LENGTH", ""))
    assert (run.seq_len, run.defaults["seq_len"].value) == (None, 1024)
    assert read(tmp_path, "b.py", text.replace("LENGTH", ", max_length=64")).seq_len == 64


def test_a_length_in_a_program_s_own_options(tmp_path: Path) -> None:
    text = (
        "import argparse\nfrom transformers import TrainingArguments\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--max-seq-len', type=int, default=4096)\n"
        "args = parser.parse_args()\nTrainingArguments(per_device_train_batch_size=2)\n"
    )
    (tmp_path / "train.py").write_text(text)
    run = read(tmp_path, "a.sh", "deepspeed --num_gpus 2 train.py\n")
    assert (run.seq_len, run.devices, run.micro_batch) == (4096, 2, 2)
    run = read(tmp_path, "b.sh", "deepspeed --num_gpus 2 train.py --max-seq-len 512\n")
    assert run.seq_len == 512


def test_options_of_a_program_that_also_reads_a_file(tmp_path: Path) -> None:
    text = (
        "import sys\nfrom dataclasses import dataclass\n"
        "from peft import LoraConfig, get_peft_model\n"
        "from transformers import HfArgumentParser, TrainingArguments\n\n"
        "@dataclass\nclass Own:\n    rank: int = 8\n\n"
        "parser = HfArgumentParser((Own, TrainingArguments))\n"
        "if len(sys.argv) == 2 and sys.argv[1].endswith('.json'):\n"
        "    own, args = parser.parse_json_file(json_file=sys.argv[1])\n"
        "else:\n    own, args = parser.parse_args_into_dataclasses()\n"
        "model = get_peft_model(None, LoraConfig(r=own.rank))\n"
    )
    (tmp_path / "train.py").write_text(text)
    words = "--per_device_train_batch_size 2 --model_name_or_path a/b --output_dir c --rank 128"
    run = read(tmp_path, "a.sh", f"torchrun --nproc_per_node 4 train.py {words}\n")
    assert (run.model.lora_rank, run.micro_batch) == (128, 2)


def test_methods_of_classes_in_the_source_tree(tmp_path: Path) -> None:
    (tmp_path / "olmo_core").mkdir()
    (tmp_path / "olmo_core" / "config.py").write_text(
        "import math\n\nclass TokenizerConfig:\n"
        "    @classmethod\n    def gpt2(cls):\n        return cls(vocab_size=50257)\n\n"
        "    def padded(self, by: int = 128):\n"
        "        return by * math.ceil(self.vocab_size / by)\n"
        "\nclass TransformerConfig:\n    @classmethod\n    def tiny(cls, vocab_size, **kwargs):\n"
        "        return cls(d_model=64, n_layers=kwargs.pop('n_layers', 16), vocab_size=vocab_size,"
        " attention=AttentionConfig(n_heads=8), mlp=FeedForwardConfig(hidden_size=192))\n"
    )
    text = (
        "from olmo_core.config import TokenizerConfig, TransformerConfig\n"
        "from olmo_core.train import TransformerTrainModuleConfig\n"
        "model = TransformerConfig.tiny(vocab_size=TokenizerConfig.gpt2().padded(), n_layers=4)\n"
        "TransformerTrainModuleConfig(rank_microbatch_size=4096, max_sequence_length=1024)\n"
    )
    run = read(tmp_path, "train.py", text)
    model = run.model
    assert (run.framework, run.micro_batch, model.vocab_size) == ("olmo-core", 4, 50304)
    assert (model.num_layers, model.hidden_size, model.num_heads, model.ffn_size) == (4, 64, 8, 192)


def test_options_of_megatron_in_a_section_of_composed_files(tmp_path: Path) -> None:
    for name, text in (
        ("size/big.yaml", "num_layers: 4\nhidden_size: 64\nrecompute_granularity: null\n"),
        ("job/slurm.yaml", "nodes: 2\ngpus_per_node: 4\nnnodes: ${.nodes}\n"),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    text = (
        "defaults: [{size@megatron: big}, {job: slurm}, _self_]\n"
        "megatron: {lr: 1e-3, train_iters: 9, seq_length: 512, micro_batch_size: 2, bf16: true, "
        "global_batch_size: 32, recompute_activations: true, tensor_model_parallel_size: 2, "
        "use_distributed_optimizer: true}\n"
    )
    run = read(tmp_path, "run.yaml", text)
    assert (run.framework, run.tp, run.devices, run.dp) == ("megatron-lm", 2, 8, 4)
    assert (run.precision, run.recompute, run.zero_stage) == ("bf16", "selective", 1)
    assert (run.model.num_layers, run.global_batch, run.unused) == (4, 32, ())


def test_a_program_with_a_configuration_of_hydra(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "conf" / "task").mkdir(parents=True)
    (tmp_path / "conf" / "main.yaml").write_text("defaults: [_self_]\nname: a\n")
    (tmp_path / "conf" / "task" / "math.yaml").write_text(
        "# @package _global_\nmodel_name_or_path: a/b\nper_device_train_batch_size: 4\n"
        "max_prompt_length: 1024\nmax_completion_length: 1024\noutput_dir: c\nbf16: true\n"
    )
    (tmp_path / "src" / "run.py").write_text(
        "import hydra\n\n@hydra.main(version_base='1.1', config_path='../conf', "
        "config_name='main')\ndef main(cfg):\n    pass\n"
    )
    command = "accelerate launch --num_processes 4 src/run.py --multirun +task=math"
    run = read(tmp_path, "a.sh", command + "\n")
    found = (run.framework, run.devices, run.micro_batch, run.seq_len, run.precision)
    assert found == ("transformers", 4, 4, 2048, "bf16")


def test_a_vocabulary_in_a_fork_of_torchtitan(tmp_path: Path) -> None:
    text = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[optimizer]\nname = "AdamW"\n'
        "[training]\nbatch_size = 4\nseq_len = 1024\nvocab_size = 256\n"
    )
    model = read(tmp_path, "a.toml", text).model
    assert (model.vocab_size, model.num_layers) == (256, 32)


def test_a_job_that_starts_a_script_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / "start.sh").write_text("deepspeed --num_gpus=2 run_clm.py --deepspeed ds.json\n")
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    command = 'command: ["bash", "/workspace/start.sh"]'
    text = f"kind: Job\nspec:\n  template:\n    spec:\n      containers: [{{{command}}}]\n"
    run = read(tmp_path, "job.yaml", text)
    assert (run.devices, run.zero_stage) == (2, 2)


def test_devices_of_a_job_whose_launcher_takes_all(tmp_path: Path) -> None:
    header = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:A100m40:10\n"
    command = "deepspeed --hostfile=hosts run_clm.py --model_name_or_path a/b --output_dir c"
    run = read(tmp_path, "a.slurm", f"{header}{command} --per_device_train_batch_size 1\n")
    assert (run.devices, run.dp) == (10, 10)


def test_ppo_of_openrlhf_without_ray(tmp_path: Path) -> None:
    command = "deepspeed --include=localhost:1,2 --module openrlhf.cli.train_ppo"
    words = "--micro_train_batch_size 1 --train_batch_size 4 --zero_stage 2 --pretrain a/b"
    run = read(tmp_path, "a.sh", f"{command} {words}\n")
    assert (run.devices, run.dp, run.gradient_accumulation) == (2, 2, 2)


def test_no_default_for_a_batch_with_an_own_name(tmp_path: Path) -> None:
    words = "--model_name_or_path a/b --output_dir c --learning_rate 1e-5 --save_steps 9"
    command = "torchrun --nproc_per_node 2 train.py --custom_per_device_train_batch_size 4"
    run = read(tmp_path, "a.sh", f"{command} {words}\n")
    assert run.micro_batch is None
    assert "micro_batch" not in run.defaults


@pytest.mark.parametrize(
    "use",
    [
        "if args.use_deepspeed:\n    start(config=args.deepspeed)\n",
        "start(config=args.deepspeed if args.use_deepspeed else None)\n",
    ],
)
def test_defaults_behind_a_switch_that_is_off(tmp_path: Path, use: str) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    (tmp_path / "train.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--use_deepspeed', action='store_true')\n"
        "parser.add_argument('--deepspeed', default='ds.json')\n"
        "parser.add_argument('--gradient_accumulation_steps', type=int, default=4)\n"
        f"args = parser.parse_args()\nsteps(args.gradient_accumulation_steps)\n{use}"
    )
    words = "--model_name_or_path a/b --output_dir c --per_device_train_batch_size 1"
    command = f"torchrun --nproc_per_node 2 train.py {words}"
    run = read(tmp_path, "a.sh", command + "\n")
    assert (run.zero_stage, run.gradient_accumulation) == (None, 4)
    assert read(tmp_path, "b.sh", command + " --use_deepspeed\n").zero_stage == 2


HYDRA = (
    "import hydra\nfrom trl import SFTConfig, SFTTrainer\n\n"
    "@hydra.main(version_base=None, config_path='conf', config_name='train')\n"
    "def main(cfg):\n    args = SFTConfig(per_device_train_batch_size=cfg.batch, "
    "max_length=cfg.data.length)\n    SFTTrainer(args=args).train()\n\n"
    "if __name__ == '__main__':\n    main()\n"
)


def test_a_program_that_takes_its_values_from_hydra(tmp_path: Path) -> None:
    (tmp_path / "conf" / "data").mkdir(parents=True)
    (tmp_path / "train.py").write_text(HYDRA)
    (tmp_path / "conf" / "train.yaml").write_text("defaults: [data: short, _self_]\nbatch: 2\n")
    (tmp_path / "conf" / "other.yaml").write_text("defaults: [data: long]\nbatch: 16\n")
    for name, length in (("short", 512), ("long", 4096)):
        (tmp_path / "conf" / "data" / f"{name}.yaml").write_text(f"length: {length}\n")
    command = "torchrun --nproc_per_node 4 train.py"
    run = read(tmp_path, "a.sh", f"{command}\n")
    assert (run.micro_batch, run.seq_len) == (2, 512)
    run = read(tmp_path, "b.sh", f"{command} data=long batch=8\n")
    assert (run.micro_batch, run.seq_len) == (8, 4096)
    run = read(tmp_path, "c.sh", f"{command} --config-name other\n")
    assert (run.micro_batch, run.seq_len) == (16, 4096)
    run = read(tmp_path, "d.sh", f"{command} batch=$X\n")
    assert (run.micro_batch, "micro_batch" in run.defaults) == (None, False)
    assert run.unresolved


@pytest.mark.parametrize("start", ["train.py", "-m own.train"])
def test_a_file_that_is_the_only_argument_of_a_parser(tmp_path: Path, start: str) -> None:
    path = tmp_path / ("src/own/train.py" if start.startswith("-m") else start)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "import sys\nfrom dataclasses import dataclass\n"
        "from transformers import HfArgumentParser, TrainingArguments\n\n"
        "def main():\n    parser = HfArgumentParser((TrainingArguments,))\n"
        "    (args,) = parser.parse_yaml_file(yaml_file=sys.argv[1])\n    start(args)\n"
    )
    (tmp_path / "own.yaml").write_text("per_device_train_batch_size: 3\nbf16: true\n")
    run = read(tmp_path, "a.sh", f"torchrun --nproc_per_node 2 {start} own.yaml\n")
    assert (run.framework, run.micro_batch, run.precision) == ("transformers", 3, "bf16")


def test_one_visible_device_of_a_program_without_a_launcher(tmp_path: Path) -> None:
    words = "--model_name_or_path a/b --output_dir c --per_device_train_batch_size 1"
    command = f"train.py {words} --learning_rate 1e-5 --save_steps 9\n"
    run = read(tmp_path, "a.sh", f"CUDA_VISIBLE_DEVICES=0 python {command}")
    assert (run.devices, run.dp) == (1, 1)
    assert read(tmp_path, "b.sh", f"CUDA_VISIBLE_DEVICES=0,1 python {command}").devices is None


def test_model_and_lengths_of_openrlhf_with_other_names(tmp_path: Path) -> None:
    words = (
        "--model_name_or_path Qwen/Qwen3-8B --max_prompt_length 512 --max_completion_length 1024"
    )
    command = "deepspeed --num_gpus 2 --module openrlhf.cli.train_ppo"
    run = read(tmp_path, "a.sh", f"{command} --micro_train_batch_size 1 {words}\n")
    assert (run.model.num_layers, run.seq_len) == (36, 1536)


def test_a_command_overrides_the_file_of_a_parser(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass\nfrom trl import SFTConfig, SFTTrainer, TrlParser\n\n"
        "@dataclass\nclass Own:\n    max_seq_length: int = 512\n    optim: str = 'lion'\n\n"
        "own, args = TrlParser((Own, SFTConfig)).parse_args_and_config()\n"
        "SFTTrainer(args=args).train()\n"
    )
    (tmp_path / "own.yaml").write_text(
        "model_name_or_path: a/b\nper_device_train_batch_size: 5\n"
        "gradient_accumulation_steps: 2\nmax_seq_length: 3000\n"
    )
    command = "accelerate launch --num_processes 4 own.py --config own.yaml"
    run = read(tmp_path, "a.sh", f"{command} --per_device_train_batch_size 1\n")
    assert (run.micro_batch, run.gradient_accumulation, run.global_batch) == (1, 2, 8)
    assert (run.seq_len, run.optimizer) == (3000, "lion")
    assert not {"precision", "recompute"} & run.defaults.keys()  # of TRL's versions
    run = read(tmp_path, "b.sh", f"{command} --per_device_train_batch_size $X\n")
    assert (run.micro_batch, run.global_batch) == (None, None)
    assert "micro_batch" not in run.defaults


@pytest.mark.parametrize(
    "words", ["--save x -d configs model.yml own", "configs/model.yml configs/own.yml"]
)
def test_the_files_of_a_command_of_neox_are_one_configuration(tmp_path: Path, words: str) -> None:
    (tmp_path / "configs").mkdir()
    model = "pipe-parallel-size: 2\nmodel-parallel-size: 2\nnum-layers: 12\n"
    (tmp_path / "configs" / "model.yml").write_text(model)
    (tmp_path / "configs" / "own.yml").write_text("seq-length: 2048\ngas: 4\n")
    run = read(tmp_path, "a.sh", f"python ./deepy.py train.py {words}\n")
    assert (run.tp, run.pp, run.model.num_layers) == (2, 2, 12)
    assert (run.seq_len, run.gradient_accumulation) == (2048, 4)
    assert run.options["seq_len"] == "seq_length (configs/own.yml:1)"
    run = read(tmp_path, "b.sh", f"python ./deepy.py train.py {words} --hostfile own/hosts\n")
    assert run.tp == 2
    run = read(tmp_path, "c.sh", f"python ./deepy.py train.py {words} other.yml\n")
    assert run.unresolved
    assert "cp" not in run.defaults


def test_programs_of_the_trainer_with_the_names_of_nemo_rls(tmp_path: Path) -> None:
    words = "--per_device_train_batch_size 3 --gradient_accumulation_steps=4"
    (tmp_path / "own.yaml").write_text(
        "model_name_or_path: a/b\nper_device_train_batch_size: 5\noutput_dir: x\n"
        "gradient_accumulation_steps: 2\nlearning_rate: 1.0e-5\n"
    )
    command = f"accelerate launch --num_processes 8 scripts/run_sft.py own.yaml {words}"
    run = read(tmp_path, "a.sh", f"{command}\n")
    assert (run.framework, run.devices) == ("transformers", 8)
    assert (run.micro_batch, run.gradient_accumulation) == (3, 4)
    (tmp_path / "run_dpo.py").write_text(
        "from trl import DPOConfig, TrlParser\n"
        "args = TrlParser(DPOConfig).parse_args_and_config()\n"
    )
    run = read(tmp_path, "b.sh", f"python run_dpo.py --config own.yaml {words}\n")
    assert (run.framework, run.micro_batch, run.gradient_accumulation) == ("transformers", 3, 4)


def test_an_own_program_with_the_options_of_nemos_scripts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nrun(torch)\n")
    with pytest.raises(DocumentError, match=r"it starts train\.py"):
        read(tmp_path, "a.sh", "torchrun --nproc_per_node 8 train.py --tp 2 --pp 2 --layers 4\n")


def test_a_program_that_starts_the_trainer_that_it_makes(tmp_path: Path) -> None:
    text = (
        "from transformers import Trainer, TrainingArguments\n\ndef arguments(**others):\n"
        "    base = dict(per_device_train_batch_size=2, bf16=True)\n    base.update(others)\n"
        "    return TrainingArguments(output_dir='o', **base)\n\n"
        "Trainer(args=arguments(gradient_accumulation_steps=8)).train()\n"
    )
    run = read(tmp_path, "a.py", text)
    assert (run.micro_batch, run.gradient_accumulation, run.precision) == (2, 8, "bf16")


def test_words_of_a_job_behind_its_command(tmp_path: Path) -> None:
    text = (
        "kind: Job\nspec:\n  containers:\n  - command: [torchrun, --nproc_per_node=8]\n"
        "    args: [pretrain_gpt.py, --num-layers, 4, --hidden-size, 64, --num-attention-heads, 4, "
        "--tensor-model-parallel-size, 2]\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.devices, run.tp, run.model.num_layers) == (8, 2, 4)


@pytest.mark.parametrize(("word", "recompute"), [("", "full"), (", NAME=False", None)])
def test_recomputation_of_unsloth(tmp_path: Path, word: str, recompute: str | None) -> None:
    word = word.replace("NAME", "use_gradient_checkpointing")
    text = (
        "from unsloth import FastLanguageModel\nfrom trl import SFTConfig, SFTTrainer\n"
        "model, _ = FastLanguageModel.from_pretrained('a/b')\n"
        f"model = FastLanguageModel.get_peft_model(model, r=16{word})\n"
        "SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2)).train()\n"
    )
    run = read(tmp_path, "a.py", text)
    assert (run.recompute, run.model.lora_rank) == (recompute, 16)
