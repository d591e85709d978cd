"""Keywords of Python's functions, written by `python -m tools.option_files`."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict


class PlanKeywords(TypedDict, total=False):
    """Options of `plan`. One value pins an axis, a tuple allows only its values."""

    tp: int | tuple[int, ...] | None
    pp: int | tuple[int, ...] | None
    dp: int | tuple[int, ...] | None
    dp_replicate: int | tuple[int, ...] | None
    cp: int | tuple[int, ...] | None
    ep: int | tuple[int, ...] | None
    micro_batch: int | tuple[int, ...] | None
    zero: int | tuple[int, ...] | None
    vpp: int | tuple[int, ...] | None
    recompute: str | tuple[str, ...] | None
    schedule: str | tuple[str, ...] | None
    fit_risk: float | None
    calibration: str | Path | None
    order: tuple[str, ...]
    reduce: tuple[str, ...]
    compress: tuple[str, ...]
    local_steps: tuple[int, ...]
    local_workers: int
    wide_layers: int
    optimizer_offload: bool
    sequence_parallel: bool
    activation_offload: tuple[float, ...]
    lora: int
    base_precision: str
    expert_imbalance: float
    pipeline_layout: str
    lengths: tuple[tuple[int, float], ...]
    optimizer: str
    solver: str
    time_limit_s: float | None
    seed: int
    prices: str | Path | None
    reliability: str | Path | None
    region: str


class SizeKeywords(TypedDict, total=False):
    """Options of `size`, as texts of its flags."""

    stack: str
    nodes: str
    tokens: str
    deadline: str
    budget: str
    price: str
    minimise: str
    sure: str
    devices: str
    global_batch: str
    sequence_length: int | None
    precision: str
    lora: int
    network: str
    pue: float | None
    region: str
    prices: str | Path | None
    reliability: str | Path | None
    base_precision: str
    expert_imbalance: float
    lengths: tuple[tuple[int, float], ...]
    optimizer: str
    phases: str | Path | None
