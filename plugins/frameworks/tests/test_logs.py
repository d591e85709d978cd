"""`compare --log`, `watch` and `profile --from LOG` as a user meets them."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from shardwright_frameworks.analysis.followed_run import followed_run
from shardwright_frameworks.analysis.log_comparison import compare_log, likely_part
from shardwright_frameworks.commands.calibrate_logs import calibrate_from_logs
from shardwright_frameworks.commands.compare_log import compare_with_logs
from shardwright_frameworks.commands.import_config import read_logs
from shardwright_frameworks.commands.watch import watch
from shardwright_frameworks.logs.followed_log import FollowedLog
from shardwright_frameworks.logs.read_log import read_training_log
from shardwright_frameworks.reports.log_report import log_comparison_report, log_report
from shardwright_frameworks.requests.imported_step import step_of
from shardwright_frameworks.results.compared_log import LogComparisonResult
from shardwright_frameworks.traces.device_time import DeviceTime
from shardwright_frameworks.traces.trace_time import TraceTime
from typer.testing import CliRunner

import shardwright as public
from planner.layout.layout_answer import LayoutFile
from plugins.frameworks.tests.logs.written_log import WrittenRun, written
from profiles.document import write_text
from profiles.errors import (
    DocumentError,
    InputError,
    MismatchError,
    ToleranceError,
)
from shardwright.cli import app
from shardwright.commands.tables.predict_runs import predicted_runs
from shardwright.requests.opened_plan import write_layout
from shardwright.requests.planned_step import PlannedStep
from shardwright.results.result import as_result
from shardwright.runs.run import FIGURES
from shardwright.runs.run_table import read_runs
from simulator.training_run.fit.recalibration import read_calibration


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layout of Megatron for 16 devices, as `plan --stack` writes it."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    work = public.Workload(global_batch=256, sequence_length=4096)
    answer = public.plan("llama-3.1-8b", "2x8xh100-sxm", work, stack="megatron-core", tp=2, pp=1)
    assert isinstance(answer, LayoutFile)
    write_layout(path, answer, provenance={"command": "shardwright plan"})
    return path


def log_of(path: Path, planned: PlannedStep, factor: float, **settings: object) -> Path:
    run = WrittenRun(attempts=((1, 60),), base_s=factor * planned.step_time_s.value)
    path.write_text(written("megatron-lm", replace(run, **settings)), encoding="utf-8")
    return path


def printed(renderable: object) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(renderable)
    return out.getvalue()


def test_a_log_is_held_against_its_plan(plan: Path, tmp_path: Path) -> None:
    planned = step_of(plan, "")
    log = log_of(tmp_path / "train.log", planned, 1.1)
    done = CliRunner().invoke(app, ["compare", str(plan), "--log", str(log), "--json"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["error"] == pytest.approx(1 / 1.1 - 1, abs=0.01)
    assert data["inside"]
    assert data["reasons"] == []
    compare_with_logs(plan, [log], json_output=False, fail_over=0.2)
    with pytest.raises(ToleranceError, match="--fail-over allows 5%"):
        compare_with_logs(plan, [log], json_output=False, fail_over=0.05)
    with pytest.raises(InputError, match="2 training logs are given"):
        compare_with_logs(plan, [log, log], json_output=False, fail_over=None)


def test_what_the_log_says_of_a_difference_is_told(plan: Path, tmp_path: Path) -> None:
    planned = step_of(plan, "")
    path = log_of(tmp_path / "train.log", planned, 2.0, batch=512)
    compared = compare_log(planned, read_training_log(path))
    assert not compared.inside
    assert likely_part(compared) == "another batch: the log has 512, the plan 256"
    assert "outside the interval" in printed(log_comparison_report(compared))
    # A profile in which messages take what the step takes longer.
    said = planned.grouped()
    slow_s = planned.step_time_s.value
    device = DeviceTime(
        device="device 0",
        steps=3,
        step_time_s=2 * slow_s,
        compute_s=said["compute"],
        exposed_communication_s=said["exposed communication"] + slow_s,
        hidden_communication_s=0.0,
        copy_s=0.0,
        idle_s=said["idle and host"],
        kernels=9,
    )
    trace = TraceTime(path="t.json", tool="torch profiler", devices=(device,))
    path = log_of(tmp_path / "train.log", planned, 2.0)
    compared = compare_log(planned, read_training_log(path), (trace,))
    assert likely_part(compared).startswith("exposed communication: ")
    assert "part of a step" in printed(log_comparison_report(compared))
    assert sum(row.predicted_s for row in compared.parts) == pytest.approx(slow_s)
    rows = as_result(LogComparisonResult, compared).table()
    assert len({tuple(row) for row in rows}) == 1
    assert rows[1]["predicted_low_s"] is None


def test_watching_once_ends_with_4_where_the_run_is_off(plan: Path, tmp_path: Path) -> None:
    planned = step_of(plan, "")
    log = log_of(tmp_path / "train.log", planned, 1.0)
    done = CliRunner().invoke(app, ["watch", str(log), "--plan", str(plan), "--once"])
    assert done.exit_code == 0, done.output
    # It becomes slower: the last third at twice the time, which the whole log's median hides.
    slow = WrittenRun(
        attempts=((61, 90),), base_s=2.2 * planned.step_time_s.value, warm_up=(), seed=1
    )
    lines = [x for x in written("megatron-lm", slow).splitlines() if "iteration  " in x]
    with log.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    with pytest.raises(ToleranceError, match=r"slower than predicted.*it became slower") as caught:
        watch(log, plan, once=True, interval="5s")
    assert caught.value.exit_code == 4
    log.write_text("nothing yet\n", encoding="utf-8")
    with pytest.raises(DocumentError, match="no steady steps yet"):
        watch(log, plan, once=True, interval="5s")
    with pytest.raises(DocumentError, match="no such file"):
        watch(tmp_path / "none.log", plan, once=True, interval="5s")


def test_devices_are_named_for_imported_runs_alone(plan: Path, tmp_path: Path) -> None:
    """A plan file has its devices: others are not left out in silence."""
    log = log_of(tmp_path / "train.log", step_of(plan, ""), 1.0)
    for asked in (
        lambda: public.predict(plan, on="8xh200"),
        lambda: public.watch(log, plan, on="8xh200"),
        lambda: public.compare(plan, log=log, on="8xh200"),
        lambda: compare_with_logs(plan, [log], json_output=False, fail_over=None, on="8xh200"),
    ):
        with pytest.raises(InputError, match=r"names its devices, so 8xh200"):
            asked()
    done = CliRunner().invoke(app, ["predict", str(plan), "--on", "8xh200"])
    assert isinstance(done.exception, InputError)
    # What is no plan is not said to be one.
    missing = tmp_path / "missing.json"
    done = CliRunner().invoke(app, ["predict", str(missing), "--on", "8xh200"])
    assert isinstance(done.exception, DocumentError)
    with pytest.raises(DocumentError, match=r"missing\.json"):
        public.predict(missing, on="8xh200")


def test_watching_ends_with_the_run(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command and the function are one loop: an alarm, and the end that the log tells."""
    planned = step_of(plan, "")
    log = log_of(tmp_path / "train.log", planned, 1.6)
    with log.open("a", encoding="utf-8") as file:
        file.write("[after training is done] datetime: 2031-05-06 07:08:09\n")
    watch(log, plan, interval="1ms")
    said = " ".join(capsys.readouterr().out.split())
    assert "ALARM: the step of" in said
    (compared,) = public.watch(log, plan, interval_s=0.001)
    assert not compared.inside
    assert compared.log.ended == "finished"


