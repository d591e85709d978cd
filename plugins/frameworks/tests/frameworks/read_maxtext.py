"""Run by the environment of MaxText: its own configuration reads the flags.

    python read_maxtext.py CASES.json

CASES.json maps a name to {"arguments": [...], "slices": N}; the answer is JSON on stdout.
"""

import os
from pathlib import Path

from answers import answer_cases

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=64"

import maxtext
from maxtext.configs import pyconfig

BASE = str(Path(maxtext.__file__).parent / "configs" / "base.yml")
KEYS = (
    "ici_fsdp_parallelism",
    "dcn_fsdp_parallelism",
    "ici_tensor_parallelism",
    "dcn_tensor_parallelism",
    "per_device_batch_size",
    "gradient_accumulation_steps",
    "max_target_length",
    "remat_policy",
    "base_num_decoder_layers",
    "global_batch_size_to_train_on",
)


def read(case):
    # 64 CPU devices stand in for the slice.
    flags = [flag for flag in case["arguments"] if not flag.startswith("hardware=")]
    here = ["hardware=cpu", "skip_jax_distributed_system=true", f"num_slices={case['slices']}"]
    found = pyconfig.initialize_pydantic(["", BASE, *flags, *here])
    return {key: getattr(found, key, None) for key in KEYS}


if __name__ == "__main__":
    answer_cases(read, version=maxtext.__version__)
