"""`shardwright sweep` as a user meets it: its rows, its files, killed and gone on with."""

from __future__ import annotations

import csv
import json
import os
import random
import shlex
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.batch.folder_lock import folder_held
from planner.batch.local_workers import local_workers
from planner.batch.ray_workers import ray_workers
from planner.batch.sweep import Workers
from shardwright.requests.local_paths import local_profile
from shardwright.sweeps.plan_columns import plan_command
from shardwright.sweeps.study_file import read_study
from shardwright.sweeps.study_requests import study_requests
from shardwright.sweeps.study_run import StudyRun, run_study
from shardwright.sweeps.worker import WORKER, answer_text
from tests.forked import forked
from tests.shardwright.ray_nodes import ray_cluster_of_two
from tests.shardwright.study_text import study_file
from tests.shardwright.test_cli import CACHE, shardwright
from tests.shardwright.test_sweep import skip_where_code_changed
from tests.shardwright.workers_here import solve_here


@pytest.fixture(autouse=True, scope="module")
def own_cache() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(CACHE))
        yield


def swept(study: Path, folder: Path, workers: Workers, *, plans: int = 0) -> StudyRun:
    with folder_held(folder, "test"):
        return run_study(
            study_requests(read_study(study)),
            folder,
            workers=workers,
            parquet=False,
            plans=plans,
            sort="cost",
        )


