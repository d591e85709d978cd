"""Peaks of our own executor on a GPU (docs/gpu.md): predicted by layouts, and measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwright

MEASURED = Path(__file__).parents[2] / "docs" / "measurements" / "h200.json"
NEAR = {
    "one-way": 0.002,
    "small-batches": 0.002,
    "recompute": 0.002,
    "gpt2": 0.005,
    "bert-large": 0.005,
    "shared-zero-0": 0.01,
    "shared-zero-3": 0.01,
    "shared-tensor": 0.01,
    "shared-pipeline": 0.01,
    "shared-split-backward": 0.02,
    "shared-interleaved": 0.02,
    "shared-zero-2-pipeline": 0.01,
}
"""Relative error. `shared-zero-1` ran before ZeRO 1 became FSDP2's."""


@pytest.mark.parametrize("name", NEAR)
def test_the_peak_on_one_gpu_is_the_measured_one(name: str) -> None:
    (plan,) = (one for one in json.loads(MEASURED.read_text())["plans"] if one["name"] == name)
    flags = dict(zip(plan["flags"][::2], plan["flags"][1::2], strict=True))
    work = shardwright.Workload(
        global_batch=int(flags.pop("--global-batch")),
        sequence_length=int(flags.pop("--seq")),
        precision=flags.pop("--precision"),
    )
    pins = {
        flag[2:].replace("-", "_"): (int(value) if value.isdigit() else value,)
        for flag, value in flags.items()
    }
    answer = shardwright.plan(plan["model"], plan["cluster"], work, stack="torch", **pins)
    degrees = answer.chosen.run.degrees
    measured = plan["measured"]["peak_bytes"]
    ranks = shardwright.predict(answer).prediction.ranks
    for number, rank in enumerate(ranks):
        there = measured[degrees.rank(pp=number)]
        assert rank.peak_bytes == pytest.approx(there, rel=NEAR[name])
