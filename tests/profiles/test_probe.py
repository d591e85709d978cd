"""A small probe of this machine with real processes: structure and physics, never wall time."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from profiles.document import read_document, write_document
from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.probe.fingerprint import (
    available_memory_bytes,
    fingerprint_differences,
    fingerprint_of_machine,
    machine_memory_bytes,
    num_cores,
)
from profiles.hardware.probe.probe import measure_cases, measure_machine, most_devices
from profiles.hardware.probe.probe_cases import KIB, MIB, Case, probe_cases
from profiles.hardware.probe.probe_timing import Effort
from profiles.model.graph import AttentionShape, MatmulShape, Phase

DATE = "2026-11-21"


def matmul(size: int) -> Case:
    return Case(family="matmul", shape=MatmulShape(batch=1, m=size, n=size, k=size))


def attention(phase: Phase) -> Case:
    shape = AttentionShape(
        batch=1, heads=4, kv_heads=2, q_len=128, kv_len=128, head_dim=32, causal=True
    )
    return Case(family="attention", phase=phase, shape=shape)


def link(operation: str, size_bytes: int) -> Case:
    return Case(family="link", op=operation, size_bytes=size_bytes, group_size=2)


# Here times must only differ where the work differs tenfold or more.
LITTLE = Effort(budget_s=0.01, link_budget_s=0.03, min_samples=3, reference_s=0.02, host_samples=3)
OPERATIONS = ("send", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
CASES = (
    Case(family="launch"),
    Case(family="bandwidth", size_bytes=16 * MIB),
    matmul(64),
    matmul(512),
    attention(Phase.FORWARD),
    attention(Phase.BACKWARD),
    *(
        Case(family="memory", op=op, size_bytes=size)
        for op in ("add", "mul", "gelu", "layer_norm", "softmax", "clone", "embedding", "adamw")
        for size in (16 * KIB, 4 * MIB)
    ),
    *(link(operation, size) for operation in OPERATIONS for size in (4 * KIB, 16 * MIB)),
)


@pytest.fixture(scope="module")
def progress_lines() -> list[tuple[int, int, str]]:
    return []


@pytest.fixture(scope="module")
def local(progress_lines: list[tuple[int, int, str]]) -> Cluster:
    if num_cores() < 2:
        pytest.skip("needs two cores: a probe measures two devices at the same time")
    return measure_cases(
        CASES,
        2,
        date=DATE,
        effort=LITTLE,
        progress=lambda *line: progress_lines.append(line),
    )


def test_the_cluster_holds_every_point(local: Cluster) -> None:
    assert (local.name, local.num_devices, local.num_nodes) == ("local", 2, 1)
    points = local.device_at(0).measurements
    assert points is not None
    assert points.date == DATE
    assert points.source.startswith("measured: this machine, local-")
    assert [(p.m, p.dtype) for p in points.matmul] == [(64, "float32"), (512, "float32")]
    assert [p.phase for p in points.attention] == ["backward", "forward"]
    # three element-wise variants, two reductions, two copies and AdamW, each at two sizes
    count = {op: sum(p.op == op for p in points.memory) for op in {p.op for p in points.memory}}
    assert count == {"elementwise": 6, "reduction": 4, "copy": 4, "optimizer": 2}
    links = local.level_between((0, 1)).link.points
    assert sorted({p.operation for p in links}) == sorted(OPERATIONS)
    assert {p.size_bytes for p in links} == {4 * KIB, 16 * MIB}
    times = [p.time_s for p in (*points.matmul, *points.attention, *points.memory, *links)]
    assert min(times) > 0


def test_more_work_takes_more_time(local: Cluster) -> None:
    device = local.device_at(0)
    assert device.measurements is not None
    small, large = device.measurements.matmul
    assert large.time_s > 10 * small.time_s  # 512 times the work, CPU time
    forward = {p.phase: p.time_s for p in device.measurements.attention}
    assert forward["backward"] > forward["forward"]
    for op in ("elementwise", "reduction", "copy", "optimizer"):
        of_op = [p for p in device.measurements.memory if p.op == op]
        least = min(of_op, key=lambda p: p.moved_bytes)
        most = max(of_op, key=lambda p: p.moved_bytes)
        assert most.time_s > least.time_s
    points = local.level_between((0, 1)).link.points
    reduce = {p.size_bytes: p.time_s for p in points if p.operation == "all_reduce"}
    assert reduce[16 * MIB] > reduce[4 * KIB]


def test_derived_figures(local: Cluster) -> None:
    device, link = local.device_at(0), local.level_between((0, 1)).link
    assert device.measurements is not None
    best = max(2 * p.m * p.n * p.k / p.time_s for p in device.measurements.matmul)
    assert device.peak("float32").value == pytest.approx(best)
    assert device.memory_bytes.value == machine_memory_bytes() / 2
    assert 20 * MIB < device.reserved_bytes.value < 2048 * MIB  # an interpreter with torch
    assert 0 < device.launch_s.value < 1e-3
    assert device.power_w.method == "assumed"
    assert device.power_w.uncertainty >= 1.0
    assert "samples left out" in device.notes
    sends = [p for p in link.points if p.operation == "send"]
    assert link.bandwidth_bytes_per_s.value == max(p.size_bytes / p.time_s for p in sends)
    assert device.fingerprint == fingerprint_of_machine(threads_per_device=1)


def test_progress_has_a_true_bound(
    local: Cluster, progress_lines: list[tuple[int, int, str]]
) -> None:
    assert {total for _, total, _ in progress_lines} == {len(CASES)}
    done = [done for done, _, _ in progress_lines]
    assert done == sorted(done)
    assert done[-1] == len(CASES)


def test_a_profile_is_a_cluster_file(local: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "local.json"
    write_document(path, local, schema="shardwright/cluster@1")
    assert read_document(path, Cluster, schema="shardwright/cluster@1") == local
    assert json.loads(path.read_text())["schema"] == "shardwright/cluster@1"


@pytest.mark.slow
def test_one_device_has_no_link_and_every_visit_counts() -> None:
    cases = [case for case in CASES if case.family != "link"][:4]
    lines: list[tuple[int, int, str]] = []
    alone = measure_cases(
        cases,
        1,
        date=DATE,
        effort=LITTLE,
        visits=2,
        progress=lambda *line: lines.append(line),
    )
    assert (alone.num_devices, alone.levels) == (1, ())
    assert lines[-1][:2] == (8, 8)
    found = re.match(r"4 cases from (\d+) samples; (\d+) samples", alone.device_at(0).notes)
    assert found is not None
    used, left_out = map(int, found.groups())
    assert used + left_out >= 4 * 2 * LITTLE.min_samples


@pytest.mark.parametrize("accelerator", [False, True])
def test_grids_have_no_case_twice_and_quick_is_smaller(accelerator: bool) -> None:
    grids = {
        quick: probe_cases(
            num_devices=4, quick=quick, accelerator=accelerator, rng=np.random.default_rng(0)
        )
        for quick in (True, False)
    }
    assert all(len(set(cases)) == len(cases) for cases in grids.values())
    assert len(grids[True]) < len(grids[False]) / 2
    assert {case.group_size for case in grids[True] if case.family == "link"} == {2, 3, 4}
    again = probe_cases(
        num_devices=4, quick=True, accelerator=accelerator, rng=np.random.default_rng(0)
    )
    assert again == grids[True]


def test_more_devices_than_cores() -> None:
    with pytest.raises(InputError, match=r"100000 devices x 2 threads = 200000 cores"):
        measure_machine(100_000, 2, date=DATE)
    with pytest.raises(InputError, match="at least one device"):
        measure_machine(0, date=DATE)


def test_fingerprint() -> None:
    found = fingerprint_of_machine(threads_per_device=3)
    assert found["threads_per_device"] == "3"
    assert int(found["cores"]) == num_cores()
    assert fingerprint_differences(found, found) == []
    assert fingerprint_differences({**found, "cpu": "other"}, found) == [
        f"cpu: planned other, found {found['cpu']}"
    ]
    assert 0 < available_memory_bytes() <= machine_memory_bytes()


@pytest.mark.parametrize(("gpus", "found"), [(0, 6), (2, 2)])
def test_a_machine_splits_into_its_gpus_or_its_cores(
    gpus: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(12)))
    assert most_devices(2) == found
