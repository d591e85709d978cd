"""How the curves were made: fits recover what they should, and the shipped files can be remade."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from profiles.hardware.kernels.collective_curve import bus_share, curves_path
from tools.between_nodes import fit_line
from tools.derive_links import (
    fit_corners,
    fit_curves,
    held_out_errors,
    main,
    read_messages,
    read_others,
    read_times,
)

TABLE = Path(__file__).parents[3] / "shared" / "hardware" / "collectives.csv.gz"
SIZES = [2**power for power in range(9, 30)]


def made_up(operation: str, group: int, rate: float, latency: float) -> dict:
    share = bus_share(operation, group)
    return {(operation, group, s): [latency + share * s / rate] for s in SIZES}


def test_a_line_between_nodes_is_recovered():
    carried = np.geomspace(1e4, 1e9, 20)
    fit = fit_line(carried, 17e-6 + carried / 36e9)
    assert fit.latency_s == pytest.approx(17e-6, rel=0.05)
    assert fit.rate_bytes_per_s == pytest.approx(36e9, rel=0.05)
    assert fit.p90_error < 0.05


def test_corners_follow_latency_and_rate():
    times = made_up("all_gather", 8, 300e9, 10e-6)
    curve = fit_corners("all_gather", 8, times)
    for (_, _, size), (time_s,) in times.items():
        assert curve.time_s(size) == pytest.approx(time_s, rel=0.08)
    # Beyond what was measured: the rate of the last increment.
    assert curve.time_s(2**34) == pytest.approx(7 / 8 * 2**34 / 300e9, rel=0.03)
    assert curve.rows == len(SIZES)


def test_held_out_errors_are_small_where_the_law_is_simple():
    times: dict = {}
    for operation in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for group in (2, 4, 8):
            times |= made_up(operation, group, 300e9, 10e-6)
    errors = held_out_errors("h100-sxm-80gb", times, {})
    assert {e.split for e in errors} == {"sizes", "groups", "largest-group"}
    assert max(e.median for e in errors if e.split == "groups") < 0.05
    assert max(e.median for e in errors) < 0.12
    assert len(fit_curves(times)) == 12


def row(**fields: str) -> dict[str, str]:
    base = {
        "source": "aiconfigurator nccl_perf",
        "collective": "all_gather",
        "accelerator": "X",
        "dtype": "half",
        "n_gpus": "4.0",
        "n_nodes": "1",
        "size_bytes": "1024.0",
        "size_label": "",
        "time_us": "8.0",
        "busbw_gbps": "",
        "algo": "",
        "notes": "",
    }
    return {**base, **fields}


def test_only_comparable_rows_are_read():
    rows = [
        row(),
        row(time_us="10.0"),
        row(dtype="int8"),
        row(accelerator="Y"),
        row(collective="ep_dispatch"),
    ]
    assert read_times(rows, ("X",)) == {("all_gather", 4, 1024): [8e-6, pytest.approx(10e-6)]}
    message = {"source": "vidur network profile", "collective": "send_recv", "n_gpus": "2.0"}
    labels = [
        row(**message, size_label="size=2048 (unit as in file)"),
        row(**{**message, "n_nodes": "2"}, size_label="size=4096"),
    ]
    assert read_messages(labels, "X", "1") == {("send", 2, 2048): [8e-6]}
    big = {"source": "stas00 NVLS sweep", "n_gpus": "8.0", "size_bytes": str(2.0**33)}
    others = [
        row(**big, busbw_gbps="350.0", algo="NVLS"),
        row(**big, busbw_gbps="300.0", algo="Ring (NCCL_NVLS_ENABLE=0)"),
        row(**{**big, "size_bytes": "1024"}, busbw_gbps="1.0"),
    ]
    assert read_others(others, "X") == {
        ("all_gather", 8, 2**33): [pytest.approx(7 / 8 * 2**33 / 350e9)]
    }


def test_the_shipped_files_are_what_the_script_makes(tmp_path, monkeypatch):
    if not TABLE.is_file():
        pytest.skip(f"the table {TABLE.name} is not beside the checkout")
    monkeypatch.setattr("tools.derive_links.curves_path", lambda d: tmp_path / d)
    main(TABLE.parent)
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert len(made) == 9
    for device, text in made.items():
        assert curves_path(device).read_text(encoding="utf-8") == text, device
