"""Launch a plan with torchrun, one process per rank, and report its output.

Users see the error of the first rank that failed; torchrun stops the others. This file does not
import torch.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from executor.before_launch import LESS_MEMORY, check_devices, check_main_memory, die_with_parent
from executor.planned_model import planned_model, runnable
from profiles.document import read_document
from profiles.errors import InputError, MismatchError, RunError
from profiles.extras import need_package
from profiles.hardware.probe.fingerprint import (
    fingerprint_differences,
    fingerprint_of_machine,
    num_cores,
)
from profiles.hardware.probe.probe_workers import KEEP_FREED_MEMORY
from simulator.values.measurement import MEASUREMENT_SCHEMA, Measurement
from simulator.values.plan_file import PlanFile, read_plan_file

_STEP = re.compile(r"^step (\d+)/(\d+)$")


def torchrun_command(
    program: str, path: str | Path, processes: int, options: Mapping[str, object]
) -> list[str]:
    """The torchrun command for one of our programs on this machine.

    options  of the program, by name; empty ones are left out. On several nodes, replace
             `--standalone` by torchrun's rendezvous flags
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={processes}", "-m", program, str(path)]
    for name, value in options.items():
        if value is True:
            command.append(f"--{name}")
        elif value is not False and value != "":
            command.append(f"--{name}={value}")
    return command


