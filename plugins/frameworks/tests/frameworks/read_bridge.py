"""Run by the environment of Megatron-Bridge: its own dataclasses take the overrides.

    python read_bridge.py CASES.json

CASES.json maps a name to its folder; the answer is JSON on stdout. Libraries built for GPUs
alone (Transformer Engine and others) are empty modules here: no kernel is asked for.
"""

import importlib.abc
import importlib.machinery
import logging
import sys
import types
import typing
import warnings
from pathlib import Path
from unittest.mock import MagicMock

from answers import answer_cases

warnings.simplefilter("ignore")
if not hasattr(typing, "override"):  # Python 3.11
    typing.override = lambda function: function
ABSENT = ("transformer_engine", "transformer_engine_torch", "datasets", "peft")
ABSENT += ("nvidia_resiliency_ext", "megatron.energon")


class _Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules whose classes are empty and whose functions do nothing."""

    def find_spec(self, name, path, target=None):
        if any(name == absent or name.startswith(absent + ".") for absent in ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__, module.__version__ = [], "2.9.0"

        def thing(name):
            if name.startswith("__"):
                raise AttributeError(name)
            empty = {"__init__": lambda self, *_, **__: None}
            return type(name, (), empty) if name[0].isupper() else MagicMock()

        module.__getattr__ = thing
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Empty())
logging.disable(logging.INFO)

import megatron.bridge  # noqa: E402  # behind the stand-ins
import yaml  # noqa: E402  # behind the stand-ins
from megatron.bridge.models.gpt_provider import GPTModelProvider  # noqa: E402  # behind the stand-ins
from megatron.bridge.models.mla_provider import MLAModelProvider  # noqa: E402  # behind the stand-ins
from megatron.bridge.training import config as bridge  # noqa: E402  # behind the stand-ins
from megatron.bridge.training.mixed_precision import get_mixed_precision_config  # noqa: E402  # behind the stand-ins


def read(folder):
    data = yaml.safe_load((Path(folder) / "overrides.yaml").read_text())
    model = data["model"]
    # Its fusion of rotary positions is Transformer Engine's.
    provider = MLAModelProvider if model.pop("multi_latent_attention", False) else GPTModelProvider
    found = provider(**model, apply_rope_fusion=False)
    found.finalize()
    train = bridge.TrainingConfig(**data["train"])
    ddp = bridge.DistributedDataParallelConfig(**data["ddp"])
    bridge.OptimizerConfig(**data["optimizer"])
    bridge.MockGPTDatasetConfig(random_seed=1, **data["dataset"])
    precision = get_mixed_precision_config(data["mixed_precision"])
    return {
        "tp": found.tensor_model_parallel_size,
        "pp": found.pipeline_model_parallel_size,
        "vpp": found.virtual_pipeline_model_parallel_size or 1,
        "ep": found.expert_model_parallel_size,
        "layers": found.num_layers,
        "global_batch": train.global_batch_size,
        "distributed_optimizer": ddp.use_distributed_optimizer,
        "recompute": found.recompute_granularity,
        "fp8": precision.fp8,
    }


if __name__ == "__main__":
    answer_cases(read, version=getattr(megatron.bridge, "__version__", ""))
