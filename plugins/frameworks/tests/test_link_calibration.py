"""`profile --from` the output of nccl-tests: what plans and predictions then use."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from shardwright_frameworks.commands.calibrate_logs import calibrate_from_logs
from shardwright_frameworks.requests.measured_cluster import ANY_MODEL, measured_cluster
from shardwright_frameworks.traces.nccl_tests import read_nccl_tests

from planner.layout.layout_question import base_run
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_cluster
from simulator.training_run.fit.recalibration import calibrated, read_calibration
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.messages.rank_group import RankGroup
from simulator.training_run.messages.run_links import links_of, moved
from simulator.training_run.step.coefficients import shipped_coefficients

ROW = "{size:12d} {count:12d}     float     sum      -1 {us:8.2f} {bus:6.2f} {bus:6.2f}      0 "


def printed(hosts: int, *, slower: float, name: str = "NVIDIA H100 80GB HBM3") -> str:
    """An all-reduce on eight devices a host; between hosts bytes take `slower` times as long."""
    run = base_run(
        "x",
        ANY_MODEL,
        get_cluster(f"{hosts}x8xh100-sxm"),
        rules=load_framework("megatron-core").rules,
        global_batch=1,
        seq_len=1,
        precision="bf16",
    )
    lines = [
        "# nccl-tests version 2.17.6 nccl-headers=22808 nccl-library=22808",
        "# Collective test starting: all_reduce_perf",
        "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1073741824 step: 4(factor)",
        "#",
        "# Using devices",
    ]
    lines += [
        f"#  Rank {n:2d} Group  0 Pid {900 + n} on gpu-{n // 8} device {n % 8:2d} [0x1b] {name}"
        for n in range(8 * hosts)
    ]
    for power in range(20, 31, 2):
        time = moved("all_reduce", 2**power, RankGroup(((8 * hosts, 1),)), links_of(run))
        latency_s = time.inner_latency_s + time.outer_latency_s
        us = 1e6 * (max(time.inner_s, slower * time.outer_s) + latency_s)
        row = ROW.format(size=2**power, count=2**power // 4, us=us, bus=9.9)
        lines.append(row + row[52:])
    return "\n".join([*lines, "# Out of bounds values : 0 OK"]) + "\n"


def test_a_slow_network_is_found_and_kept(tmp_path: Path) -> None:
    one, four = tmp_path / "one.txt", tmp_path / "four.txt"
    one.write_text(printed(1, slower=1.0), encoding="utf-8")
    four.write_text(printed(4, slower=1.6), encoding="utf-8")
    output = tmp_path / "mine.toml"
    calibrate_from_logs([one, four], [], output, force=False)
    made = read_calibration(output)
    shipped = shipped_coefficients()
    assert sorted(made.values) == ["inner.*", "outer.*"]
    after = calibrated(made).values
    for name, factor in (("inner.*", 1.0), ("outer.*", 1.6)):
        assert after[name] == pytest.approx(factor * shipped.values[name], rel=0.01)
    assert made.runs == 0
    assert made.residual < 0.02 < 0.1 < made.error_before


def test_the_cluster_is_read_off_the_ranks_or_named(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.txt"
    path.write_text(printed(2, slower=1.2), encoding="utf-8")
    found = measured_cluster({path: read_nccl_tests(path)})
    assert found.cluster == "2x8xh100-sxm-80gb"
    assert math.isclose(found.factors.outer or 0.0, 1.2, rel_tol=0.01)
    unknown = printed(2, slower=1.2, name="NVIDIA Graphics Device")
    path.write_text(unknown, encoding="utf-8")
    output = {path: read_nccl_tests(path)}
    with pytest.raises(InputError, match="--on 2x8xh100-sxm"):
        measured_cluster(output)
    named = measured_cluster(output, "2x8xh100-sxm")
    assert named.after == pytest.approx(found.after)
    # Without the lines of ranks all devices of the named cluster took part.
    bare = "\n".join(line for line in unknown.splitlines() if "Rank" not in line)
    path.write_text(bare, encoding="utf-8")
    output = {path: read_nccl_tests(path)}
    with pytest.raises(InputError, match="names no device"):
        measured_cluster(output)
    assert measured_cluster(output, "2x8xh100-sxm").after == named.after