def test_a_run_that_failed_is_watched_when_it_starts_again(plan: Path, tmp_path: Path) -> None:
    """A requeued job prints into the log that it failed in."""
    planned = step_of(plan, "")
    log = log_of(tmp_path / "train.log", planned, 1.0)
    again = log_of(tmp_path / "again.log", planned, 1.6).read_text(encoding="utf-8")
    with log.open("a", encoding="utf-8") as file:
        file.write("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n")
    failures = []

    def start_again() -> None:
        failures.append(log.stat().st_size)
        with log.open("a", encoding="utf-8") as file:
            file.write(again + "[after training is done] datetime: 2031-05-06 07:08:09\n")

    first, second = followed_run(FollowedLog(log), planned, 0.001, failed=start_again)
    assert len(failures) == 1
    assert (first.log.ended, second.log.ended) == ("failed", "finished")
    assert second.log.restarts == 1


def test_the_carbon_of_a_layout_is_of_its_region(plan: Path) -> None:
    work = public.Workload(global_batch=256, sequence_length=4096)
    found = [
        public.plan(
            "llama-3.1-8b", "2x8xh100-sxm", work, stack="megatron-core", tp=2, pp=1, region=region
        ).chosen
        for region in ("FRA", "POL")
    ]
    low, high = (each.kg_co2e_delivered for each in found)
    assert low.value < high.value / 5
    with pytest.raises(InputError, match="region"):
        public.plan("llama-3.1-8b", "2x8xh100-sxm", work, stack="megatron-core", region="Atlantis")
    with pytest.raises(InputError, match=r"region='FRA' .* name a framework \(stack=\)"):
        public.plan("llama-3.1-8b", "2x8xh100-sxm", work, region="FRA")


