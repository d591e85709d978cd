"""Slices of TPUs by the names that xpk gives them: chips of the catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.reading.read_config import read_config

from profiles.hardware.catalogue.catalog import get_device

COMMAND = (
    "xpk workload create --device-type={} --command='python3 -m maxtext.trainers.pre_train.train "
    "base.yml model_name=llama3.1-70b per_device_batch_size=1 max_target_length=8192 {}'\n"
)


@pytest.mark.parametrize(
    ("slice_", "device", "chips"),
    [
        ("v4-64", "tpu-v4", 32),
        ("v4-4x4x4", "tpu-v4", 64),
        ("v5p-4x4x8", "tpu-v5p", 128),
        ("v5litepod-256", "tpu-v5e", 256),
        ("v6e-256", "tpu-v6e", 256),
        ("tpu7x-4x4x4", "tpu-v7x", 64),
    ],
)
def test_chips_of_a_slice(tmp_path: Path, slice_: str, device: str, chips: int) -> None:
    script = tmp_path / "run.sh"
    script.write_text(COMMAND.format(slice_, ""))
    run = read_config(script)
    assert (run.device, run.devices) == (device, chips)
    assert get_device(device).name == device


def test_axes_of_cores_are_shares_of_chips(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(COMMAND.format("tpu7x-4x4x4", "ici_fsdp_parallelism=128"))
    run = read_config(script)
    assert (run.dp, run.micro_batch, run.global_batch) == (64, 2, 128)
    assert "64 chips, which JAX counts as 128 devices" in run.options["devices"]
    assert run.contradictions == ()
