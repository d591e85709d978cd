"""Run by an environment with accelerate, DeepSpeed and transformers: each reads its files.

    python read_huggingface.py CASES.json

CASES.json maps a name to {"target", "folder", "replicas", "command"}; the answer is JSON.
"""

import json
import os
from pathlib import Path

import accelerate
import deepspeed
import transformers
from accelerate.commands import launch
from accelerate.utils.launch import prepare_multi_gpu_env
from answers import answer_cases
from deepspeed.runtime import config as ds
from transformers import AutoConfig, HfArgumentParser, TrainingArguments


def read_accelerate(case):
    parser = launch.launch_command_parser()
    arguments = parser.parse_args(case["command"][2:])
    arguments, _, _ = launch._validate_launch_command(arguments)
    environment = prepare_multi_gpu_env(arguments)
    names = ("ACCELERATE_MIXED_PRECISION", "FSDP_VERSION", "FSDP_RESHARD_AFTER_FORWARD")
    names += ("FSDP_OFFLOAD_PARAMS", "FSDP_TRANSFORMER_CLS_TO_WRAP", "ACCELERATE_USE_FSDP")
    found = {name: environment.get(name) for name in names}
    prefix = "PARALLELISM_CONFIG_"
    found |= {k: v for k, v in environment.items() if k.startswith(prefix)}
    return {"processes": arguments.num_processes, "machines": arguments.num_machines, **found}


def read_deepspeed(case):
    data = json.loads(Path("ds_config.json").read_text())
    # The engine takes the number of replicas from the job; here it is told of them.
    config = ds.DeepSpeedConfig(data, mpu=_Ranks(case["replicas"]))
    return {
        "micro_batch": config.train_micro_batch_size_per_gpu,
        "global_batch": config.train_batch_size,
        "accumulation": config.gradient_accumulation_steps,
        "zero": config.zero_optimization_stage,
        "offload": getattr(config.zero_config.offload_optimizer, "device", None),
        "bf16": config.bfloat16_config.enabled,
        "pipeline": config.pipeline.get("stages"),
    }


class _Ranks:
    """Megatron's module of ranks, as far as DeepSpeed asks it."""

    def __init__(self, replicas):
        self.replicas = replicas

    def get_data_parallel_world_size(self):
        return self.replicas


def read_trainer(case):
    parser = HfArgumentParser(TrainingArguments)
    path = Path("training_args.json")
    data = json.loads(path.read_text())
    # There is no GPU here: bf16 is asked of a CPU.
    (found,) = parser.parse_dict({**data, "use_cpu": True})
    return {
        "micro_batch": found.per_device_train_batch_size,
        "accumulation": found.gradient_accumulation_steps,
        "bf16": found.bf16,
        "recomputes": found.gradient_checkpointing,
        "fsdp": bool(found.fsdp),
        "fsdp_config": {k: str(v) for k, v in (found.fsdp_config or {}).items()}
        if isinstance(found.fsdp_config, dict)
        else str(found.fsdp_config),
        "deepspeed": bool(found.deepspeed),
    }


ds.dist.get_rank = lambda *_: 0  # of no process group
READERS = {"accelerate": read_accelerate, "deepspeed": read_deepspeed, "hf-trainer": read_trainer}


def read(case):
    os.chdir(case["folder"])
    found = READERS[case["target"]](case)
    if Path("config.json").is_file():
        found["model_type"] = AutoConfig.from_pretrained(".").model_type
    return found


if __name__ == "__main__":
    answer_cases(
        read, versions=[accelerate.__version__, deepspeed.__version__, transformers.__version__]
    )
