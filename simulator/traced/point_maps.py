"""Utilization over shapes, and seconds over bytes, from a device's own measured points."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

from profiles.hardware.catalogue.device import (
    WEIGHT_PASS,
    AttentionPoint,
    ConvPoint,
    MatmulPoint,
    MemoryPoint,
)
from profiles.hardware.kernels.fit import Curve, fit_curve
from profiles.model.graph import RECURRENCES, AttentionShape, MatmulShape, Op, Phase
from simulator.traced.speed_of_light import SpeedOfLight
from simulator.traced.utilisation import UtilisationMap

_BY_SIZE = frozenset({"grouped", "transposed", *RECURRENCES.values()})

Key = TypeVar("Key", bound=Hashable)
Axes = tuple[float, ...]


def matmul_maps(points: Iterable[MatmulPoint], light: SpeedOfLight) -> dict[str, UtilisationMap]:
    """By data type, over batch, m, n and k."""

    def light_s(p: MatmulPoint) -> float:
        return light.matmul(MatmulShape(batch=p.batch, m=p.m, n=p.n, k=p.k), p.dtype)

    return _maps((p.dtype, (p.batch, p.m, p.n, p.k), light_s(p) / p.time_s) for p in points)


def conv_maps(
    points: Iterable[ConvPoint], light: SpeedOfLight
) -> dict[tuple[str, str, str], UtilisationMap]:
    """By kind (ConvShape.kind), pass and data type, over `conv_axes`."""
    return _maps(
        (
            (p.kind, p.phase, p.dtype),
            conv_axes(p.kind, p.images, p.stride, (p.rows, p.channels, p.patch)),
            light.of(p.work_flop, p.moved_bytes, p.dtype) / p.time_s,
        )
        for p in points
    )


def conv_axes(kind: str, images: int, stride: int, product: tuple[int, int, int]) -> Axes:
    """What the utilisation of a convolution depends on: m, n and k of the product that it equals,
    and the stride; of a pointwise one m, n and k of the product that each image is, and the images.

    Of recurrences, transposed and grouped convolutions, of which a profile has 2 to 7 shapes, the
    product's size alone: between so few points in three dimensions little but their mean is read.
    With lines and volumes read beside images, 18 modules written for this comparison came out
    12.6 % off (median of forward and backward; 15.7 % before), an LSTM of 4 sequences and 256
    features 19 % (34 %; two cores, torch 2.13, 2026-11-23).
    """
    rows, channels, patch = product
    if kind in _BY_SIZE:
        return (float(rows) * channels * patch,)
    if kind == "pointwise":  # of stride 1 by its definition
        return (rows / images, channels, patch, images)
    return (rows, channels, patch, stride)


def conv_pass(op: Op) -> str:
    """The pass of a convolution as its points name it (ConvPoint.phase)."""
    assert op.conv is not None
    return str(op.phase) if op.conv.input_gradient else WEIGHT_PASS


def attention_maps(
    points: Iterable[AttentionPoint], light: SpeedOfLight
) -> dict[tuple[str, str, bool], UtilisationMap]:
    """By data type, pass and mask, over `attention_axes`."""

    def of(p: AttentionPoint) -> tuple[tuple[str, str, bool], Axes, float]:
        shape = AttentionShape(
            batch=p.batch,
            heads=p.heads,
            kv_heads=p.kv_heads,
            q_len=p.q_len,
            kv_len=p.kv_len,
            head_dim=p.head_dim,
            causal=p.causal,
        )
        used = light.attention(shape, p.dtype, Phase(p.phase)) / p.time_s
        return (p.dtype, p.phase, p.causal), attention_axes(shape), used

    return _maps(map(of, points))


def memory_curves(points: Iterable[MemoryPoint]) -> dict[tuple[str, str], Curve]:
    """By op and data type, over the bytes moved."""
    rows: dict[tuple[str, str], list[MemoryPoint]] = {}
    for p in points:
        if p.moved_bytes > 0:
            rows.setdefault((p.op, p.dtype), []).append(p)
    return {
        key: fit_curve([p.moved_bytes for p in own], [p.time_s for p in own])
        for key, own in sorted(rows.items())
    }


def attention_axes(shape: AttentionShape) -> Axes:
    """The axes of an attention call's utilization."""
    return (shape.batch * shape.heads, shape.q_len, shape.kv_len, shape.head_dim)


def _maps(points: Iterable[tuple[Key, Axes, float]]) -> dict[Key, UtilisationMap]:
    """By key, from the key, the shape and the utilisation of every point."""
    rows: dict[Key, list[tuple[Axes, float]]] = {}
    for key, axes, used in points:
        rows.setdefault(key, []).append((axes, used))
    return {
        key: UtilisationMap([row[0] for row in own], [row[1] for row in own])
        for key, own in rows.items()
    }
