"""Profiles, benchmarks and snapshots with hand-made contents."""

from __future__ import annotations

import gzip
import json
import pickle
import sqlite3
from pathlib import Path

import pytest
from shardwright_frameworks.traces.chrome_trace import read_chrome_trace
from shardwright_frameworks.traces.kernel_kind import kind_of
from shardwright_frameworks.traces.memory_snapshot import read_memory_snapshot
from shardwright_frameworks.traces.nccl_tests import NcclOutput, nccl_data, read_nccl_tests
from shardwright_frameworks.traces.nsys_export import read_nsys_export
from shardwright_frameworks.traces.opened_log import open_log
from shardwright_frameworks.traces.trace_time import TraceTime

from profiles.errors import DocumentError

# Two steps of 100 us on one device. Computes [0,40] and [30,60] (60 us together), NCCL [50,80]
# (20 us beyond the compute, 10 us beside it), a copy [85,90], then nothing: 35 us are idle.
STEP = (
    ("nvjet_tst_128x256_64x4_2x1_v_bz_coopB_TNT", 0, 40),
    ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", 30, 30),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", 50, 30),
    ("Memcpy DtoD (Device -> Device)", 85, 5),
)


def events(*, annotated: bool = True) -> list[dict[str, object]]:
    found: list[dict[str, object]] = [{"ph": "M", "name": "process_name", "pid": 0}]
    for step in range(2):
        at = 1e6 + 100 * step
        if annotated:
            found.append(
                {
                    "ph": "X",
                    "cat": "user_annotation",
                    "name": f"ProfilerStep#{step + 7}",
                    "ts": at,
                    "dur": 100,
                }
            )
        found.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": at, "dur": 3})
        for name, begin, duration in STEP:
            category = "gpu_memcpy" if name.startswith("Mem") else "kernel"
            found.append(
                {
                    "ph": "X",
                    "cat": category,
                    "name": name,
                    "ts": at + begin,
                    "dur": duration,
                    "pid": 0,
                    "args": {"device": 3, "stream": 7},
                }
            )
    return found


def check(trace: TraceTime) -> None:
    (device,) = trace.devices
    assert (device.device, device.steps, device.kernels) == ("device 3", 2, 8)
    us = 1e-6
    assert device.step_time_s == pytest.approx(100 * us)
    assert device.compute_s == pytest.approx(60 * us)
    assert device.exposed_communication_s == pytest.approx(20 * us)
    assert device.hidden_communication_s == pytest.approx(10 * us)
    assert device.copy_s == pytest.approx(5 * us)
    assert device.idle_s == pytest.approx(15 * us)
    assert device.by_kind["attention"] == pytest.approx(30 * us)
    assert device.collectives == {"reduce_scatter": pytest.approx(30 * us)}
    parts = device.compute_s + device.exposed_communication_s + device.copy_s + device.idle_s
    assert parts == pytest.approx(device.step_time_s)


def test_a_chrome_trace_tells_the_parts_of_a_step(tmp_path: Path) -> None:
    plain, packed = tmp_path / "trace.json", tmp_path / "trace.json.gz"
    text = json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events()})
    plain.write_text(text, encoding="utf-8")
    packed.write_bytes(gzip.compress(text.encode()))
    check(read_chrome_trace(plain))
    found = open_log(packed)
    assert isinstance(found, TraceTime)
    check(found)
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(events()), encoding="utf-8")
    check(read_chrome_trace(bare))


