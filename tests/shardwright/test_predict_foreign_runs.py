"""`predict --runs` on tables that others write: their words, their zeros, their mistakes."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from profiles.hardware.catalogue.catalog import device_names, get_device
from shardwright.commands.tables.predict_runs import predict_table, predicted_runs
from shardwright.runs.predict_runs import PredictedRow, predict_runs
from shardwright.runs.run import PublishedRun

RUN = PublishedRun(
    row=1,
    id="r",
    model="ours",
    num_layers=32,
    hidden_size=4096,
    ffn_size=14336,
    num_heads=32,
    num_kv_heads=8,
    vocab_size=128256,
    seq_len=4096,
    gated_mlp=True,
    tied_embeddings=False,
    device="h100-sxm-80gb",
    num_devices=64,
    dp=16,
    tp=4,
    pp=1,
    micro_batch=1,
    global_batch=128,
    recompute="full",
    framework="Megatron-Core r0.12",
)


def written(folder: Path, text: str) -> list[dict[str, str]]:
    """What the command writes for the text of a table."""
    path = folder / "runs.csv"
    path.write_text(text, encoding="utf-8")
    predict_table(path, folder / "out.csv")
    return list(csv.DictReader(io.StringIO((folder / "out.csv").read_text(encoding="utf-8"))))


def predicted(**changes: object) -> PredictedRow:
    (found,) = predict_runs([replace(RUN, **changes)])  # type: ignore[arg-type] # by name
    return found


def step_s(found: PredictedRow) -> float:
    assert found.step_time_s is not None, found.why_not
    return found.step_time_s.value


def peak_bytes(found: PredictedRow) -> float:
    assert found.shown_memory_bytes is not None, found.why_no_memory
    return found.shown_memory_bytes.value


def test_tf32_is_fp32_on_its_units() -> None:
    """One row in tf32 cost the whole table its predictions."""
    tf32, fp32, bf16 = (predicted(precision=x) for x in ("tf32", "fp32", "bf16"))
    assert step_s(tf32) == step_s(fp32) > step_s(bf16)
    assert tf32.run is not None
    assert "fp32 products on the TF32 units" in tf32.run.defaults
    assert "gaudi2 has no TF32 units" in predicted(precision="tf32", device="gaudi2").why_not


@pytest.mark.parametrize("device", device_names())
def test_fp32_never_beats_the_units_that_compute_it(device: str) -> None:
    """6 flop per weight and token (and 2 more for the recomputation) at the datasheet's rate."""
    run = predicted(device=device, precision="fp32")
    assert run.run is not None
    peaks = get_device(device).peak_flop_per_s
    peak = peaks["tf32" if "tf32" in peaks else "float32"].value
    matmuls = 8 * (run.run.model.parameters - 128256 * 4096) * 128 * 4096
    assert step_s(run) > matmuls / 64 / peak


def test_fp32_keeps_twice_the_activations() -> None:
    """States 4 + 4 + 8 bytes a parameter, against 2 + 4 + 12; what a layer keeps takes double."""
    many = {"micro_batch": 4, "recompute": "none", "zero_stage": 1}
    fp32, bf16 = (predicted(precision=x, **many) for x in ("fp32", "bf16"))
    assert 1.3 < peak_bytes(fp32) / peak_bytes(bf16) < 2.0
    one = {"micro_batch": 1, "dp": 1, "num_devices": 4, "zero_stage": 0, "seq_len": 64}
    fp32, bf16 = (predicted(precision=x, **one) for x in ("fp32", "bf16"))
    weights = 8.03e9 / 4
    assert peak_bytes(bf16) - peak_bytes(fp32) == pytest.approx(2 * weights, rel=0.1)


@pytest.mark.parametrize(
    ("column", "theirs", "ours"),
    [
        ("gated_mlp", "True", "1"),
        ("gated_mlp", "yes", "1"),
        ("tied_embeddings", "FALSE", "0"),
        ("family", "Dense", "dense"),
        ("num_experts", "0", ""),
        ("top_k", "0", ""),
        ("moe_ffn_size", "0", ""),
        ("precision", "BF16", "bf16"),
        ("precision", "fp8 hybrid", "fp8"),
        ("precision", "fp8-delayed", "fp8"),
        ("recompute", "True", "full"),
        ("recompute", "0", "none"),
        ("recompute", "off", "none"),
    ],
)
def test_other_words_for_the_same(tmp_path: Path, column: str, theirs: str, ours: str) -> None:
    head = "id,num_layers,hidden_size,num_heads,device,num_devices,seq_len,global_batch,dp,tp,pp"
    row = "24,2048,16,h100-sxm-80gb,8,2048,64,8,1,1"
    text = f"{head},{column}\na,{row},{theirs}\nb,{row},{ours}\n"
    first, second = written(tmp_path, text)
    assert first["status"] == second["status"] == "ok"
    assert first["step_time_s"] == second["step_time_s"]
    assert first["peak_memory_gib"] == second["peak_memory_gib"]


def test_zero_stages_end_at_three(tmp_path: Path) -> None:
    (row,) = written(tmp_path, "id,num_layers,zero_stage\na,2,4\n")
    assert "'4' is not a ZeRO stage; use 0, 1, 2 or 3" in row["status"]


def test_no_memory_says_why() -> None:
    (row,) = predicted_runs([replace(RUN, framework="nanotron", zero_stage=3)])
    assert row.status == "ok"
    assert row.peak_memory_gib is None
    assert "no memory: the memory of nanotron at ZeRO stage 3 is unknown" in row.defaults


def test_one_bad_layout_costs_only_its_own_row(tmp_path: Path) -> None:
    head = "model,nodes,micro_batch,grad_accum,dp,pp,tp,zero_stage\n"
    rows = "9B,1,64,1,4,2,1,1\n1B,1,64,1,4,2,1,1\n1B,1,x,1,4,2,1,1\n1B,2,1,1,4,2,1,1\n"
    found = written(tmp_path, head + rows)
    assert [row["id"] for row in found] == [f"failed-{n}" for n in range(1, 5)]
    for row, why in zip(
        found,
        ("unknown model '9B'", "ok", "'x' is not a whole number", "is not nodes=2 x 8 devices"),
        strict=True,
    ):
        assert why in row["status"]