def torchrun(
    program: str,
    path: str | Path,
    processes: int,
    options: Mapping[str, object],
    *,
    threads: int,
    announce: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Run one of our programs to its end; raises RunError with the first failed rank's message.

    threads   per rank
    announce  called with the command
    progress  called for every step
    """
    if announce is not None:
        shown = torchrun_command(program, path, processes, options)
        announce(" ".join(["torchrun", *shown[3:]]))
    with tempfile.TemporaryDirectory(prefix="shardwright-run-") as folder:
        command = torchrun_command(program, path, processes, {**options, "errors": folder})
        before = out_of_memory_kills()
        code, text = _start(command, threads, progress, Path(folder))
        if code != 0:
            lacks = out_of_memory_kills() > before
            reported = [json.loads(p.read_text("utf-8")) for p in Path(folder).glob("rank*.json")]
            raise RunError(first_failure(reported, text, code, lacks_memory=lacks, ranks=processes))


def run_plan(
    plan_path: str | Path,
    *,
    model: str = "",
    steps: int = 10,
    check: bool = False,
    compiled: bool = False,
    output: str | Path = "run.json",
    processes: int | None = None,
    timeout_s: float = 300.0,
    device: str = "",
    any_machine: bool = False,
    answer: PlanFile | None = None,
    announce: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Measurement:
    """Run the plan in a file on this machine and return its measurement, also written to `output`.

    compiled     compile the units of each stage (executor/compiled_units.py)
    processes    must be the plan's number of ranks; None: that number
    device       cpu or cuda; "": cuda for a GPU plan if this machine has GPUs, otherwise cpu
    any_machine  allow a machine other than the planned one
    answer       content of the file, if it was read before
    announce     called with the command after all checks

    Raises MismatchError if the plan is for another number of ranks or another machine or cannot be
    run, InputError if devices, memory or a suitable torch are missing, and RunError with the
    message of the first rank that fails, is killed or exceeds timeout_s.
    """
    need_package("torch", f"running {plan_path}", extra="hf")
    answer = answer or read_plan_file(plan_path)
    threads = int(answer.machine.get("threads_per_device", "1"))
    plan = runnable(plan_path, answer, compiled=compiled)
    degrees = plan.degrees
    if processes is not None and processes != degrees.num_devices:
        raise MismatchError(
            f"{plan_path} needs {degrees.num_devices} ranks (pp {degrees.pp} x dp {degrees.dp} x "
            f"tp {degrees.tp}), but the run has {processes} processes; plan again for {processes} "
            "devices"
        )
    planned_model(plan_path, plan, model)
    device = device or device_for(answer.machine)
    if not any_machine:
        check_machine(str(plan_path), answer.machine, device=device, threads=threads)
    if steps < 1:
        raise InputError(f"--steps must be 1 or more, got {steps}")
    check_devices(str(plan_path), plan, device=device)
    check_main_memory(str(plan_path), plan, answer.prediction, device=device)
    if plan.optimizer_offload:  # the optimizer runs on the host, with all cores
        threads = max(threads, num_cores() // degrees.num_devices)
    options = {
        "steps": steps,
        "output": Path(output).resolve(),
        "threads": threads,
        "timeout": f"{timeout_s:g}",
        "device": device,
        "model": model,
        "check": check,
        "compile": "inductor" if compiled else "",
    }
    torchrun(
        "executor.train",
        plan_path,
        plan.degrees.num_devices,
        options,
        threads=threads,
        announce=announce,
        progress=progress,
    )
    return read_document(output, Measurement, schema=MEASUREMENT_SCHEMA)


def device_for(planned: Mapping[str, str]) -> str:
    """The device type on which a plan for `planned` (PlanFile.machine) runs here: cuda or cpu."""
    has_gpus = "gpus" in fingerprint_of_machine()
    return "cuda" if planned.get("type") == "gpu" and has_gpus else "cpu"


def check_machine(path: str, planned: Mapping[str, str], *, device: str, threads: int = 1) -> None:
    """Raises MismatchError, with every difference, if this is not the planned machine.

    planned  PlanFile.machine; an empty one matches every machine
    """
    found = fingerprint_of_machine(threads_per_device=threads)
    found["type"] = "cpu" if device == "cpu" else "gpu"
    differences = fingerprint_differences(planned, found)
    if differences:
        raise MismatchError(
            f"{path} was made for another machine ({'; '.join(differences)}), so its prediction "
            "does not hold here. Measure this machine (shardwright profile) and plan again with "
            "--on local, or run it all the same with --any-machine"
        )


# Seconds for the other ranks to report their errors before all are stopped.
_GRACE_S = 5.0


def _end_after_failure(process: subprocess.Popen[str], errors: Path) -> None:
    """Stop a run a few seconds after a rank reported an error, because torchrun waits 30 s for
    ranks that do not answer (stopped, or in a collective). The other ranks are stopped too."""
    while process.poll() is None:
        if any(errors.glob("rank*.json")):
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
            return
        time.sleep(0.2)


def _start(
    command: list[str], threads: int, progress: Callable[[int, int], None] | None, errors: Path
) -> tuple[int, str]:
    """Exit status and output of a torchrun command; `progress` is called for every step."""
    environment = {**KEEP_FREED_MEMORY, **os.environ}
    environment |= {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    # The ranks can import the same modules as this process: the current folder for a user's model.
    paths = [str(Path.cwd()), str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )
    threading.Thread(target=_end_after_failure, args=(process, errors), daemon=True).start()
    lines: list[str] = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            match = _STEP.match(line.strip())
            if match and progress is not None:
                progress(int(match.group(1)), int(match.group(2)))
            lines.append(line)
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return code, "".join(lines)


def out_of_memory_kills() -> int:
    """Number of processes killed so far by this machine's out-of-memory killer; 0 if not counted
    (Linux counts them: Documentation/filesystems/proc.rst, vmstat)."""
    try:
        text = Path("/proc/vmstat").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found.group(1)) if found else 0


_WAITED = re.compile(r"timed? ?out", re.IGNORECASE)


def first_failure(
    errors: list[dict[str, Any]],
    text: str,
    code: int,
    *,
    lacks_memory: bool = False,
    ranks: int = 0,
) -> str:
    """The error message for the user: the earliest failed rank's, or torchrun's reason for its end.

    lacks_memory  whether the system's out-of-memory killer ended processes during the run
    ranks         number of ranks
    """
    first = min(errors, key=lambda entry: float(entry["time_s"]), default=None)
    reported = {int(entry["rank"]) for entry in errors}
    missing = [str(rank) for rank in range(ranks) if rank not in reported]
    if first is not None and missing and _WAITED.search(first["message"]):
        # Ranks that ended later were stopped by the launcher.
        which = f"rank{'s' if missing[1:] else ''} {', '.join(missing)}"
        return (
            f"rank {first['rank']} waited longer than --timeout for {which}, which did not answer: "
            "stopped, hanging or too slow; all ranks were ended. Look at what holds it up, or give "
            f"more time (--timeout). It waited in: {first['message'].splitlines()[0]}"
        )
    # Ranks ended by a signal, with its number, from torchrun's report.
    ended = re.findall(r"rank\s*:\s*(\d+)[^\n]*\n\s*exitcode\s*:\s*-(\d+)", text)
    killed = {int(rank): int(number) for rank, number in ended if int(rank) not in reported}
    # Torchrun stops the others with SIGTERM, so a rank ended by another signal ended first.
    first_killed = min(killed, key=lambda rank: (killed[rank] == 15, rank), default=None)
    if first_killed is not None and (killed[first_killed] != 15 or not errors):
        number = killed[first_killed]
        why = ", from outside the run" if number in (2, 9, 15) else ""
        if lacks_memory and number == 9:
            why = f" for lack of memory; {LESS_MEMORY}"
        return (
            f"rank {first_killed} was killed by {signal.Signals(number).name} (signal {number})"
            f"{why}; the other ranks were stopped"
        )
    if first is not None:
        others = len(errors) - 1
        tail = (
            f" ({others} other rank{'s' if others > 1 else ''} failed after it)" if others else ""
        )
        kind = "" if first["ours"] else f"{first['kind']}: "
        return f"rank {first['rank']} failed first{tail}: {kind}{first['message']}"
    last = [line for line in text.strip().splitlines() if line.strip()][-6:]
    return f"torchrun ended with status {code} before any rank could report:\n" + "\n".join(last)
