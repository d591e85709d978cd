"""Launching: what a user sees when a run cannot start, or a rank fails."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from executor.before_launch import check_main_memory
from executor.launch import check_machine, device_for, first_failure, run_plan, torchrun_command
from profiles.document import write_document
from profiles.errors import DocumentError, InputError, MismatchError, RunError
from profiles.hardware.probe import fingerprint
from profiles.hardware.probe.fingerprint import fingerprint_of_machine
from simulator.traced.predict import predict
from simulator.values.plan import PLAN_SCHEMA, Plan
from simulator.values.plan_file import PlanFile
from tests.executor.cases import CNN_ENTRIES, make_plan
from tests.executor.processes import started, train
from tests.simulator import hand_made


def write_plan(path: Path, plan: Plan) -> Path:
    answer = PlanFile(status="feasible", search_time_s=0.0, cells_considered=1, plan=plan)
    write_document(path, answer, schema=PLAN_SCHEMA)
    return path


@pytest.fixture
def plan() -> Plan:
    """Of a model whose ranks need not import transformers."""
    return make_plan("tests.executor.tiny_models:cnn", CNN_ENTRIES, pp=2, schedule="1f1b")


def test_a_run_is_measured_and_checked(plan: Plan, tmp_path: Path) -> None:
    """Of a plan that was made for another machine, which it is only where that is asked for."""
    path = tmp_path / "plan.json"
    answer = PlanFile(
        status="feasible",
        search_time_s=0.0,
        cells_considered=1,
        plan=plan,
        machine={"type": "gpu", "cores": "1000000"},
    )
    write_document(path, answer, schema=PLAN_SCHEMA)
    with pytest.raises(
        MismatchError,
        match=r"another machine \(cores: planned 1000000, found \d+; type: planned gpu, found cpu\)"
        r".*--on local.*--any-machine",
    ):
        run_plan(path, output=tmp_path / "run.json")
    assert not (tmp_path / "run.json").exists()
    seen: list[tuple[int, int]] = []
    measured = run_plan(
        path,
        steps=2,
        check=True,
        any_machine=True,
        output=tmp_path / "run.json",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert measured.world_size == 2
    assert measured.gradient_check is not None
    assert measured.gradient_check.passed
    assert measured.gradient_check.parameters_checked == 18  # 2 + 3 x 4 + 2 + 2
    assert len(measured.steps) == 2
    assert {s.stage for s in measured.stages} == {0, 1}
    assert seen[-1] == (4, 4)
    # 1F1B of 2 ranks and 4 micro-batches: 8 actions on each rank, then the tail.
    names = [e.name for e in measured.events if e.rank == 0][:8]
    assert names == ["0F0", "0F1", "0B0", "0F2", "0B1", "0F3", "0B2", "0B3"]
    # Weights, gradients and two moments of rank 0 in fp32 are a lower bound of its peak: a
    # convolution of 3 channels into 8 and two of 8 into 8 with their norms.
    assert measured.ranks[0].peak_memory_bytes > 4 * 4 * (224 + 2 * 600)


def test_another_number_of_processes_is_refused(plan: Plan, tmp_path: Path) -> None:
    path = write_plan(tmp_path / "plan.json", plan)
    with pytest.raises(MismatchError, match=r"needs 2 ranks .* the run has 4 processes"):
        run_plan(path, processes=4, output=tmp_path / "run.json")


def test_a_plan_for_another_model_is_refused(plan: Plan, tmp_path: Path) -> None:
    path = write_plan(tmp_path / "plan.json", plan)
    with pytest.raises(MismatchError, match="made for another model"):
        run_plan(path, model="gpt2", steps=1, output=tmp_path / "run.json")
    assert not (tmp_path / "run.json").exists()


def test_the_first_failing_rank_is_named(plan: Plan, tmp_path: Path) -> None:
    broken = dataclasses.replace(plan, block_entries=("", *("model.nope",) * 5))
    path = write_plan(tmp_path / "plan.json", broken)
    with pytest.raises(RunError, match=r"rank \d failed first.*model\.nope.*plan again"):
        train(path, "--steps=1", processes=2, folder=tmp_path)


def test_the_earliest_error_wins_over_its_consequences() -> None:
    errors = [
        {"rank": 0, "time_s": 5.0, "kind": "RuntimeError", "message": "closed", "ours": False},
        {"rank": 3, "time_s": 4.0, "kind": "ValueError", "message": "bad", "ours": False},
    ]
    assert first_failure(
        errors, "", 1
    ) == "rank 3 failed first (1 other rank failed after it): " + ("ValueError: bad")


def test_a_killed_rank_is_named_with_its_signal() -> None:
    text = "Root Cause\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 12)"
    told = first_failure([], text, 1)
    assert told == (
        "rank 1 was killed by SIGKILL (signal 9), from outside the run; the other ranks were "
        "stopped"
    )
    assert "less memory per rank" in first_failure([], text, 1, lacks_memory=True)


def test_the_rank_that_fell_first_is_named_not_those_that_torchrun_ended() -> None:
    text = (
        "Failures:\n  rank      : 0 (local_rank: 0)\n  exitcode  : -15 (pid: 11)\n"
        "Root Cause\n  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 14)"
    )
    assert first_failure([], text, 1).startswith("rank 3 was killed by SIGKILL (signal 9)")
    error = {"rank": 1, "time_s": 1.0, "kind": "ValueError", "message": "bad", "ours": False}
    only_ended = "rank      : 0 (local_rank: 0)\n  exitcode  : -15 (pid: 11)"
    assert first_failure([error], only_ended, 1) == "rank 1 failed first: ValueError: bad"


def test_a_truncated_plan_says_so(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"schema": "shardwright/plan@1", "plan": {')
    with pytest.raises(DocumentError, match="not valid JSON, or cut short"):
        run_plan(path)


def test_the_command_names_every_choice() -> None:
    options = {"model": "m:f", "steps": 3, "check": True, "threads": 2, "device": ""}
    command = torchrun_command("executor.train", "p.json", 4, options)
    assert command[1:5] == [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=4",
    ]
    for flag in ("--model=m:f", "--steps=3", "--threads=2", "--check"):
        assert flag in command
    assert not any("device" in word for word in command)


def test_the_planned_machine_is_recognised() -> None:
    here = {**fingerprint_of_machine(threads_per_device=1), "type": "cpu"}
    check_machine("plan.json", here, device="cpu")
    check_machine("plan.json", {}, device="cuda")
    with pytest.raises(MismatchError, match="threads_per_device: planned 1, found 2"):
        check_machine("plan.json", here, device="cpu", threads=2)


def test_a_device_that_is_not_there_is_named_before_anything_starts(
    plan: Plan, tmp_path: Path
) -> None:
    path = write_plan(tmp_path / "plan.json", plan)
    began = time.monotonic()
    with pytest.raises(InputError, match=r"--device cuda asks for 2 devices .*--device cpu"):
        run_plan(path, steps=1, device="cuda", any_machine=True, output=tmp_path / "run.json")
    assert time.monotonic() - began < 5.0


def test_a_plan_that_main_memory_cannot_hold_is_refused(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor.before_launch.predicted_bytes", lambda *_: 2.0**60)
    with pytest.raises(InputError, match=r"of main memory on 2 ranks.*smaller --micro-batch"):
        check_main_memory("plan.json", plan, None)


def test_offloaded_states_that_main_memory_cannot_hold_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = hand_made.plan(dp=4, zero_stage=3)
    offloaded = dataclasses.replace(asked, optimizer_offload=True)
    on = hand_made.cluster(1, 4, of=hand_made.device(name="h100-sxm-80gb"))
    prediction = predict(offloaded, hand_made.Traced(8), on)
    needed = 4 * prediction.ranks[0].host_bytes
    monkeypatch.setattr("executor.before_launch.available_memory_bytes", lambda: int(needed))
    check_main_memory("plan.json", offloaded, prediction, device="cuda")
    check_main_memory("plan.json", offloaded, None, device="cuda")
    monkeypatch.setattr("executor.before_launch.available_memory_bytes", lambda: int(needed) - 1)
    words = r"plan.json is predicted to take .* of main memory on 4 ranks for offloaded states"
    with pytest.raises(InputError, match=rf"{words}.* are free; plan without --optimizer-offload"):
        check_main_memory("plan.json", offloaded, prediction, device="cuda")


def test_a_rank_that_does_not_answer_is_named_as_the_cause() -> None:
    text = "Root Cause\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 12)"
    waited = "Timed out waiting 20000ms for recv operation to complete"
    error = {"rank": 0, "time_s": 1.0, "kind": "RuntimeError", "message": waited, "ours": False}
    told = first_failure([error], text, 1, ranks=2)
    assert told.startswith("rank 0 waited longer than --timeout for rank 1, which did not answer")


def test_ranks_that_were_given_other_flags_are_refused(plan: Plan, tmp_path: Path) -> None:
    path = write_plan(tmp_path / "plan.json", plan)
    ranks = started(path, ["--steps=2"], ["--steps=3"], folder=tmp_path)
    for rank in ranks:
        rank.join(120)
    assert all(rank.exitcode for rank in ranks)
    told = json.loads((tmp_path / "errors" / "rank0.json").read_text())
    assert "rank 1 has another --steps than rank 0: 3, not 2" in told["message"]
    assert told["ours"]
    assert not (tmp_path / "run.json").exists()


def test_a_lack_of_memory_in_a_step_names_the_stage_and_what_to_change(tmp_path: Path) -> None:
    plan = make_plan("tests.executor.tiny_models:greedy_in_its_second_step", ("", "1", "2"))
    with pytest.raises(RunError) as failed:
        run_plan(write_plan(tmp_path / "plan.json", plan), steps=2, output=tmp_path / "run.json")
    message = str(failed.value)
    assert "out of memory on cpu in step 2" in message
    assert "stage 0 (blocks 0 to" in message
    assert "--recompute full" in message


@pytest.mark.parametrize(
    "ended", [pytest.param("stopped", marks=pytest.mark.slow), "agent", "launcher"]
)
def test_no_rank_outlives_its_run(plan: Plan, tmp_path: Path, ended: str) -> None:
    path = write_plan(tmp_path / "plan.json", plan)
    code = (
        "from executor.launch import run_plan; import sys;"
        f"run_plan({str(path)!r}, steps=100000, timeout_s=4, any_machine=True, "
        f"output={str(tmp_path / 'run.json')!r}, "
        "progress=lambda done, count: print(done, flush=True))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        assert launcher.stdout.readline()  # the first step is done
        (agent,) = children_of(launcher.pid)
        ranks = children_of(agent)
        assert len(ranks) == 2
        if ended == "stopped":
            os.kill(ranks[1], signal.SIGSTOP)
        else:
            os.kill(agent if ended == "agent" else launcher.pid, signal.SIGKILL)
        deadline = time.monotonic() + 25.0
        while any(is_alive(pid) for pid in (agent, *ranks)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert [pid for pid in (agent, *ranks) if is_alive(pid)] == []
        if ended == "stopped":
            told = launcher.stderr.read()
            assert "which did not answer" in told, told


def children_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


@pytest.mark.parametrize(
    ("planned", "gpus", "device"),
    [("gpu", 1, "cuda"), ("gpu", 0, "cpu"), ("cpu", 1, "cpu"), ("", 1, "cpu")],
)
def test_a_plan_for_gpus_runs_on_them_where_there_are_any(
    planned: str, gpus: int, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(gpus):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "information").write_text("Model: \t\t NVIDIA H200\n")
    monkeypatch.setattr(fingerprint, "_GPUS", tmp_path)  # the driver's folder
    assert device_for({"type": planned} if planned else {}) == device
