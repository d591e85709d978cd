"""Devices with another power limit or memory, and shares of devices."""

from __future__ import annotations

import pytest

from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import base_of, get_device, node_design
from profiles.hardware.catalogue.relatives import matmul_rate_of
from profiles.hardware.kernels.gemm_surface import load_surface


def test_a_power_limit_slows_long_matmuls_alone() -> None:
    held, full = get_device("h100-sxm@500w"), get_device("h100-sxm")
    assert held.power_w.value == 500
    assert held.memory_bandwidth_bytes_per_s == full.memory_bandwidth_bytes_per_s
    assert held.peak("bf16") == full.peak("bf16")
    # 0.93 is what an A100's long matmuls lose from 400 to 300 W (MAMF, stas00/ml-engineering).
    assert matmul_rate_of("a100-sxm@300w") == pytest.approx(253 / 271, abs=0.005)
    assert matmul_rate_of("h100-sxm-80gb@500w") == pytest.approx(0.922, abs=0.001)
    slow, fast = load_surface(held.name), load_surface(full.name)
    assert slow.time_s("bfloat16", 8192, 8192, 8192) > fast.time_s("bfloat16", 8192, 8192, 8192)


def test_a_limit_above_the_power_is_none() -> None:
    assert matmul_rate_of("h100-sxm-80gb@900w") == 1.0
    assert get_device("h100-sxm@900w").power_w.value == 700


def test_a_share_has_its_part_of_everything() -> None:
    part, whole = get_device("trainium2/4"), get_device("trainium2")
    assert part.peak("bf16").value == pytest.approx(whole.peak("bf16").value / 4)
    assert part.usable_bytes == pytest.approx(whole.usable_bytes / 4)
    assert part.memory_bandwidth_bytes_per_s.value * 4 == pytest.approx(2.9e12)
    design = node_design("trainium2/4")
    assert (design.devices, design.inner_shared_by, design.outer_shared_by) == (64, 4, 4)


def test_another_memory() -> None:
    assert get_device("a100-sxm@64gb").memory_bytes.value == pytest.approx(64 * 2**30, rel=0.01)
    assert base_of("a100-sxm@64gb@300w") == "a100-sxm-80gb"


@pytest.mark.parametrize("name", ["h100-sxm@100w", "a100-sxm@1gb", "h100-sxm/0"])
def test_what_no_such_device_can_be(name: str) -> None:
    with pytest.raises(InputError):
        get_device(name)


def test_a_variant_of_nothing() -> None:
    with pytest.raises(UnknownNameError, match="carrier-pigeon@500w"):
        get_device("carrier-pigeon@500w")
