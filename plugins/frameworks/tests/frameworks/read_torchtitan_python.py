"""Run by the environment of torchtitan 0.3: its config manager loads a folder's function, and the
model is built on shapes.

    python read_torchtitan_python.py CASES.json

CASES.json maps a name to its folder; the answer is JSON on stdout.
"""

import os
import sys

import torch
import torchtitan
from answers import answer_cases
from torchtitan.config import ConfigManager


def read(folder):
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.modules.pop("planned_config", None)
    try:
        config = ConfigManager().parse_args(["--module", "planned_config", "--config", "planned"])
    finally:
        sys.path.remove(folder)
    with torch.device("meta"):
        model = config.model_spec.model.build()
    parallel = config.parallelism
    recompute = config.activation_checkpoint
    names = {name.rsplit(".", 1)[0] for name, _ in model.named_parameters()}
    stages = parallel.module_fqns_per_model_part or []
    return {
        "tp": parallel.tensor_parallel_degree,
        "pp": parallel.pipeline_parallel_degree,
        "cp": parallel.context_parallel_degree,
        "dp": parallel.data_parallel_shard_degree * parallel.data_parallel_replicate_degree,
        "reshards": parallel.fsdp_reshard_after_forward,
        "local_batch": config.training.local_batch_size,
        "global_batch": config.training.global_batch_size,
        "seq_len": config.training.seq_len,
        "recompute": type(recompute).__qualname__ if recompute is not None else None,
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": [sum(name.startswith("layers.") for name in stage) for stage in stages],
        "unknown_modules": [
            name
            for stage in stages
            for name in stage
            if not any(each == name or each.startswith(f"{name}.") for each in names)
        ],
    }


if __name__ == "__main__":
    answer_cases(read, version=torchtitan.__version__)
