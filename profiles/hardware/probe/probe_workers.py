"""Worker processes that measure at the same time, one per device.

A job is a function `package.module:name` with JSON arguments. Each worker joins the process group,
runs the function and writes its answer to a file. The first failing worker ends the measurement:
its error is reported, the others are killed.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from profiles.document import read_mapping, to_json, write_text
from profiles.errors import InputError, RunError, ShardwrightError

# (done, total, label): `total` never changes.
Progress = Callable[[int, int, str], None]

# Longer than any single measured point; the exit of a worker is detected at once by its socket.
_TIMEOUT = timedelta(minutes=5)
# If one worker fails, its peers fail within this time too; waiting for them shows which failed
# first.
_GRACE_S = 1.0
_ROOT = Path(__file__).parents[3]

# Processes that train or measure on a CPU keep freed memory. By default glibc returns it to the
# kernel, so that every micro-batch touches new pages, with a page fault each, on a virtual machine
# possibly in the host too. On a 2-core EPYC virtual machine (torch 2.13, a GPT-2 of 8 layers, 10
# steps, 2026-11-21) 497 and 549 thousand faults in two runs became 314 and 312 thousand, the step
# of 745 and 801 ms became 716 and 745 ms. Allocators of accelerators keep memory too. The user's
# environment overrides these.
KEEP_FREED_MEMORY: Mapping[str, str] = {
    # glibc (mallopt(3)): no separate mappings, the heap is never trimmed and grows by 64 MiB.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**26),
    # torch (c10/core/impl/alloc_cpu.cpp): huge pages for tensors of 2 MiB and more.
    "THP_MEM_ALLOC_ENABLE": "1",
}


def no_progress(done: int, total: int, label: str) -> None:
    """A progress callback that shows nothing."""


def run_workers(
    entry: str,
    job: Mapping[str, Any],
    *,
    num_processes: int,
    threads_per_process: int = 1,
    progress: Progress = no_progress,
) -> tuple[dict[str, Any], ...]:
    """The results of `entry` in `num_processes` worker processes, in the order of ranks.

    entry  `package.module:name` of a function (job, reporter) -> dict of JSON values
    job    JSON values, the same for every worker

    Raises InputError for numbers below 1 and RunError with the first failing rank's message.
    """
    if num_processes < 1 or threads_per_process < 1:
        raise InputError(
            f"a measurement needs at least one process of one thread, got {num_processes} "
            f"processes of {threads_per_process} threads"
        )
    with tempfile.TemporaryDirectory(prefix="shardwright-probe-") as name:
        folder = Path(name)
        content = {"entry": entry, "job": dict(job), "world_size": num_processes}
        write_text(folder / "job.json", to_json(content))
        workers = []
        try:
            for rank in range(num_processes):
                workers.append(_start(folder, rank, threads_per_process))
            _follow(workers, folder, progress)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
                if worker.stdout is not None:
                    worker.stdout.close()
        return tuple(read_mapping(folder / f"rank{r}.json") for r in range(num_processes))


def _start(folder: Path, rank: int, threads: int) -> subprocess.Popen[bytes]:
    environment = {**KEEP_FREED_MEMORY, **os.environ}
    environment["OMP_NUM_THREADS"] = environment["MKL_NUM_THREADS"] = str(threads)
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(_ROOT)] + ([inherited] if inherited else []))
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if loopback and "GLOO_SOCKET_IFNAME" not in environment:
        # All workers are on this machine; the host name may not resolve without a network.
        environment["GLOO_SOCKET_IFNAME"] = loopback[0]
    with open(folder / f"rank{rank}.stderr", "wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "profiles.hardware.probe.probe_workers", str(folder), str(rank)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
        )


def _follow(workers: list[subprocess.Popen[bytes]], folder: Path, progress: Progress) -> None:
    """Report rank 0's progress until all workers have ended; raise the first failure."""
    buffered = b""
    with selectors.DefaultSelector() as selector:
        for rank, worker in enumerate(workers):
            assert worker.stdout is not None
            selector.register(worker.stdout, selectors.EVENT_READ, rank)
        while selector.get_map():
            for key, _ in selector.select():
                rank = key.data
                chunk = os.read(key.fd, 1 << 16)
                if chunk and rank == 0:
                    *lines, buffered = (buffered + chunk).split(b"\n")
                    for line in lines:
                        progress(*json.loads(line))
                if chunk:
                    continue
                selector.unregister(key.fileobj)
                if workers[rank].wait() != 0:
                    raise _first_failure(workers, folder)


def _first_failure(workers: list[subprocess.Popen[bytes]], folder: Path) -> RunError:
    """The error of the rank that failed first, or its exit code or signal without an error file."""
    deadline = time.monotonic() + _GRACE_S
    for worker in workers:
        try:
            worker.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            continue
    failures = []
    for rank, worker in enumerate(workers):
        if worker.returncode in (None, 0):
            continue
        path = folder / f"rank{rank}.error.json"
        if path.exists():
            error = read_mapping(path)
            failures.append((int(error["monotonic_ns"]), rank, str(error["message"])))
        else:
            # Killed from outside or crashed; its peers fail after it.
            failures.append((0, rank, _exit_text(worker.returncode, folder, rank)))
    _, rank, message = min(failures)
    return RunError(f"rank {rank} of {len(workers)} failed while measuring: {message}")


def _exit_text(code: int, folder: Path, rank: int) -> str:
    how = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    if code == -9:
        how += " (the kernel's way to end a process that runs out of memory)"
    text = (folder / f"rank{rank}.stderr").read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return how + (f"; its last line on stderr: {lines[-1]}" if lines else "")


def _work(folder: Path, rank: int) -> None:
    """Run the job in `folder` as `rank`; writes rankN.json, or rankN.error.json and exits with
    1."""
    # Progress goes to the pipe; a model's prints go to stderr.
    stream = os.dup(1)
    os.dup2(2, 1)

    def report(done: int, total: int, label: str) -> None:
        if rank == 0:
            os.write(stream, (json.dumps([done, total, label]) + "\n").encode())

    try:
        answer = _run(read_mapping(folder / "job.json"), folder, rank, report)
        write_text(folder / f"rank{rank}.json", to_json(answer))
    except BaseException as error:
        known = isinstance(error, ShardwrightError)
        message = str(error) if known else f"{type(error).__name__}: {error}"
        failure = {"message": message, "monotonic_ns": time.monotonic_ns()}
        write_text(folder / f"rank{rank}.error.json", to_json(failure))
        raise


def _run(content: dict[str, Any], folder: Path, rank: int, report: Progress) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=int(content["world_size"]),
        timeout=_TIMEOUT,
    )
    module, _, name = str(content["entry"]).partition(":")
    entry = getattr(importlib.import_module(module), name)
    answer: dict[str, Any] = entry(content["job"], report)
    dist.barrier()
    return answer


if __name__ == "__main__":
    try:
        _work(Path(sys.argv[1]), int(sys.argv[2]))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    # gloo's threads may abort in the interpreter's teardown after a clean run; nothing is left to
    # flush, so skip the teardown.
    sys.stderr.flush()
    os._exit(0)
