"""Processes of the tests, forked from one that has imported what they need.

Importing torch, transformers and the planner takes a process some 2 to 5 CPU seconds. Here a
server, once per test session, imports them, and processes are forked from it: each has its own
arguments, folder, environment, output and exit status, and only the imports and the contents of
shipped files are shared.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "shardwright.cli",
        *(
            f"shardwright.commands.{name}"
            for name in ("plan", "plan_many", "predict", "shard", "sweep")
        ),
        "shardwright.api",
        "shardwright.reports.terminal",
        "planner.blocks.block_search",
        "planner.layout.layout_plan",
        "ortools.sat.python.cp_model",
        "tests.executor.gradient_job",
        "plugins.placements.tests.running.sharding_job",
        "executor.train",
        "torch.distributed.fsdp",
        "torch.distributed.pipelining.schedules",
        *(f"transformers.models.{m}.modeling_{m}" for m in ("llama", "gpt2", "t5", "whisper")),
        "tests.forked_ready",  # the last
    ]
)


def forked(
    function: Callable[..., None],
    *arguments: Any,
    output: tuple[Path, Path],
    environment: Mapping[str, str],
    cwd: Path | None = None,
) -> BaseProcess:
    """A process that calls `function(*arguments)`; its stdout and stderr go to files."""
    process = _CONTEXT.Process(
        target=_call, args=(function, arguments, output, dict(environment), cwd)
    )
    process.start()
    return process


def run_main(
    main: Callable[[], None],
    *arguments: str,
    cwd: Path,
    environment: Mapping[str, str],
    timeout_s: float = 300.0,
) -> subprocess.CompletedProcess[str]:
    """What a program's `main` says and how it exits, given a command line."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "stdout", Path(folder) / "stderr"
        process = forked(_main, main, arguments, output=output, environment=environment, cwd=cwd)
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(arguments, timeout_s)
        said, complained = (path.read_text(encoding="utf-8") for path in output)
        return subprocess.CompletedProcess(arguments, process.exitcode, said, complained)


def _main(main: Callable[[], None], arguments: tuple[str, ...]) -> None:
    sys.argv = [main.__module__, *arguments]
    main()


def _call(
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    output: tuple[Path, Path],
    environment: dict[str, str],
    cwd: Path | None,
) -> None:
    for number, path in enumerate(output, start=1):
        with path.open("w") as stream:
            os.dup2(stream.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    if cwd is not None:
        os.chdir(cwd)
    function(*arguments)
