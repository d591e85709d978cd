"""Run by the environment of torchtitan 0.2: its config manager loads a folder's TOML, its splitter
cuts the model on shapes, torch's runtime builds the schedule.

    python read_torchtitan.py CASES.json

CASES.json maps a name to its folder; the answer is JSON on stdout.
"""

import importlib
import os
import sys

import torch
import torchtitan
from answers import answer_cases
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.config import ConfigManager
from torchtitan.distributed import pipeline_parallel
from torchtitan.protocols import train_spec


def read(folder):
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.modules.pop("planned_model", None)
    train_spec._extra_train_specs.clear()
    try:
        config = ConfigManager().parse_args(["--job.config_file", "train.toml"])
        importlib.import_module(config.experimental.custom_import)
    finally:
        sys.path.remove(folder)
    spec = train_spec.get_train_spec(config.model.name)
    figures = spec.model_args[config.model.flavor]
    figures.update_from_config(config)
    with torch.device("meta"):
        model = spec.model_cls(figures)
    parallel = config.parallelism
    return {
        "tp": parallel.tensor_parallel_degree,
        "pp": parallel.pipeline_parallel_degree,
        "cp": parallel.context_parallel_degree,
        "dp": parallel.data_parallel_shard_degree * parallel.data_parallel_replicate_degree,
        "shards": parallel.data_parallel_shard_degree,
        "reshards": parallel.fsdp_reshard_after_forward,
        "local_batch": config.training.local_batch_size,
        "recompute": config.activation_checkpoint.mode,
        "converters": config.model.converters,
        "ffn": model.layers["0"].feed_forward.w1.out_features,
        "parameters": sum(p.numel() for p in model.parameters()),
        **(split(config, model, figures) if parallel.pipeline_parallel_degree > 1 else {}),
    }


def split(config, model, figures):
    """The layers of every stage by its number, and the schedule's rows, from each rank."""
    pp = config.parallelism.pipeline_parallel_degree
    stages, rows, kind = {}, {}, ""
    for rank in range(pp):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=pp)
        mesh = init_device_mesh("cpu", (pp,), mesh_dim_names=("pp",))
        made, parts = pipeline_parallel.pipeline_module_split(
            model,
            mesh["pp"],
            config.parallelism.pipeline_parallel_schedule,
            torch.device("cpu"),
            config.parallelism.module_fqns_per_model_part,
        )
        for stage, part in zip(made, parts, strict=True):
            stages[stage.stage_index] = {
                "rank": rank,
                "layers": len(part.layers),
                "embedding": part.tok_embeddings is not None,
                "head": part.output is not None,
            }
        schedule = pipeline_parallel.build_pipeline_schedule(
            config, made, torch.nn.functional.cross_entropy
        )
        kind = type(schedule).__name__
        order = getattr(schedule, "pipeline_order", None)
        if order and rank in order:
            rows[rank] = [str(action) for action in order[rank] if action is not None]
        torch.distributed.destroy_process_group()
    return {
        "stages": [stages[number] for number in sorted(stages)],
        "schedule": kind,
        "rows": rows,
    }


if __name__ == "__main__":
    answer_cases(read, version=torchtitan.__version__)
