"""Processes of the tests, forked from one that has imported what they need.

Importing torch, transformers and the planner takes a process some 2 to 5 CPU seconds. Here a
server, once per test session, imports them, and processes are forked from it: each has its own
arguments, folder, environment, output and exit status, and only the imports and the contents of
shipped files are shared.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "shardwright.cli",
        *(f"shardwright.commands.{name}" for name in ("plan", "plan_many", "predict", "sweep")),
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
