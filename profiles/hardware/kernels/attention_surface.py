"""Attention time on a device as a surface, fitted to measured forward passes of causal attention.

    t = exp(correction) (launch + (t_math^p + t_memory^p)^(1/p) + t_cache)

Symbols: b batch, s length, h heads, g key-value heads, d head size, S streaming multiprocessors, R
the rate reached (flop/s), B the memory bandwidth reached (bytes/s), e bytes per element.

    t_math    4 u d (R/S)^-1 max(W (a + k0), l + k0): blocks of u = 128 queries, each with a mean of
              a keys and at most l keys, in W waves; W = q ceil(x) + (1 - q) max(1, x) with x = b h
              ceil(s / u) / S. The two matmuls of a block with a keys are 4 u a d flop
              (FlashAttention-2, arXiv 2307.08691, section 3); k0 is a block's start-up time in
              keys. Causal: the i-th block has (i + 1) u keys, at most w + u with a window of w
    t_memory  e d b s (2 h + 2 g) / B: queries, keys and values read, the output written
    t_cache   2 d b s g (2 + e) / B_0: only in inference, storing keys and values in a paged cache
              (read at 2 bytes, written at e)

The rows are calls of an inference engine; held-out errors are for `cache=True`, with t_cache. Not
measured but assumed: calls without a mask and with a window (the formula's blocks), other head
sizes than the measured ones (`_HEAD_RATE`), other types than bf16 and fp8, the backward pass
(`backward_ratio`), and all devices with a relative (its file).

Check against FlashAttention-3's own benchmark (arXiv 2407.08608, figure 5: H100 SXM, head size 128,
16k tokens, 16 heads; causal TFLOP/s at 512 ... 16k: 292, 423, 521, 579, 602, 616): these surfaces
are 0 to 23 % slower, most at 512 (tests/profiles/test_attention_surface.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.kernels.kernel_surface import Array, KernelSurface, KernelTable, read_surface

BLOCK = 128.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTable(KernelTable):
    """The fitted surface of one data type and head size; symbols as in the module's docstring.

    correction   over length, batch x heads and heads per key-value head; box of the same
    """

    training_rows: ClassVar[str] = "training"
    bandwidths: ClassVar[tuple[str, ...]] = ("bandwidth_bytes_per_s", "cache_bytes_per_s")
    head_dim: int
    kernel: str
    start_keys: float
    cache_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShapes:
    """Calls of attention as arrays of one length.

    causal   False: every query has every key
    window   for causal calls only, 0 = none
    """

    batch: Array
    seq: Array
    heads: Array
    kv_heads: Array
    head_dim: float
    causal: bool = True
    window: float = 0.0

    @property
    def pairs(self) -> Array:
        """Query-key pairs computed per head: s (s + 1) / 2 causal, s^2 full; with a window of w
        keys, query i (from 0) has min(i + 1, w) keys."""
        if not self.causal:
            return self.seq * self.seq
        width = np.minimum(self.seq, self.window) if self.window > 0 else self.seq
        return width * (width + 1.0) / 2.0 + (self.seq - width) * width


def shapes_of(
    batch: ArrayLike,
    seq: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: int,
    *,
    causal: bool = True,
    window: int = 0,
) -> AttentionShapes:
    """The calls as flat arrays; raises InputError for sizes below 1 or heads that do not divide."""
    arrays = [np.asarray(x, dtype=np.float64) for x in (batch, seq, heads, kv_heads)]
    flat = [np.ascontiguousarray(x).ravel() for x in np.broadcast_arrays(*arrays)]
    if any(x.size and not x.min() >= 1 for x in flat) or head_dim < 1:
        raise InputError("attention needs batch, length, heads, kv_heads, head_dim of 1 or more")
    if window < 0:
        raise InputError(f"a window must be 0 (none) or more keys, got {window}")
    if np.any(flat[2] % flat[3]):
        at = int(np.argmax(flat[2] % flat[3] != 0))
        raise InputError(
            f"heads={flat[2][at]:g} is not a multiple of kv_heads={flat[3][at]:g}: every key-value "
            "head serves the same number of query heads"
        )
    return AttentionShapes(
        batch=flat[0],
        seq=flat[1],
        heads=flat[2],
        kv_heads=flat[3],
        head_dim=float(head_dim),
        causal=causal,
        window=float(window),
    )


def table_time_s(
    table: AttentionTable, sm_count: int, shapes: AttentionShapes, *, cache: bool = False
) -> Array:
    """Seconds of each call; beyond the box utilization is constant (time grows with the pairs)."""
    (_, longest), (_, most), _ = table.box
    held = replace(
        shapes,
        batch=np.minimum(shapes.batch, np.maximum(1.0, most / shapes.heads)),
        seq=np.minimum(shapes.seq, longest),
    )
    time_s = formula_time_s(table, sm_count, held, cache=cache)
    time_s *= np.exp(
        table.correction.log_factor(held.seq, held.batch * held.heads, held.heads / held.kv_heads)
    )
    grown = (shapes.batch * shapes.heads * shapes.pairs) / (held.batch * held.heads * held.pairs)
    return time_s * np.maximum(grown, 1.0)


def formula_time_s(
    table: AttentionTable, sm_count: int, shapes: AttentionShapes, *, cache: bool
) -> Array:
    """The formula without its correction; `cache` adds t_cache of inference."""
    tokens = shapes.batch * shapes.seq * shapes.head_dim
    memory_s = table.element_bytes * tokens * 2.0 * (shapes.heads + shapes.kv_heads)
    memory_s = memory_s / table.bandwidth_bytes_per_s
    math_s = _math_time_s(table, sm_count, shapes)
    time_s = table.overlapped_s(math_s, memory_s)
    if cache and table.cache_bytes_per_s > 0:
        stored = 2.0 * tokens * shapes.kv_heads * (2.0 + table.element_bytes)
        time_s += stored / table.cache_bytes_per_s
    return time_s


def _math_time_s(table: AttentionTable, sm_count: int, shapes: AttentionShapes) -> Array:
    blocks = np.ceil(shapes.seq / BLOCK)
    average, most = _keys_of_block(blocks, shapes)
    waves = table.waves(shapes.batch * shapes.heads * blocks / sm_count)
    keys = np.maximum(waves * (average + table.start_keys), most + table.start_keys)
    time_s: Array = 4.0 * BLOCK * shapes.head_dim * keys * sm_count / table.rate_flop_per_s
    return time_s


def _keys_of_block(blocks: Array, shapes: AttentionShapes) -> tuple[Array, Array]:
    """Keys per block of queries, in whole blocks: (mean, maximum)."""
    if not shapes.causal:
        return blocks * BLOCK, blocks * BLOCK
    if shapes.window <= 0:
        return (blocks + 1.0) / 2.0 * BLOCK, blocks * BLOCK
    wide = np.minimum(blocks, np.ceil(shapes.window / BLOCK) + 1.0)
    average = (wide * (wide + 1.0) / 2.0 + (blocks - wide) * wide) / blocks
    return average * BLOCK, wide * BLOCK


# FlashAttention-2 on Hopper: up to 335 TFLOP/s against 225 on an A100 (Dao, arXiv 2307.08691,
# section 4.1), because it uses only instructions of Ampere. Prefixes of newer devices.
FLASH_2_DEVICE = "a100-sxm-80gb"
FLASH_2_GAIN = 335 / 225
NEWER_THAN_FLASH_2 = ("h100", "h200", "h800", "gh200", "b200", "b300", "gb200", "gb300")
# The backward pass has five matrix products (S, dP, dV, dQ, dK), the forward two (FlashAttention-2,
# arXiv 2307.08691, section 4.1: "2.5 times the FLOPs of the forward").
BACKWARD_FLOP = 2.5
# Rate of the backward pass over the forward's at 512, 1k, ... 16k keys and head sizes 64 and 128:
# median of FlashAttention-2, cuDNN and FlashAttention-3 on an H100 SXM without mask, read off the
# bars of figures 5 and 6 of arXiv 2407.08608 (2024-07-11). They spread by 0.06 at size 128 and by
# 0.15 at size 64. Assumed for causal calls and for every other device.
_RATIO_LENGTHS = (512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
_RATIO_64 = (0.79, 0.93, 0.92, 0.95, 0.95, 0.95)
_RATIO_128 = (0.68, 0.74, 0.80, 0.84, 0.86, 0.87)
# Rate at head size 64 over that at 128 (same figures, causal, median over the lengths):
# FlashAttention-3 0.72, FlashAttention-2 0.88. The first is assumed for Hopper and later, whose
# kernels are limited by the exponentials, which are equally many at sizes 64 and 128.
_HEAD_RATE = {"a100-sxm-80gb": 0.88, "l40s": 0.88, "rtx-pro-6000": 0.88}
_HEAD_RATE_ELSE = 0.72
# At 256 over 128 where only 128 was measured: FlashAttention-3, same figure, median 1.03.
_WIDE_HEAD_RATE = 1.03
# Half precision runs the kernels of bf16 at the same rate (one peak in the datasheets).
_SAME_AS = {"float16": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionSurface(KernelSurface):
    """Attention times of one device, `tables` by data type and head size: `bfloat16_128`."""

    kind: ClassVar[str] = "attention"
    tables: Mapping[str, AttentionTable] = field(default_factory=dict)

    def table(self, dtype: str, head_dim: int) -> AttentionTable:
        """The table of the nearest measured head size, with its rate scaled to `head_dim`
        (assumed).

        Raises InputError for a data type without a surface.
        """
        wanted = _SAME_AS.get(dtype, dtype)
        known = [table for table in self.tables.values() if table.dtype == wanted]
        if not known:
            types = sorted({table.dtype for table in self.tables.values()})
            raise InputError(
                f"device {self.device} has no attention surface for {dtype}; it has "
                f"{', '.join(types)}"
            )
        near = min(known, key=lambda table: abs(math.log2(table.head_dim / head_dim)))
        if near.head_dim == head_dim:
            return near
        octaves = math.log2(head_dim / near.head_dim)
        factor = _WIDE_HEAD_RATE**octaves
        if octaves < 0:
            factor = (1.0 / _HEAD_RATE.get(self.measured_on, _HEAD_RATE_ELSE)) ** octaves
        return near.scaled(factor)

    def forward_s(
        self,
        dtype: str,
        batch: ArrayLike,
        seq: ArrayLike,
        heads: ArrayLike,
        kv_heads: ArrayLike,
        head_dim: int,
        causal: bool = True,
        window: int = 0,
        *,
        cache: bool = False,
    ) -> Array:
        """Seconds of a forward pass; batch, seq, heads and kv_heads broadcast."""
        shapes = shapes_of(batch, seq, heads, kv_heads, head_dim, causal=causal, window=window)
        table = self.table(dtype, head_dim)
        time_s = table_time_s(table, self.sm_count, shapes, cache=cache)
        return time_s.reshape(np.broadcast_shapes(*map(np.shape, (batch, seq, heads, kv_heads))))


def backward_ratio(seq: ArrayLike, head_dim: int) -> Array:
    """Rate of the backward pass over that of the forward: 0.68 to 0.95 (assumed). The backward
    recomputes the scores and has BACKWARD_FLOP times the work.

    Linear in log2 of length and head size between the published points, constant outside.
    """
    place = np.log2(np.asarray(seq, dtype=np.float64))
    nodes = np.log2(_RATIO_LENGTHS)
    small, large = np.interp(place, nodes, _RATIO_64), np.interp(place, nodes, _RATIO_128)
    share = min(1.0, max(0.0, math.log2(head_dim / 64)))
    return np.asarray(small + share * (large - small), dtype=np.float64)


@functools.cache
def load_attention_surface(device_name: str) -> AttentionSurface:
    """The attention surface of a device or alias, measured or from its relative.

    Raises UnknownNameError for an unknown device.
    """
    return read_surface(AttentionSurface, get_device(device_name))
