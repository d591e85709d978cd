"""Causal attention's forward time as a surface, fitted to measured kernels.

    t = exp(correction) (launch + (t_math^p + t_memory^p)^(1/p) + t_cache)

Symbols: b batch, s length, h heads, g key-value heads, d head size, S streaming multiprocessors,
R the rate reached (flop/s), B the memory bandwidth reached (bytes/s), e bytes per element.

    t_math    4 u d (R/S)^-1 max(W (a + k0), l + k0): blocks of u = 128 queries, each of which meets
              a keys on average and l at most, in W waves; W = q ceil(x) + (1 - q) max(1, x) of
              x = b h ceil(s / u) / S. The two products of a block with a keys are 4 u a d flop
              (FlashAttention-2, arXiv 2307.08691, section 3); k0 is a block's start-up in keys.
              Causal: the i-th block meets (i + 1) u keys, at most w + u with a window of w.
    t_memory  e d b s (2 h + 2 g) / B: queries, keys and values read, the output written
    t_cache   2 d b s g (2 + e) / B_0: what inference does and training does not, storing keys and
              values in a paged cache (read at 2 bytes, written at e)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from profiles.errors import InputError
from profiles.hardware.kernels.kernel_surface import KernelTable
from profiles.hardware.kernels.log_grid import Array

BLOCK = 128.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTable(KernelTable):
    """The fitted surface of one data type and head size; symbols as in the module's docstring.

    correction   over length, batch x heads and heads per key-value head; box of the same
    """

    training_rows: ClassVar[str] = "training"
    head_dim: int
    kernel: str
    start_keys: float
    cache_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShapes:
    """Calls of attention on which a time is wanted; arrays of one length.

    causal   False: every query meets every key; window counts for causal calls only, 0 = none
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
        """Query-key pairs per head that count: s (s + 1) / 2 causal, s^2 full, less in a window of
        w keys, where query i (from 0) meets min(i + 1, w)."""
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
            f"heads={flat[2][at]:g} is no multiple of kv_heads={flat[3][at]:g}: every key-value "
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
    """Seconds of each call; beyond the box utilisation is held (time grows with the pairs)."""
    held = _inside(table, shapes)
    time_s = formula_time_s(table, sm_count, held, cache=cache)
    time_s *= np.exp(
        table.correction.log_factor(held.seq, held.batch * held.heads, held.heads / held.kv_heads)
    )
    grown = (shapes.batch * shapes.heads * shapes.pairs) / (held.batch * held.heads * held.pairs)
    return time_s * np.maximum(grown, 1.0)


def _inside(table: AttentionTable, shapes: AttentionShapes) -> AttentionShapes:
    (_, longest), (_, most), _ = table.box
    return replace(
        shapes,
        batch=np.minimum(shapes.batch, np.maximum(1.0, most / shapes.heads)),
        seq=np.minimum(shapes.seq, longest),
    )


def formula_time_s(
    table: AttentionTable, sm_count: int, shapes: AttentionShapes, *, cache: bool
) -> Array:
    """The formula without its correction; `cache` adds what inference does (t_cache)."""
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
    average, most = _keys_met(blocks, shapes)
    waves = table.waves(shapes.batch * shapes.heads * blocks / sm_count)
    keys = np.maximum(waves * (average + table.start_keys), most + table.start_keys)
    time_s: Array = 4.0 * BLOCK * shapes.head_dim * keys * sm_count / table.rate_flop_per_s
    return time_s


def _keys_met(blocks: Array, shapes: AttentionShapes) -> tuple[Array, Array]:
    """Keys that a block of queries meets, on average and at most, in whole blocks."""
    if not shapes.causal:
        return blocks * BLOCK, blocks * BLOCK
    if shapes.window <= 0:
        return (blocks + 1.0) / 2.0 * BLOCK, blocks * BLOCK
    wide = np.minimum(blocks, np.ceil(shapes.window / BLOCK) + 1.0)
    average = (wide * (wide + 1.0) / 2.0 + (blocks - wide) * wide) / blocks
    return average * BLOCK, wide * BLOCK