def swept_here(study: Path, folder: Path) -> None:
    """A sweep whose worker is its own process."""
    swept(study, folder, solve_here(answer_text))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return study_file(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def alone(study: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyRun, Path]:
    """What this process alone answers, with two plan files."""
    folder = tmp_path_factory.mktemp("alone")
    return swept(study, folder, solve_here(answer_text), plans=2), folder


def test_every_question_has_its_row_and_every_table_its_columns(
    alone: tuple[StudyRun, Path],
) -> None:
    run, folder = alone
    plans, sizes = run.rows["results"], run.rows["sizes"]
    assert (len(plans), len(sizes)) == (32, 2)
    # Prices make no new search of a plan, and one of a sized run.
    assert run.jobs == 16 + 2
    assert [row["question"] for row in plans] == list(range(1, 33))
    too_small = [
        row for row in plans if (row["model"], row["cluster"]) == ("llama-3.1-8b", "1xl40s")
    ]
    assert {row["status"] for row in too_small} == {"infeasible"}
    assert all("does not fit" in row["reason"] for row in too_small)
    for row in plans:
        assert row["status"] in ("optimal", "infeasible"), row["reason"]
        if row["status"] == "optimal":
            assert row["step_time_low_s"] <= row["step_time_s"] <= row["step_time_high_s"]
            assert row["usd_per_device_hour"] > 0
            assert row["price"]
    dear, cheap = plans[0], plans[1]
    assert (dear["price_asked"], cheap["price_asked"]) == ("on-demand", "2.5")
    assert dear["step_time_s"] == cheap["step_time_s"]
    assert cheap["usd_per_device_hour"] == 2.5
    for name, table in (("summary", plans), ("sizes", sizes)):
        with (folder / f"{name}.csv").open(newline="") as stream:
            written = list(csv.DictReader(stream))
        with (folder / f"{name}.columns.csv").open(newline="") as stream:
            meanings = {row["column"]: row["meaning"] for row in csv.DictReader(stream)}
        assert len(written) == len(table)
        assert set(written[0]) == set(meanings)
        assert all(meanings.values())
    with sqlite3.connect(folder / "results.sqlite") as store:
        (steps,) = store.execute("SELECT sum(step_time_s) FROM results").fetchone()
        assert steps == pytest.approx(sum(row.get("step_time_s") or 0.0 for row in plans))
        days = [day for (day,) in store.execute("SELECT days FROM sizes")]
        assert days == [row["days"] for row in sizes]
        named = store.execute("SELECT name FROM columns WHERE in_table = 'results'").fetchall()
        asked = store.execute("SELECT * FROM results").description
        assert [name for (name,) in named] == [column[0] for column in asked]


def test_a_row_is_the_answer_of_its_own_command(
    alone: tuple[StudyRun, Path], tmp_path: Path
) -> None:
    run, folder = alone
    best = min(
        (row for row in run.rows["results"] if row["status"] == "optimal"),
        key=lambda row: (row["usd_per_million"], row["question"]),
    )
    words = best["command"].replace("plan.json", str(tmp_path / "plan.json")).split()
    done = shardwright(*words[1:], "--no-cache", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    single = json.loads((tmp_path / "plan.json").read_text())
    many = json.loads((folder / "plans" / f"question-{best['question']}.json").read_text())
    assert single["chosen"] == many["chosen"]
    assert single["chosen"]["prediction"]["step_time_s"]["value"] == best["step_time_s"]
    assert len(list((folder / "plans").iterdir())) == 2


def test_what_an_earlier_study_left_is_removed(
    study: Path, alone: tuple[StudyRun, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "again"
    shutil.copytree(alone[1], folder)
    plan = alone[0].files[-1]
    (folder / "plans" / "question-9999.json").write_text("{}")
    (folder / "results.parquet").write_text("old")
    (folder / "plans" / "question-mine.json").write_text("{}")
    (folder / "plans.txt").write_text("a note")
    # What a killed write left of each kind of file.
    (folder / ".summary.columns.csv.wtn_8hbw").write_text("half")
    (folder / "plans" / ".question-7.json.k2_x81ab").write_text("half")
    run = swept(study, folder, solve_here(answer_text), plans=1)
    skip_where_code_changed()
    assert run.known == run.jobs
    (kept,) = [name for name in run.files if name.startswith("plans/")]
    assert kept != plan or len(run.files) < len(alone[0].files)
    assert {path.name for path in (folder / "plans").iterdir()} == {
        kept.removeprefix("plans/"),
        "question-mine.json",
    }
    assert not (folder / "results.parquet").exists()
    assert not (folder / ".summary.columns.csv.wtn_8hbw").exists()
    assert (folder / "plans.txt").exists()


def test_the_command_of_a_row_has_the_files_of_the_sweep(study: Path, tmp_path: Path) -> None:
    asked = study_requests(
        read_study(study), local=tmp_path / "here.json", prices=tmp_path / "own prices.toml"
    )
    assert asked.flags == (
        *("--prices", str(tmp_path / "own prices.toml")),
        *("--local", str(tmp_path / "here.json")),
    )
    words = shlex.split(plan_command(asked.plans[0].question, asked.flags))
    assert words[words.index("--prices") + 1] == str(tmp_path / "own prices.toml")
    assert words[-2:] == ["-o", "plan.json"]
    assert study_requests(read_study(study), local=local_profile()).flags == ()


def test_a_worker_outlives_a_text_that_is_no_question() -> None:
    said = json.loads(answer_text("{no json"))
    assert "a fault of Shardwright's" in said["reason"]


def test_workers_give_the_bytes_of_this_process(
    study: Path, alone: tuple[StudyRun, Path], tmp_path: Path
) -> None:
    swept(study, tmp_path / "two", local_workers(WORKER, 2), plans=2)
    skip_where_code_changed()
    assert contents(tmp_path / "two") == contents(alone[1])


@pytest.mark.slow
def test_a_ray_cluster_of_two_nodes_gives_the_bytes_of_this_process(
    study: Path, alone: tuple[StudyRun, Path], tmp_path: Path
) -> None:
    with ray_cluster_of_two() as address:
        swept(study, tmp_path / "ray", ray_workers(WORKER, address), plans=2)
    skip_where_code_changed()
    assert contents(tmp_path / "ray") == contents(alone[1])


def test_a_sweep_killed_ten_times_ends_with_the_same_bytes(
    study: Path, alone: tuple[StudyRun, Path], tmp_path: Path
) -> None:
    """Real processes and SIGKILL, at random moments from their start to behind their end."""
    rng, folder = random.Random(13), tmp_path / "killed"
    killed, longest_s = 0, 4.0
    while killed < 10:
        process = forked(
            swept_here,
            study,
            folder,
            output=(tmp_path / "stdout", tmp_path / "stderr"),
            environment=dict(os.environ),
        )
        begin = time.monotonic()
        process.join(rng.uniform(0.0, longest_s))
        if process.exitcode is None:
            process.kill()
            process.join()
            killed += 1
        else:
            assert process.exitcode == 0, (tmp_path / "stderr").read_text()
            # All is answered: from here on it is killed while it reads and writes its files.
            longest_s = time.monotonic() - begin
    swept(study, folder, solve_here(answer_text), plans=2)
    assert contents(folder) == contents(alone[1])


def test_parquet_holds_the_rows_and_equal_rows_are_equal_bytes(
    alone: tuple[StudyRun, Path],
) -> None:
    pytest.importorskip("pyarrow", reason="pip install 'shardwright[tables]'")
    import pyarrow
    import pyarrow.parquet as parquet

    from shardwright.sweeps.parquet_file import parquet_bytes
    from shardwright.sweeps.study_requests import table_of

    rows = alone[0].rows["results"]
    first, second = (parquet_bytes(table_of("results", rows)) for _ in range(2))
    assert first == second
    read = parquet.read_table(pyarrow.BufferReader(first)).to_pylist()
    assert [row["step_time_s"] for row in read] == [row.get("step_time_s") for row in rows]
    assert [row["tp"] for row in read] == [row.get("tp") for row in rows]
    assert [row["command"] for row in read] == [row["command"] for row in rows]
    assert parquet_bytes(table_of("results", rows[:0]))


def test_pandas_and_duckdb_open_the_files(alone: tuple[StudyRun, Path], tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="not installed")
    duckdb = pytest.importorskip("duckdb", reason="not installed: it comes with the extra dev")
    pytest.importorskip("pyarrow", reason="pip install 'shardwright[tables]'")
    from shardwright.sweeps.parquet_file import parquet_bytes
    from shardwright.sweeps.study_requests import table_of

    run, folder = alone
    path = tmp_path / "results.parquet"
    path.write_bytes(parquet_bytes(table_of("results", run.rows["results"])))
    frame = pandas.read_parquet(path)
    with sqlite3.connect(folder / "results.sqlite") as store:
        other = pandas.read_sql("SELECT * FROM results", store)
    assert list(frame.columns) == list(other.columns)
    assert frame["step_time_s"].equals(other["step_time_s"])
    ((count, best),) = duckdb.sql(
        f"SELECT count(*), min(usd_per_million) FROM '{path}' WHERE status = 'optimal'"
    ).fetchall()
    assert count == (frame["status"] == "optimal").sum()
    assert best == frame["usd_per_million"].min()
