"""Kernels as arrays: which of them run on tensor cores, and sizes that are not given."""

from __future__ import annotations

import pytest

from profiles.hardware.catalogue.catalog import device_names, get_device
from profiles.hardware.catalogue.relatives import chip_of
from profiles.model.kernels import DeviceKernel, Kernel
from simulator.traced.kernel_arrays import ARCHITECTURES, kernel_arrays

CHIPS = [name for name in device_names() if chip_of(get_device(name)).architecture in ARCHITECTURES]
_16_BIT = ("float16", "bfloat16")


@pytest.mark.parametrize("name", CHIPS)
def test_16_bit_products_run_on_tensor_cores_since_volta_and_ampere(name: str) -> None:
    """NVIDIA white papers: tensor cores multiply float16 since Volta, bfloat16 since Ampere."""
    device = get_device(name)
    generation = ARCHITECTURES.index(chip_of(device).architecture)
    since = [ARCHITECTURES.index(first) <= generation for first in ("volta", "ga100")]
    kernels = [DeviceKernel(kernel=Kernel.MATMUL, dtype=dtype) for dtype in (*_16_BIT, "float32")]
    arrays = kernel_arrays(kernels, device)
    assert arrays.tensor.tolist() == [*since, False]
    assert arrays.emulated.tolist() == [not new for new in since] + [False]
    assert arrays.half.tolist() == [True, True, False]
    rates = [device.peak_flop_per_s[dtype].value for dtype in (*_16_BIT, "float32")]
    assert arrays.product_rate.tolist() == rates


def test_sizes_that_are_not_given_count_as_one() -> None:
    arrays = kernel_arrays([DeviceKernel(kernel=Kernel.MATMUL, dtype="float32")], get_device("t4"))
    sizes = (arrays.batch, arrays.m, arrays.n, arrays.k, arrays.taps)
    assert [size.tolist() for size in sizes] == [[1.0]] * 5
    assert arrays.flop.tolist() == arrays.moved_bytes.tolist() == [0.0]
