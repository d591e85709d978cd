"""What a probe measures: the cases of the matmul, attention, memory and link grids.

Shapes follow those of training: cubes for the rate, and [tokens, k] x [k, n] products with few
tokens, wide outputs (vocabulary) and narrow heads for what a cube does not show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np

from profiles.document import encode
from profiles.errors import InputError
from profiles.hardware.probe.probe_aten import aten_bytes, aten_names
from profiles.hardware.probe.probe_layers import (
    CONVOLUTIONS,
    QUICK_CONVOLUTIONS,
    ConvCase,
    RecurrenceCase,
    conv_op,
    recurrence_layers,
    recurrence_op,
)
from profiles.model.graph import AttentionShape, MatmulShape, Phase

KIB, MIB = 2**10, 2**20
ROW = 1024  # elements of a normalised row, a usual hidden size

# (name, op of MemoryPoint, tensors of n fp32 elements that are read or written)
ELEMENTWISE = (("add", 3), ("mul", 3), ("gelu", 2))
REDUCTION = (("layer_norm", 2), ("softmax", 2))
COPY = (("clone", 2), ("embedding", 2))
MEMORY_OPS = (("elementwise", ELEMENTWISE), ("reduction", REDUCTION), ("copy", COPY))

# One AdamW step reads parameter, gradient and two moments and writes parameter and two moments.
ADAMW_TENSORS = 7

# Multiplications of a product on a CPU: a larger one is as fast as this one, and takes seconds.
_LARGEST_PRODUCT = 2**33

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to measure.

    family  `launch`, `bandwidth`, `matmul`, `attention`, `conv`, `recurrence`, `memory`, `aten`
            or `link`
    op      what exactly: a variant of MEMORY_OPS, `adamw`, the name of an aten op, or an operation
            of profiles' Link
    size_bytes  moved bytes (memory), one tensor in 32 bits (aten), or the full buffer (link)
    """

    family: str
    op: str = ""
    dtype: str = "float32"
    phase: Phase = Phase.FORWARD
    matmul: MatmulShape | None = None
    attention: AttentionShape | None = None
    conv: ConvCase | None = None
    recurrence: RecurrenceCase | None = None
    size_bytes: int = 0
    group_size: int = 1

    @property
    def label(self) -> str:
        """What is being measured, for a progress line."""
        if self.matmul is not None:
            shape = self.matmul
            batch = f"{shape.batch} x " if shape.batch > 1 else ""
            return f"matmul {self.dtype} {batch}{shape.m}x{shape.k}x{shape.n}"
        if self.attention is not None:
            return f"attention {self.phase} {self.dtype} {self.attention.q_len} tokens"
        if self.conv is not None:
            return f"convolution {self.phase} {self.dtype} {self.conv}"
        if self.recurrence is not None:
            return f"recurrence {self.phase} {self.dtype} {self.recurrence}"
        if self.family in ("launch", "bandwidth"):
            return self.family
        ranks = f" on {self.group_size}" if self.family == "link" else ""
        return f"{self.op}{ranks} {self.size_bytes / KIB:.0f} KiB"

    @property
    def shape(self) -> dict[str, int]:
        """The sizes of a matmul or an attention call, by name."""
        sizes: dict[str, int] = encode(self.matmul or self.attention or {})
        return sizes

    @property
    def work_flop(self) -> float:
        """Of the forward; an attention's as if it were not causal, 0 for what moves bytes alone."""
        if self.matmul is not None:
            return 2.0 * math.prod(self.shape.values())
        if self.attention is not None:
            x = self.attention
            return 4.0 * x.batch * x.heads * x.q_len * x.kv_len * x.head_dim
        if self.conv is not None:
            return float(conv_op(self.conv, self.phase, self.dtype).work_flop)
        if self.recurrence is not None:
            return float(recurrence_op(self.recurrence, self.phase, self.dtype).work_flop)
        return 0.0

    @property
    def num_tensors(self) -> int:
        """Tensors that a memory op reads and writes; raises InputError for another op."""
        counts = {"adamw": ADAMW_TENSORS} | {key: n for _, ops in MEMORY_OPS for key, n in ops}
        if self.op not in counts:
            raise InputError(f"memory op {self.op!r} is not one of {', '.join(sorted(counts))}")
        return counts[self.op]

    @property
    def num_elements(self) -> int:
        """Of each tensor of a memory op: whole rows, or one shorter row for a small size."""
        if self.family == "aten":
            return max(1, self.size_bytes // 4)
        count = max(1, self.size_bytes // (4 * self.num_tensors))
        return count - count % ROW if count >= ROW else count

    @property
    def moved_bytes(self) -> int:
        """Bytes that a memory op really moves: its size rounded to whole rows; an aten op's as
        tracing counts them."""
        if self.family == "aten":
            return aten_bytes(self.op, self.num_elements, self.dtype)
        return self.num_tensors * 4 * self.num_elements

    @property
    def buffer_bytes(self) -> int:
        """Of a link's full buffer: the size in whole fp32 elements per rank of the group."""
        return 4 * self.group_size * max(1, self.size_bytes // (4 * self.group_size))


def probe_cases(
    *, num_devices: int, quick: bool, accelerator: bool, rng: np.random.Generator
) -> tuple[Case, ...]:
    """Every case in a random order, so that a slow minute does not fall on one kind of op.

    quick        a coarse grid for a first look
    accelerator  larger shapes and half precision first: what a GPU is made for
    """
    cases = [
        Case(family="launch"),
        # Larger than a core's caches (at most 96 MiB of L3 per chiplet: AMD EPYC 9684X, amd.com).
        Case(family="bandwidth", size_bytes=(1024 if accelerator else 256) * MIB),
        *matmul_cases(quick=quick, accelerator=accelerator),
        *attention_cases(quick=quick, accelerator=accelerator),
        *memory_cases(quick=quick, accelerator=accelerator),
        *(() if accelerator else conv_cases(quick=quick)),
        *(() if accelerator else recurrence_cases(quick=quick)),
        *(() if accelerator else aten_cases(quick=quick)),
        *link_cases(num_devices=num_devices, quick=quick),
    ]
    return tuple(cases[index] for index in rng.permutation(len(cases)))


def matmul_cases(*, quick: bool, accelerator: bool) -> list[Case]:
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
        # Layers of few samples, the gradients of their weights, and heads of few classes.
        for few, side in product((2, 8), (256, 1024, 4096)):
            shapes |= {(1, few, side, side), (1, side, side, few)}
        shapes |= {(1, 64, 8, 1024), (1, 64, 1024, 8), (1, 8, 1024, 64)}
    shapes = {s for s in shapes if accelerator or math.prod(s) <= _LARGEST_PRODUCT}
    return [
        Case(family="matmul", dtype=dtype, matmul=MatmulShape(batch=b, m=m, n=n, k=k))
        for dtype in ("float32", "bfloat16")
        for b, m, n, k in sorted(shapes)
    ]


def attention_cases(*, quick: bool, accelerator: bool) -> list[Case]:
    """Causal attention forward and backward by length, batch and head size; on a CPU also without
    a mask, short and with small heads: a small BERT's backward in bf16 took 19 ms, read off causal
    ones of 128 tokens and more 6.5 (two cores, torch 2.13, 2026-11-23)."""
    sizes = [(1, 8), (4, 16)]
    if quick:
        shapes = [(1, 8, 128, 64, True), (1, 8, 512, 64, True)]
    else:
        shapes = [(b, h, s, d, True) for b, h in sizes for s in (128, 512, 2048) for d in (64, 128)]
        if not accelerator:  # seconds a call on a CPU, and in proportion to the smaller batch
            shapes = [shape for shape in shapes if shape[:3] != (4, 16, 2048)]
    if accelerator:
        shapes += [(1, 32, s, 128, True) for s in ((4096,) if quick else (4096, 8192))]
    elif not quick:
        shapes += [(b, h, s, 32, True) for b, h in sizes for s in (64, 256)]
        shapes += [
            (b, h, s, d, False) for b, h in sizes for s in (64, 128, 512) for d in (32, 64, 128)
        ]
        # Shorter than a block of the kernel, and lengths that no block divides (patches of images).
        shapes += [(2, 4, 16, 32, False), (2, 6, 50, 64, False), (8, 4, 40, 32, False)]
        shapes += [(4, 3, 26, 64, False), (1, 4, 197, 16, False)]
    dtypes = ("float32",) if quick and not accelerator else ("float32", "bfloat16")
    return [
        Case(
            family="attention",
            dtype=dtype,
            phase=phase,
            attention=AttentionShape(
                batch=b, heads=h, kv_heads=h, q_len=s, kv_len=s, head_dim=d, causal=causal
            ),
        )
        for dtype in dtypes
        for b, h, s, d, causal in shapes
        for phase in Phase
    ]


def memory_cases(*, quick: bool, accelerator: bool) -> list[Case]:
    """Memory-bound ops and the optimizer step of one parameter, by the bytes they move."""
    sizes = [16 * KIB, 256 * KIB, 4 * MIB, 64 * MIB]
    if not quick:
        sizes = [4 * KIB * 4**i for i in range(9)]  # 4 KiB to 256 MiB
    if accelerator:
        sizes.append(1024 * MIB)
    variants = [name for _, ops in MEMORY_OPS for name, _ in ops]
    return [
        Case(family="memory", op=op, size_bytes=size)
        for op in (*variants, "adamw")
        for size in sizes
    ]


def conv_cases(*, quick: bool) -> list[Case]:
    """Convolutions of each kind, forward and backward; in bf16 where there is time for it."""
    return [
        Case(family="conv", dtype=dtype, phase=phase, conv=conv)
        for dtype in _types(quick=quick)
        for conv in (QUICK_CONVOLUTIONS if quick else CONVOLUTIONS)
        for phase in Phase
    ]


def recurrence_cases(*, quick: bool) -> list[Case]:
    """Layers of each kind of recurrence, forward and backward."""
    return [
        Case(family="recurrence", dtype=dtype, phase=phase, recurrence=layer)
        for dtype in _types(quick=quick)
        for layer in recurrence_layers(quick=quick)
        for phase in Phase
    ]


def aten_cases(*, quick: bool) -> list[Case]:
    """Memory-bound ops by name, small, as large as a core's caches, and beyond them."""
    sizes = {
        "float32": (4 * KIB, MIB) if quick else (4 * KIB, 64 * KIB, MIB, 8 * MIB),
        "bfloat16": () if quick else (4 * KIB, 64 * KIB, MIB, 8 * MIB),
    }
    return [
        Case(family="aten", op=name, dtype=dtype, size_bytes=size)
        for dtype, own in sizes.items()
        for name in aten_names()
        for size in own
    ]


def _types(*, quick: bool) -> tuple[str, ...]:
    """Data types of ops that a CPU measures one by one: a quick profile takes fp32 for bf16."""
    return ("float32",) if quick else ("float32", "bfloat16")


def link_cases(*, num_devices: int, quick: bool) -> list[Case]:
    """Messages and collectives of 1 KiB to 64 MiB, for every group size of two or more."""
    step = 8 if quick else 4
    sizes = [KIB]
    while sizes[-1] * step < 64 * MIB:
        sizes.append(sizes[-1] * step)
    sizes.append(64 * MIB)
    cases = []
    for group_size in range(2, num_devices + 1):
        operations = ("send", *COLLECTIVES) if group_size == 2 else COLLECTIVES
        cases += [
            Case(family="link", op=operation, size_bytes=size, group_size=group_size)
            for operation in operations
            for size in sizes
        ]
    return cases
