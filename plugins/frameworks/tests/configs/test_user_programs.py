"""Programs and files of users: Python that sets up the Trainer itself, Levanter's YAML, and names
that several launchers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugins.frameworks.tests.configs.written_config import read
from profiles.errors import DocumentError

PROGRAM = """
import argparse
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model

def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", "--model_path", default="Qwen/Qwen3-8B")
    parser.add_argument("--batch_size", type=int, default=2)
    parser.add_argument("--total", type=int, default=64)
    parser.add_argument("--no_fp16", action="store_false")
    parser.add_argument("--packed", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()

def main(args):
    model = AutoModelForCausalLM.from_pretrained(args.model_path)
    peft = LoraConfig(r=16)
    model = get_peft_model(model, peft)
    training_args = TrainingArguments(
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=args.total // args.batch_size,
        fp16=args.no_fp16,
        gradient_checkpointing=args.packed,
        BF16
    )
    Trainer(model=model, args=training_args).train()

if __name__ == "__main__":
    main(get_args())
"""


def _program(folder: Path, more: str = "") -> None:
    (folder / "train.py").write_text(PROGRAM.replace("BF16", more))


def test_a_program_that_sets_up_the_trainer(tmp_path: Path) -> None:
    _program(tmp_path)
    run = read(tmp_path, "train.py", PROGRAM.replace("BF16", ""))
    assert (run.framework, run.micro_batch, run.gradient_accumulation) == ("transformers", 2, 32)
    assert (run.precision, run.recompute, run.model.lora_rank) == ("fp16", "full", 16)
    assert (run.model.num_layers, "zero_stage" in run.defaults) == (36, False)


def test_options_replace_the_defaults_of_a_program(tmp_path: Path) -> None:
    _program(tmp_path)
    words = "--batch_size 4 -m Qwen/Qwen3-4B --no_fp16 --packed --seq_length 512"
    run = read(tmp_path, "a.sh", f"torchrun --nproc_per_node 2 train.py {words}\n")
    assert (run.micro_batch, run.gradient_accumulation, run.global_batch) == (4, 16, 128)
    assert (run.model.name, run.defaults["precision"].value) == ("Qwen/Qwen3-4B", "fp32")
    assert (run.recompute, run.seq_len) == ("full", 512)


@pytest.mark.parametrize("value", ["torch.cuda.is_bf16_supported()", "not is_old()"])
def test_a_precision_that_the_program_finds_out(tmp_path: Path, value: str) -> None:
    _program(tmp_path, f"bf16={value},")
    run = read(tmp_path, "a.sh", "torchrun --nproc_per_node 2 train.py --no_fp16\n")
    assert run.precision is None
    assert "precision" not in run.defaults


def test_entries_of_deepspeed_in_a_program(tmp_path: Path) -> None:
    _program(tmp_path, 'deepspeed={"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},')
    run = read(tmp_path, "a.sh", "deepspeed --num_gpus 2 train.py --no_fp16\n")
    assert (run.zero_stage, run.precision) == (2, "bf16")


def test_a_program_of_fire(tmp_path: Path) -> None:
    (tmp_path / "finetune.py").write_text(
        "import fire, transformers\n"
        "def train(base_model: str = '', batch_size: int = 128, micro: int = 4):\n"
        "    steps = batch_size // micro\n"
        "    transformers.Trainer(args=transformers.TrainingArguments(\n"
        "        per_device_train_batch_size=micro, gradient_accumulation_steps=steps))\n"
        "if __name__ == '__main__':\n    fire.Fire(train)\n"
    )
    run = read(tmp_path, "a.sh", "torchrun --nproc_per_node 2 finetune.py --micro 8\n")
    assert (run.micro_batch, run.gradient_accumulation, run.devices) == (8, 16, 2)


def test_levanter(tmp_path: Path) -> None:
    text = (
        "model:\n  type: llama\n  seq_len: 2048\n  hidden_dim: 64\n  num_layers: 4\n"
        "  gradient_checkpointing: false\n"
        "trainer:\n  mp: p=f32,c=bfloat16\n  train_batch_size: 128\n  num_train_steps: 10\n"
        "  per_device_parallelism: -1\n  fsdp_axis: embed\n  tensor_parallel_axes: [mlp, heads]\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.framework, run.seq_len, run.global_batch) == ("levanter", 2048, 128)
    assert (run.precision, run.recompute, run.zero_stage) == ("bf16", "none", 3)
    assert (run.model.hidden_size, run.micro_batch, run.unused) == (64, None, ())
    command = "python -m levanter.main.train_lm --config_path a.yaml --trainer.train_batch_size 256"
    assert read(tmp_path, "a.sh", command).global_batch == 256


def test_degrees_of_deepspeed_s_pipeline_engine(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 0}}')
    words = "--model_parallel_size 2 --pipe_parallel_size 2 --deepspeed_config ds.json"
    run = read(tmp_path, "a.sh", f"torchrun --nproc_per_node 8 cli/train.py {words}\n")
    assert (run.tp, run.pp, run.dp) == (2, 2, 2)


def test_a_trainer_of_another_program_is_not_nemo_s(tmp_path: Path) -> None:
    command = (
        "torchrun --nproc_per_node 4 other.py trainer.save_folder=a loader.global_batch_size=8"
    )
    with pytest.raises(DocumentError, match="no configuration of a known framework"):
        read(tmp_path, "a.sh", command)


def test_files_that_a_script_names_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text(
        "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_version: 2\n"
        "  fsdp_reshard_after_forward: true\n"
    )
    own = 'D="$(cd "$(dirname "$0")" && pwd)"\n'
    words = "--model_name_or_path a --per_device_train_batch_size 2 --output_dir b --max_steps 3"
    launch = f'accelerate launch --config_file "$D/fsdp.yaml" own.py {words}\n'
    assert read(tmp_path, "a.sh", own + launch).zero_stage == 3


def test_deepspeed_s_file_beside_one_of_the_trainer(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": 1}}')
    (tmp_path / "c.yaml").write_text(
        "model_name_or_path: a\nper_device_train_batch_size: 1\noutput_dir: b\n"
    )
    run = read(
        tmp_path, "a.sh", "torchrun --nproc_per_node 4 train.py c.yaml --deepspeed=ds.json\n"
    )
    assert run.zero_stage == 3


def test_activations_of_maxtext_with_a_gate(tmp_path: Path) -> None:
    text = "ici_fsdp_parallelism: 4\nper_device_batch_size: 1\nmlp_activations: [silu, linear]\n"
    assert read(tmp_path, "a.yml", text).model.gated_mlp is True


def test_defaults_of_a_program_s_own_arguments(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from dataclasses import dataclass, field\n"
        "import transformers\n"
        "from transformers import HfArgumentParser\n"
        "@dataclass\nclass Own(transformers.TrainingArguments):\n"
        "    gradient_checkpointing: bool = field(default=True)\n    model_max_length: int = 512\n"
        "def main():\n    args = HfArgumentParser((Own,)).parse_args_into_dataclasses()[0]\n"
        "    name = 'Qwen/Qwen3-8B'\n"
        "    transformers.AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.half)\n"
        "main()\n"
    )
    words = "--per_device_train_batch_size 2 --output_dir b --max_steps 3 --learning_rate 1"
    run = read(tmp_path, "a.sh", f"torchrun --nproc_per_node 2 train.py {words}\n")
    assert (run.recompute, run.seq_len, run.precision) == ("full", 512, "fp16")
    assert run.model.num_layers == 36
    run = read(
        tmp_path,
        "a.sh",
        f"torchrun --nproc_per_node 2 train.py {words} --bf16 "
        "--model_max_length 128 --gradient_checkpointing false\n",
    )
    assert (run.recompute, run.seq_len, run.precision) == ("none", 128, "bf16")
    assert run.contradictions == ()


def test_a_rank_by_default_says_nothing_of_adapters(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from dataclasses import dataclass\nimport transformers\n"
        "from peft import LoraConfig, get_peft_model\n"
        "@dataclass\nclass Own(transformers.TrainingArguments):\n"
        "    lora_enable: bool = False\n    lora_rank: int = 64\n"
        "def main():\n"
        "    args = transformers.HfArgumentParser((Own,)).parse_args_into_dataclasses()[0]\n"
        "    if args.lora_enable:\n"
        "        model = get_peft_model(load(), LoraConfig(r=args.lora_rank))\n"
        "main()\n"
    )
    words = "--per_device_train_batch_size 2 --output_dir b --max_steps 3 --learning_rate 1"
    command = f"torchrun --nproc_per_node 2 train.py {words}"
    assert read(tmp_path, "a.sh", f"{command}\n").model.lora_rank is None
    assert read(tmp_path, "b.sh", f"{command} --lora_enable True\n").model.lora_rank == 64
    words = "--lora_enable True --lora_rank 8"
    assert read(tmp_path, "c.sh", f"{command} {words}\n").model.lora_rank == 8


def test_an_own_loop_with_options_of_the_trainer(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--bf16', default=True)\nargs = parser.parse_args()\n"
        "model = load()\nif args.some:\n    model.gradient_checkpointing_enable()\n"
    )
    words = "--model_name_or_path a --per_device_train_batch_size 2 --output_dir b --max_steps 3"
    run = read(tmp_path, "a.sh", f"torchrun --nproc_per_node 2 train.py {words}\n")
    assert (run.precision, run.recompute, run.optimizer) == ("bf16", None, None)
    assert not {"recompute", "optimizer"} & run.defaults.keys()


def test_devices_that_deepspeed_includes(tmp_path: Path) -> None:
    words = "--model_name_or_path a --per_device_train_batch_size 2 --output_dir b --max_steps 3"
    run = read(tmp_path, "a.sh", f"deepspeed --include a:0,1@b:2,3,4 train.py {words}\n")
    assert (run.devices, run.nodes) == (5, 2)


def test_the_command_of_maxtext_s_runner(tmp_path: Path) -> None:
    words = "base.yml per_device_batch_size=2 max_target_length=8"
    inner = f'sudo docker run image bash -c \\"python -m MaxText.train {words}\\"'
    run = read(tmp_path, "a.sh", f'python multihost_runner.py --COMMAND="cd a; {inner}"\n')
    assert (run.framework, run.micro_batch) == ("maxtext", 2)


OLMO = """
from functools import partial
from olmo_core.internal.experiment import build_config, main
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.train.train_module import TransformerTrainModuleConfig

LENGTH = 4096

def build_model_config(common):
    return TransformerConfig.llama3_8B(vocab_size=common.tokenizer.padded_vocab_size())

def build_train_module_config(common):
    return TransformerTrainModuleConfig(
        rank_microbatch_size=2 * LENGTH,
        max_sequence_length=common.max_sequence_length,
        optim=SkipStepAdamWConfig(lr=3e-4),
        dp_config=TransformerDataParallelConfig(
            name=DataParallelType.hsdp, param_dtype=DType.bfloat16
        ),
        tp_config=TransformerTensorParallelConfig(degree=2),
        ac_config=AC,
    )

if __name__ == "__main__":
    main(config_builder=partial(build_config, global_batch_size=1024 * LENGTH,
                                max_sequence_length=LENGTH,
                                train_module_config_builder=build_train_module_config))
"""


def test_olmo_core(tmp_path: Path) -> None:
    mode = "TransformerActivationCheckpointingMode.full"
    text = OLMO.replace("AC", f"TransformerActivationCheckpointingConfig({mode})")
    run = read(tmp_path, "train.py", text)
    assert (run.framework, run.seq_len, run.micro_batch, run.global_batch) == (
        "olmo-core",
        4096,
        2,
        1024,
    )
    assert (run.zero_stage, run.precision, run.tp, run.recompute) == (3, "bf16", 2, "full")
    assert (run.optimizer, run.model.num_layers, run.model.vocab_size) == ("adamw", 32, None)
    words = "name train_module.rank_microbatch_size=4096 train_module.dp_config.name=ddp"
    run = read(tmp_path, "a.sh", f"torchrun --nproc_per_node 8 train.py {words}\n")
    assert (run.micro_batch, run.zero_stage, run.dp, run.unused) == (1, 0, 4, ())
    words = "train name --train_module.rank_microbatch_size=$((2 * 4096))"
    assert read(tmp_path, "b.sh", f"torchrun train.py {words}\n").micro_batch == 2


def test_recomputation_of_some_modules_of_olmo_core(tmp_path: Path) -> None:
    mode = "mode=TransformerActivationCheckpointingMode.selected_modules"
    run = read(
        tmp_path, "a.py", OLMO.replace("AC", f"TransformerActivationCheckpointingConfig({mode})")
    )
    assert run.recompute is None
    assert "recompute" not in run.defaults


def test_values_of_parsed_dataclasses(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/train.py").write_text(
        "from dataclasses import dataclass\n"
        "from transformers import HfArgumentParser, TrainingArguments\n"
        "from peft import LoraConfig, get_peft_model\n"
        "@dataclass\nclass Script:\n    batch: int = 4\n    rank: int = 8\n"
        "    use_lora: bool = False\n"
        "def train():\n    (args,) = HfArgumentParser(Script).parse_args_into_dataclasses()\n"
        "    TrainingArguments(per_device_train_batch_size=args.batch, bf16=True)\n"
        "    if args.use_lora:\n        get_peft_model(load(), LoraConfig(r=args.rank))\n"
        "train()\n"
    )
    command = "torchrun --nproc_per_node 2 -m own.train --rank 16"
    run = read(tmp_path, "a.sh", f"{command} --use_lora True\n")
    assert (run.micro_batch, run.precision, run.model.lora_rank) == (4, "bf16", 16)
    assert read(tmp_path, "b.sh", f"{command} --use_lora False\n").model.lora_rank is None


def test_a_program_s_own_class_of_the_same_name(tmp_path: Path) -> None:
    text = "from training.configs import SFTConfig\nSFTConfig(batch_size=4, bf16=True)\n"
    with pytest.raises(DocumentError, match="no configuration of a known framework"):
        read(tmp_path, "train.py", text)


def test_an_own_loop_of_accelerate(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from accelerate import Accelerator\n"
        "Accelerator(mixed_precision='bf16', gradient_accumulation_steps=3)\n"
    )
    (tmp_path / "c.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 8\n")
    words = "--model Qwen/Qwen2-7B-Instruct --seq-length 4096 --parallel_mode ring_attn"
    run = read(tmp_path, "a.sh", f"accelerate launch --config_file c.yaml train.py {words}\n")
    assert (run.precision, run.gradient_accumulation, run.seq_len) == ("bf16", 3, 4096)
    assert (run.model.num_layers, run.cp, run.dp, "cp" in run.defaults) == (28, None, None, False)


@pytest.mark.parametrize(
    "load", ["yaml.safe_load(open(path))", "OmegaConf.load(path)", "load_yaml(path)"]
)
def test_a_file_that_a_program_loads(tmp_path: Path, load: str) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/c.yaml").write_text(
        "base: Qwen/Qwen3-8B\ntraining: {batch: 4, bf16: true}"
    )
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "src").mkdir()
    run = read(
        tmp_path / "src",
        "train.py",
        "import yaml, transformers\n"
        "from trl import SFTConfig\n"
        "def main(path='configs/c.yaml'):\n"
        f"    config = {load}\n"
        "    own = config['training']\n"
        "    transformers.AutoModelForCausalLM.from_pretrained(config['base'])\n"
        "    SFTConfig(per_device_train_batch_size=own['batch'], bf16=own['bf16'],\n"
        "              max_length=own.get('length', 512))\n"
        "main()\n",
    )
    assert (run.micro_batch, run.precision, run.seq_len) == (4, "bf16", 512)
    assert run.model.num_layers == 36


def test_a_file_that_a_program_opens_for_a_while(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"batch": 4}')
    text = (
        "import json\nfrom transformers import TrainingArguments\n"
        "with open('c.json') as f:\n    config = json.load(f)\n"
        "TrainingArguments(per_device_train_batch_size=config['batch'])\n"
        "TrainingArguments(per_device_train_batch_size=json.load(open('d.json'))['batch'])\n"
    )
    run = read(tmp_path, "train.py", text)
    assert run.micro_batch == 4
    assert "several" in run.unresolved[0].why


@pytest.mark.parametrize("written", ["../c.yaml", "{outside}/c.yaml"])
def test_a_file_outside_of_the_repository_is_not_read(tmp_path: Path, written: str) -> None:
    (tmp_path / "c.yaml").write_text("batch: 4")
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository/setup.py").write_text("")
    run = read(
        tmp_path / "repository",
        "train.py",
        "import yaml\nfrom transformers import TrainingArguments\n"
        f"config = yaml.safe_load(open('{written.format(outside=tmp_path)}'))\n"
        "TrainingArguments(per_device_train_batch_size=config['batch'])\n",
    )
    assert run.micro_batch is None
    assert "unknown values" in run.unresolved[0].why
