"""Peaks of our own executor on a GPU (docs/gpu.md): predicted by layouts, and measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwright

MEASURED = Path(__file__).parents[2] / "docs" / "measurements" / "h200.json"
PINS = {
    "one-way": {"micro_batch": (8,)},
    "small-batches": {"micro_batch": (1,)},
    "recompute": {"micro_batch": (4,), "recompute": ("full",)},
}


@pytest.mark.parametrize("name", PINS)
def test_the_peak_of_llama_on_one_gpu_is_the_measured_one(name: str) -> None:
    plans = json.loads(MEASURED.read_text())["plans"]
    (measured,) = (one["measured"]["peak_bytes"] for one in plans if one["name"] == name)
    work = shardwright.Workload(global_batch=16, sequence_length=2048, precision="bf16")
    answer = shardwright.plan(
        "llama-3.2-1b", "1x1xh200-sxm", work, stack="torch", zero=(0,), **PINS[name]
    )
    (rank,) = shardwright.predict(answer).prediction.ranks
    assert rank.peak_bytes == pytest.approx(measured[0], rel=0.005)
