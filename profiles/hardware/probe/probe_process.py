"""One worker process of a measurement: `python -m probe.probe_process FOLDER RANK`."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from profiles.document import read_mapping, to_json, write_text
from profiles.errors import ShardwrightError
from profiles.hardware.probe.probe_workers import Progress

# Longer than any single measured point; a worker that is gone is noticed at once by its socket.
_TIMEOUT = timedelta(minutes=5)


def main(folder: Path, rank: int) -> None:
    """Run the job in `folder` as `rank`; leaves rankN.json, or rankN.error.json and exit code 1."""
    # Progress goes to the pipe; whatever a model prints must not mix with it.
    stream = os.dup(1)
    os.dup2(2, 1)

    def report(done: int, total: int, label: str) -> None:
        if rank == 0:
            os.write(stream, (json.dumps([done, total, label]) + "\n").encode())

    try:
        answer = _run(read_mapping(folder / "job.json"), folder, rank, report)
        write_text(folder / f"rank{rank}.json", to_json(answer))
    except BaseException as error:
        own = isinstance(error, ShardwrightError)
        message = str(error) if own else f"{type(error).__name__}: {error}"
        failure = {"message": message, "monotonic_ns": time.monotonic_ns()}
        write_text(folder / f"rank{rank}.error.json", to_json(failure))
        raise


def _run(content: dict[str, Any], folder: Path, rank: int, report: Progress) -> dict[str, Any]:
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
        main(Path(sys.argv[1]), int(sys.argv[2]))
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    # gloo's threads may abort in the interpreter's teardown after a clean run; nothing is left
    # to flush, so leave without it.
    sys.stderr.flush()
    os._exit(0)
