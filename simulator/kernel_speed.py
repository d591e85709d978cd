"""Seconds of matmuls and attention on an accelerator, for both routes: from surfaces measured on it
or on a relative (profiles/hardware/kernels/gemm_surface.py, attention_surface.py)."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import device_names, get_device
from profiles.hardware.kernels.attention_surface import (
    BACKWARD_FLOP,
    FLASH_2_DEVICE,
    FLASH_2_GAIN,
    NEWER_THAN_FLASH_2,
    backward_ratio,
    load_attention_surface,
)
from profiles.hardware.kernels.gemm_surface import load_surface

Array = NDArray[np.float64]


@functools.cache
def is_on_surfaces(device: str) -> bool:
    """Whether the kernels of a device or its relative were measured."""
    if device not in device_names():
        return False
    try:
        load_surface(device)
        load_attention_surface(device)
    except ShardwrightError:
        return False
    return True


def borrowed_from(device: str) -> str:
    """The relative whose measured matmuls are used for the device, "" if its own were measured."""
    measured_on = load_surface(device).measured_on
    return "" if measured_on == device else measured_on


def flash_2(device: str) -> tuple[str, float]:
    """(device whose kernel times are used for FlashAttention-2, speed relative to it)."""
    newer = device.startswith(NEWER_THAN_FLASH_2)
    return (FLASH_2_DEVICE, FLASH_2_GAIN) if newer else (device, 1.0)


def matmul_half_width(device: str, dtype: str) -> float:
    """Relative half-width of a matmul's 90 % interval, from errors of left-out shapes."""
    tables = load_surface(device).tables
    return (tables.get(dtype) or next(iter(tables.values()))).uncertainty


def attention_half_width(device: str) -> float:
    """Relative half-width of the 90 % interval of attention's forward passes."""
    return max(table.uncertainty for table in load_attention_surface(device).tables.values())


def matmul_s(device: str, dtype: str, m: Array, n: Array, k: Array) -> Array:
    """Seconds of matmuls [m, k] x [k, n]. A data type without a surface uses that of bf16, scaled
    by the ratio of the data sheet's peaks (assumed)."""
    surface = load_surface(device)
    if dtype in surface.tables:
        return surface.time_s(dtype, m, n, k, casts=False)
    peaks = get_device(device).peak_flop_per_s
    wide = "bfloat16" if "bfloat16" in surface.tables else "float16"
    ratio = peaks[wide].value / peaks[dtype].value if {dtype, wide} <= set(peaks) else 1.0
    return surface.time_s(wide, m, n, k) * ratio


def attention_s(
    device: str,
    dtype: str,
    head_size: int,
    batch: Array,
    seq: Array,
    heads: Array,
    kv_heads: Array,
    *,
    causal: bool = True,
    window: int = 0,
) -> tuple[Array, Array]:
    """Seconds of fused attention's forward and backward passes."""
    surface = load_attention_surface(device)
    # fp16 and bf16 run at one rate; wider types are not run through fused kernels in practice.
    known = "bfloat16" if dtype not in surface.tables else dtype
    forward = surface.forward_s(known, batch, seq, heads, kv_heads, head_size, causal, window)
    backward = forward * BACKWARD_FLOP / backward_ratio(seq, head_size)
    return np.asarray(forward), np.asarray(backward)