def test_a_trace_that_is_cut_or_without_kernels_is_read_in_part(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    text = json.dumps({"traceEvents": events()})
    path.write_text(text[: int(len(text) * 0.7)], encoding="utf-8")
    assert read_chrome_trace(path).devices[0].kernels < 8
    path.write_text(json.dumps({"traceEvents": events()[:1]}), encoding="utf-8")
    empty = read_chrome_trace(path)
    assert empty.devices == ()
    assert "no kernels" in empty.notes[0]
    path.write_text(json.dumps({"traceEvents": events(annotated=False)}), encoding="utf-8")
    assert "no steps are marked" in read_chrome_trace(path).notes[0]
    path.write_text('{"other": 1}', encoding="utf-8")
    with pytest.raises(DocumentError, match="no traceEvents"):
        read_chrome_trace(path)


def nsys_file(path: Path, *, nvtx: bool = True) -> Path:
    base = sqlite3.connect(path)
    names = {name: number for number, (name, _, _) in enumerate(STEP, 1)}
    base.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    base.executemany("INSERT INTO StringIds VALUES (?, ?)", [(n, s) for s, n in names.items()])
    columns = "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER"
    base.execute(
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({columns}, demangledName INTEGER, "
        "shortName INTEGER)"
    )
    base.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({columns}, bytes INTEGER)")
    base.execute(
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER, "
        "globalTid INTEGER)"
    )
    for step in range(2):
        at = 5_000_000 + 100_000 * step
        if nvtx:
            base.execute(
                "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, NULL, 1)",
                (at, at + 100_000, f"iteration {step}"),
            )
        for name, begin, duration in STEP:
            row = (at + 1000 * begin, at + 1000 * (begin + duration), 3, 7)
            if name.startswith("Mem"):
                base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,?,8)", row)
            else:
                base.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?)",
                    (*row, names[name], names[name]),
                )
    base.commit()
    base.close()
    return path


def test_an_nsys_export_tells_the_same(tmp_path: Path) -> None:
    found = open_log(nsys_file(tmp_path / "report.sqlite"))
    assert isinstance(found, TraceTime)
    check(found)
    before = (tmp_path / "report.sqlite").read_bytes()
    assert (tmp_path / "report.sqlite").read_bytes() == before
    assert (
        "no steps are marked"
        in read_nsys_export(nsys_file(tmp_path / "bare.sqlite", nvtx=False)).notes[0]
    )


def test_other_databases_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE cats (name TEXT)")
    base.commit()
    base.close()
    with pytest.raises(DocumentError, match=r"no export of Nsight Systems.*nsys export"):
        open_log(path)
    path.write_bytes(b"SQLite format 3\0" + b"rubbish" * 100)
    with pytest.raises(DocumentError, match="Nsight Systems"):
        open_log(path)


NCCL = """# nccl-tests version 2.17.0 nccl-headers=22703
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid  101 on  node0 device  0 [0x0f] NVIDIA H100 80GB HBM3
#  Rank  7 Group  0 Pid  101 on  node0 device  7 [0xdb] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw
1048576  262144 float sum -1  50.00  20.97 36.70 0  51.00  20.56  35.98 0
2097152  524288 float sum -1  60.00  34.95 61.17 0  61.00  34.38  60.16 0
4194304 1048576 float sum -1  80.00  52.43 91.75 3  81.00  51.78  90.62 3
# Avg bus bandwidth    : 65.1
"""


