"""The cases of a probe: grids of matmuls, attention, layers, memory-bound ops and messages.

Shapes follow training: cubes for the peak rate, and [tokens, k] x [k, n] products with few tokens,
wide outputs (vocabulary) and narrow heads for lower rates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from profiles.csv_table import shipped_rows
from profiles.document import encode
from profiles.hardware.probe.probe_aten import aten_names
from profiles.model.graph import CHANNELS_LAST, AttentionShape, MatmulShape, Phase

KIB, MIB = 2**10, 2**20
ROW = 1024  # elements of a normalized row, a usual hidden size

# Memory-bound op -> op of MemoryPoint, and the number of fp32 tensors read or written. An AdamW
# step reads parameter, gradient and two moments and writes parameter and two moments.
MEMORY_OPS = {
    "add": ("elementwise", 3),
    "mul": ("elementwise", 3),
    "gelu": ("elementwise", 2),
    "layer_norm": ("reduction", 2),
    "softmax": ("reduction", 2),
    "clone": ("copy", 2),
    "embedding": ("copy", 2),
    "adamw": ("optimizer", 7),
}

# Multiplications of the largest product on a CPU: larger ones have the same rate and take seconds.
_LARGEST_PRODUCT = 2**33

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")

_CONVOLUTIONS = Path(__file__).parents[2] / "data" / "probe" / "convolutions.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvCase:
    """A convolution of [batch, inputs, side, ...] with `outputs` channels of a square window.

    first  the first layer of a network, whose input needs no gradient
    last   channels-last tensors
    """

    batch: int
    inputs: int
    outputs: int
    side: int
    window: int = 3
    stride: int = 1
    groups: int = 1
    dims: int = 2
    transposed: bool = False
    first: bool = False
    last: bool = False

    def __str__(self) -> str:
        kind = "first " if self.first else "transposed " if self.transposed else ""
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        groups += CHANNELS_LAST if self.last else ""
        return (
            f"{kind}{self.dims}-D {self.window}/{self.stride} of {self.batch}x{self.inputs}"
            f"x{self.side} to {self.outputs}{groups}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceCase:
    """A layer of `kind` (`lstm`, `gru`, `rnn`) with `inputs` and `size` features on sequences."""

    kind: str
    batch: int
    inputs: int
    size: int

    def __str__(self) -> str:
        return f"{self.kind} of {self.batch}x{self.inputs} to {self.size}"


Shape = MatmulShape | AttentionShape | ConvCase | RecurrenceCase


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement.

    family  `launch`, `bandwidth`, `matmul`, `attention`, `conv`, `recurrence`, `memory`, `aten`
            or `link`
    op      of MEMORY_OPS, the name of an aten op, or an operation of profiles' Link
    size_bytes  moved bytes (memory), one tensor in 32 bits (aten), or the full buffer (link)
    """

    family: str
    op: str = ""
    dtype: str = "float32"
    phase: Phase = Phase.FORWARD
    shape: Shape | None = None
    size_bytes: int = 0
    group_size: int = 1

    @property
    def label(self) -> str:
        """The name in a progress line."""
        if self.shape is not None:
            return f"{self.family} {self.phase} {self.dtype} {self.shape_text}"
        ranks = f" on {self.group_size}" if self.family == "link" else ""
        return f"{self.op or self.family}{ranks} {self.size_bytes / KIB:.0f} KiB"

    @property
    def shape_text(self) -> str:
        """The sizes of a matmul or attention call, or a layer's description."""
        if isinstance(self.shape, (ConvCase, RecurrenceCase)):
            return str(self.shape)
        return "x".join(str(int(size)) for size in encode(self.shape or {}).values())

    @property
    def num_elements(self) -> int:
        """Elements of each tensor of a memory-bound op: whole rows, or one shorter row."""
        if self.family == "aten":
            return max(1, self.size_bytes // 4)
        count = max(1, self.size_bytes // (4 * MEMORY_OPS[self.op][1]))
        return count - count % ROW if count >= ROW else count

    @property
    def buffer_bytes(self) -> int:
        """The full buffer of a link: whole fp32 elements per rank of the group."""
        return 4 * self.group_size * max(1, self.size_bytes // (4 * self.group_size))


def probe_cases(
    *, num_devices: int, quick: bool, accelerator: bool, rng: np.random.Generator
) -> tuple[Case, ...]:
    """All cases in random order, so that a slow minute does not affect only one kind of op.

    quick        a coarse grid
    accelerator  larger shapes, also in half precision
    """
    # A quick profile of a CPU uses the fp32 times for bf16.
    dtypes = ("float32",) if quick and not accelerator else ("float32", "bfloat16")
    cases = [
        Case(family="launch"),
        # Larger than the caches (at most 96 MiB of L3 per chiplet: AMD EPYC 9684X, amd.com).
        Case(family="bandwidth", size_bytes=(1024 if accelerator else 256) * MIB),
        *_matmul_cases(quick=quick, accelerator=accelerator),
        *_both_passes("attention", dtypes, _attention_shapes(quick, accelerator)),
        *_memory_cases(quick=quick, accelerator=accelerator),
    ]
    if not accelerator:
        # Within a core's caches, of their size, and beyond them.
        sizes = (4 * KIB, MIB) if quick else (4 * KIB, 64 * KIB, MIB, 8 * MIB)
        cases += [
            *_both_passes("conv", dtypes, convolutions(quick=quick)),
            *_both_passes("recurrence", dtypes, recurrence_layers(quick=quick)),
            *(
                Case(family="aten", op=name, dtype=dtype, size_bytes=size)
                for dtype, name, size in product(dtypes, aten_names(), sizes)
            ),
        ]
    cases += _link_cases(num_devices=num_devices, quick=quick)
    return tuple(cases[index] for index in rng.permutation(len(cases)))


def _both_passes(family: str, dtypes: Sequence[str], shapes: Sequence[Shape]) -> Iterable[Case]:
    for dtype, shape, phase in product(dtypes, shapes, Phase):
        yield Case(family=family, dtype=dtype, phase=phase, shape=shape)


def _matmul_cases(*, quick: bool, accelerator: bool) -> list[Case]:
    """Cubes and skinny products of 32 to 4096 (8192 on an accelerator) in fp32 and bf16."""
    scale = 2 if accelerator else 1
    if quick:
        shapes = {(1, s, s, s) for s in (32, 128, 512, 1024 * scale)}
        shapes |= {
            (1, m, n, k) for m in (64, 512) for n, k in ((256, 256), (1024, 256), (256, 1024))
        }
        shapes |= {(1, 256, 4096, 256), (8, 128, 128, 64)}
        shapes |= {s for side in (256, 2048) for s in ((1, 8, side, side), (1, side, side, 8))}
    else:
        shapes = {(1, s, s, s) for s in (32, 64, 128, 256, 512, 1024, 2048, 4096 * scale)}
        sides = (64, 256, 1024, 4096)
        shapes |= {(1, m * scale, n, k) for m, n, k in product((32, 128, 512, 2048), sides, sides)}
        shapes |= {(1, 512, 32768, 512), (1, 512, 512, 32768)}
        shapes |= {(b, s, s, 64) for b, s in product((8, 32), (128, 512))}
        # Layers with few samples, their weight gradients, and heads with few classes.
        for few, side in product((2, 8), (256, 1024, 4096)):
            shapes |= {(1, few, side, side), (1, side, side, few)}
        shapes |= {(1, 64, 8, 1024), (1, 64, 1024, 8), (1, 8, 1024, 64)}
    shapes = {s for s in shapes if accelerator or math.prod(s) <= _LARGEST_PRODUCT}
    return [
        Case(family="matmul", dtype=dtype, shape=MatmulShape(batch=b, m=m, n=n, k=k))
        for dtype in ("float32", "bfloat16")
        for b, m, n, k in sorted(shapes)
    ]


def _attention_shapes(quick: bool, accelerator: bool) -> list[AttentionShape]:
    """Causal attention by length, batch and head size. On a CPU also attention without a mask,
    short and with small heads: from causal calls of 128 tokens and more, 6.5 ms were predicted for
    a small BERT's backward in bf16, which took 19 ms (two cores, torch 2.13, 2026-11-23)."""
    sizes = [(1, 8), (4, 16)]
    if quick:
        shapes = [(1, 8, 128, 64, True), (1, 8, 512, 64, True)]
    else:
        shapes = [(b, h, s, d, True) for b, h in sizes for s in (128, 512, 2048) for d in (64, 128)]
        if not accelerator:  # takes seconds on a CPU, and is proportional to the smaller batch
            shapes = [shape for shape in shapes if shape[:3] != (4, 16, 2048)]
    if accelerator:
        shapes += [(1, 32, s, 128, True) for s in ((4096,) if quick else (4096, 8192))]
    elif not quick:
        shapes += [(b, h, s, 32, True) for b, h in sizes for s in (64, 256)]
        shapes += [
            (b, h, s, d, False) for b, h in sizes for s in (64, 128, 512) for d in (32, 64, 128)
        ]
        # Shorter than a block of the kernel, and no multiple of a block (patches of images).
        shapes += [(2, 4, 16, 32, False), (2, 6, 50, 64, False), (8, 4, 40, 32, False)]
        shapes += [(4, 3, 26, 64, False), (1, 4, 197, 16, False)]
    return [
        AttentionShape(batch=b, heads=h, kv_heads=h, q_len=s, kv_len=s, head_dim=d, causal=causal)
        for b, h, s, d, causal in shapes
    ]


def _memory_cases(*, quick: bool, accelerator: bool) -> list[Case]:
    """Memory-bound ops and the optimizer step of one parameter, by bytes moved."""
    sizes = [16 * KIB, 256 * KIB, 4 * MIB, 64 * MIB]
    if not quick:
        sizes = [4 * KIB * 4**i for i in range(9)]  # 4 KiB to 256 MiB
    if accelerator:
        sizes.append(1024 * MIB)
    return [
        Case(family="memory", op=op, size_bytes=size) for op, size in product(MEMORY_OPS, sizes)
    ]


def convolutions(*, quick: bool) -> tuple[ConvCase, ...]:
    """The convolutions of profiles/data/probe/convolutions.csv: one per kind of kernel, with the
    sizes of networks for images of 32 and of 224 pixels."""
    found = []
    for row in shipped_rows(_CONVOLUTIONS):
        values: dict[str, Any] = {name: int(row[name]) for name in list(row)[:8]}
        values |= {name: row[name] == "1" for name in ("transposed", "first", "last")}
        if row["quick"] == "1" or not quick:
            found.append(ConvCase(**values))
    return tuple(found)


def recurrence_layers(*, quick: bool) -> tuple[RecurrenceCase, ...]:
    """Layers of each kind, from the size of a tagger to that of a speech model."""
    few = ((2, 64, 64), (8, 256, 256))
    most = (*few, (1, 128, 128), (32, 128, 256), (16, 64, 64), (4, 512, 512), (16, 128, 128))
    return tuple(
        RecurrenceCase(kind=kind, batch=batch, inputs=inputs, size=size)
        for kind in ("lstm", "gru", "rnn")
        for batch, inputs, size in (few if quick or kind == "rnn" else most)
    )


def _link_cases(*, num_devices: int, quick: bool) -> list[Case]:
    """Messages and collectives of 1 KiB to 64 MiB, for every group size of two or more."""
    step = 8 if quick else 4
    sizes = [KIB]
    while sizes[-1] * step < 64 * MIB:
        sizes.append(sizes[-1] * step)
    sizes.append(64 * MIB)
    return [
        Case(family="link", op=operation, size_bytes=size, group_size=group_size)
        for group_size in range(2, num_devices + 1)
        for operation in (*(("send",) if group_size == 2 else ()), *COLLECTIVES)
        for size in sizes
    ]