def test_logs_are_printed_and_given_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.log"
    run = WrittenRun(stalls={30: 9.0})
    path.write_text(written("torchtitan", run), encoding="utf-8")
    read_logs([path], True)
    data = json.loads(capsys.readouterr().out)
    assert (data["framework"], data["stalls"], data["steps"]) == ("torchtitan", 1, 60)
    read_logs([path, path], True)
    assert len(json.loads(capsys.readouterr().out)["logs"]) == 2
    text = printed(log_report(read_training_log(path)))
    told = " ".join(text.split())  # lines are broken where the length of tmp_path says
    for words in ("steady step 5", "1 stall", "eight of ten steps", "66.91 GiB (reserved)"):
        assert words in told, text
    assert max(map(len, text.splitlines())) <= 100


def configured(folder: Path, factor: float, *, count: int) -> tuple[list[Path], Path]:
    """Logs of rows of the project's own table, all slower by a factor, and the table."""
    with FIGURES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    known = {run.id: run for run in predicted_runs(read_runs(FIGURES, lenient=True))}
    device = next(row["device"] for row in rows if known[row["id"]].step_time_s)
    kept = [row for row in rows if known[row["id"]].step_time_s and row["device"] == device]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    logs = []
    for row in kept[:count]:
        writer.writerow(row)
        time_s = known[row["id"]].step_time_s
        assert time_s is not None
        logs.append(folder / f"{row['id']}.log")
        run = WrittenRun(base_s=factor * time_s, noise=0.005)
        lines = written("maxtext", run)
        logs[-1].write_text(lines, encoding="utf-8")
    table = folder / "runs.csv"
    write_text(table, text.getvalue())
    return logs, table


def test_a_cluster_is_learned_from_logs(tmp_path: Path) -> None:
    logs, table = configured(tmp_path, 1.2, count=5)
    output = tmp_path / "mine.toml"
    calibrate_from_logs(logs, [table], output, force=False)
    made = read_calibration(output)
    assert made.runs == 5
    assert made.error_before == pytest.approx(1 - 1 / 1.2, abs=0.01)
    assert made.left_out_error < 0.6 * made.error_before


def test_what_logs_cannot_tell_is_not_fitted(tmp_path: Path) -> None:
    logs, table = configured(tmp_path, 1.2, count=1)
    with pytest.raises(InputError, match="name it with --config"):
        calibrate_from_logs(logs, [], None, force=False)
    with pytest.raises(InputError, match=r"1 logs .* and 2 configurations"):
        calibrate_from_logs(logs, [table, table], None, force=False)
    text = logs[0].read_text(encoding="utf-8")
    cases = {
        "has no step time": "nothing\n",
        "lines of steady steps": text[: text.index("completed step: 2,")],
        "only the mean of the whole run": "{'train_runtime': 100.0, 'train_steps_per_second': 2.0, "
        "'epoch': 1.0}\n",
    }
    for words, log in cases.items():
        logs[0].write_text(log, encoding="utf-8")
        with pytest.raises(DocumentError, match=words):
            calibrate_from_logs(logs, [table], None, force=False)
    logs[0].write_text("using world size: 3\n" + text, encoding="utf-8")
    with pytest.raises(MismatchError, match=r"prints a number of devices of 3.*different runs"):
        calibrate_from_logs(logs, [table], None, force=False)
    uneven = "".join(
        f"completed step: {n}, seconds: {1 + n % 2 * 0.8:.3f}, loss: 2.0\n" for n in range(40)
    )
    logs[0].write_text(uneven, encoding="utf-8")
    with pytest.raises(DocumentError, match="needs a steady step time"):
        calibrate_from_logs(logs, [table], None, force=False)