def test_nccl_tests_give_a_curve(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(NCCL, encoding="utf-8")
    output = open_log(path)
    assert isinstance(output, NcclOutput)
    (found,) = output.curves
    assert (found.operation, found.devices, found.hosts) == ("all_reduce", 8, 1)
    assert found.device_name == "NVIDIA H100 80GB HBM3"
    # The row with wrong values is left out.
    assert [point.size_bytes for point in found.points] == [2**20, 2**21]
    # busbw = size / time x 2 (n - 1) / n = 2^20 / 50 us x 1.75 = 36.7 GB/s
    point = found.points[0]
    assert point.bus_bytes_per_s == pytest.approx(2**20 / 50e-6 * 1.75, rel=1e-3)
    path.write_text("".join(NCCL.splitlines(keepends=True)[:6]), encoding="utf-8")
    with pytest.raises(DocumentError, match="no row of results"):
        read_nccl_tests(path)


def test_several_benchmarks_in_one_file_are_several_curves(tmp_path: Path) -> None:
    """As mpirun and kubectl print them: names of processes before the lines, of builds with MPI."""
    again = NCCL.replace("all_reduce_perf", "alltoall_perf_mpi").replace(
        "node0 device  7", "node1 device  7"
    )
    path = tmp_path / "both.txt"
    text = "".join(f"[1,0]<stdout>:{line}\n" for line in (NCCL + again).splitlines())
    path.write_text(text, encoding="utf-8")
    first, second = read_nccl_tests(path).curves
    assert (first.operation, first.hosts) == ("all_reduce", 1)
    assert (second.operation, second.hosts, second.devices) == ("all_to_all", 2, 8)
    assert first.points == second.points
    assert [each["operation"] for each in nccl_data(read_nccl_tests(path))["curves"]] == [
        "all_reduce",
        "all_to_all",
    ]


HEAD = "       size         count    type   redop     time   algbw   busbw  error     time   algbw"
NEW = (
    "#       size    count   type  redop  root   time   algbw   busbw #wrong   time   algbw   busbw"
)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # Until 2.10: no `#`, no root, the largest error of an element; of alltoall no operation.
        ([" Using devices", "   Rank  0 Pid 7 on a1 device  0 [0x00] NVIDIA A100-SXM4-40GB", HEAD,
          "  1048576  262144  float  sum  50.0  20.97  36.70  2e-07  51.0  20.56  35.98  2e-07"],
         (1, 50e-6, 36.70e9)),
        ([HEAD, "  1048576  262144  float  50.0  20.97  18.35  0e+00  51.0  20.56  18.0  0e+00"],
         (None, 50e-6, 18.35e9)),
        # The table alone, as tickets quote it; in place not measured (alltoall).
        ([NEW, "  1048576  131072  float  none  -1  50.0  20.97  18.35  0  51.0  20.56  18.0  N/A"],
         (None, 50e-6, 18.35e9)),
        # Names of ranks before the lines and, where two wrote at once, within them.
        (["[1]#  Rank  1 Group  0 Pid   314 on b device  0 [0x2a] NVIDIA H100", f"[0]{NEW}",
          "[0]  1048576 262144 float sum -1[0]  50.0  20.97  36.70  0[0]  51.0  20.56  35.9  0"],
         (2, 50e-6, 36.70e9)),
    ],
)  # fmt: skip
def test_tables_of_older_versions_and_without_settings(
    lines: list[str], expected: tuple[int | None, float, float], tmp_path: Path
) -> None:
    path = tmp_path / "out.txt"
    path.write_text("\n".join(["srun: job 1 started"] * 3 + lines) + "\n", encoding="utf-8")
    output = open_log(path)
    assert isinstance(output, NcclOutput)
    (curve,) = output.curves
    (point,) = curve.points
    assert (curve.devices, point.time_s, point.bus_bytes_per_s) == pytest.approx(expected)


def test_a_second_head_is_a_second_benchmark(tmp_path: Path) -> None:
    row = "  1048576 262144 float sum -1  {}  20.97  36.70  0  51.0  20.56  35.98  0"
    path = tmp_path / "out.txt"
    text = "\n".join([NEW, row.format("50.0"), NEW, row.format("70.0")]) + "\n"
    path.write_text(text, encoding="utf-8")
    assert [c.points[0].time_s for c in read_nccl_tests(path).curves] == pytest.approx([5e-5, 7e-5])


def test_a_snapshot_as_json_and_never_a_pickle(tmp_path: Path) -> None:
    data = {
        "segments": [
            {"device": 0, "total_size": 4000, "allocated_size": 1000, "active_size": 1000}
        ],
        # From 1500 bytes before: +2000, -2500 freed, so 1000 now; 3500 at the peak.
        "device_traces": [
            [{"action": "alloc", "size": 2000}, {"action": "free_completed", "size": 2500}]
        ],
    }
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    (found,) = read_memory_snapshot(path)
    assert (found.allocated_bytes, found.reserved_bytes, found.peak_bytes) == (1000, 4000, 3500)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(data))
    with pytest.raises(DocumentError, match="is a pickle"):
        open_log(path)
    path = tmp_path / "list.json"
    for text in ("[]", "{}", "{"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DocumentError, match="is it a memory snapshot of torch as JSON"):
            read_memory_snapshot(path)


def test_kernels_are_known_by_their_names() -> None:
    named = {
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": "communication",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>": "matmul",
        "Cijk_Alik_Bljk_BBS_BH_MT256x256x32": "matmul",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_kernel": "attention",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80": "attention",
        "triton_poi_fused_add_mul_silu_3": "other",
        "Memset (Device)": "copy",
    }
    assert {name: kind_of(name) for name in named} == named
