"""Run by the environment of Megatron-Core: its own parser, checks and configuration read arguments.

    python read_megatron.py CASES.json

CASES.json maps a name to {"arguments", "environment", "world_size"}; the answer is JSON on stdout.
"""

import argparse
import os
import typing
import warnings

from answers import answer_cases

warnings.simplefilter("ignore")
if not hasattr(typing, "override"):  # Python 3.11
    typing.override = lambda function: function

import torch  # noqa: E402  # behind the stand-ins

# The checks ask the GPU for its generation: an H100's, as planned.
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch.cuda.get_device_properties = lambda *_: argparse.Namespace(major=9, minor=0)

import megatron.core  # noqa: E402  # behind the stand-ins
from megatron.training import arguments  # noqa: E402  # behind the stand-ins
from megatron.training.argument_utils import core_transformer_config_from_args  # noqa: E402  # behind the stand-ins


def read(case):
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(case["environment"])
    parser = argparse.ArgumentParser(allow_abbrev=False)
    arguments.add_megatron_arguments(parser)
    # Transformer Engine, whose fusion is the default, is built for GPUs only.
    found = parser.parse_args([*case["arguments"], "--no-rope-fusion"])
    found.rank, found.world_size = 0, case["world_size"]
    arguments.validate_args(found)
    config = core_transformer_config_from_args(found)
    layout = config.pipeline_model_parallel_layout
    stages = None
    if layout is not None:
        stages = [
            [len([k for k in chunk if k.name == "decoder"]) for chunk in rank]
            for rank in layout.layout
        ]
    return {
        "tp": config.tensor_model_parallel_size,
        "pp": config.pipeline_model_parallel_size,
        "vpp": config.virtual_pipeline_model_parallel_size or 1,
        "cp": config.context_parallel_size,
        "ep": config.expert_model_parallel_size,
        "dp": found.data_parallel_size,
        "layers": config.num_layers,
        "stages": stages,
        "recompute": config.recompute_granularity,
        "recompute_layers": config.recompute_num_layers,
        "global_batch": found.global_batch_size,
        "fp8": config.fp8,
    }


if __name__ == "__main__":
    answer_cases(read, version=megatron.core.__version__)
