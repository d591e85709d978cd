"""Sweeps as a user meets them: the same bytes from any workers, cut short and gone on with."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from planner.batch.answer_cache import code_and_data_version
from planner.batch.ray_workers import ray_workers
from planner.batch.sweep import (
    Job,
    Question,
    Reply,
    finished,
    verdict_of,
    with_price,
)
from planner.blocks.answer import SearchOptions
from planner.blocks.block_search import search
from profiles.document import decode, encode, to_json
from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.catalogue.cluster import Cluster
from shardwright import __version__
from shardwright.cli import app
from shardwright.requests.price_request import price_for
from shardwright.requests.questions import Grid, Poser, questions_of
from shardwright.requests.solve_task import Task, job_of, solve_text, trace_task
from shardwright.sweeps.study_file import Study, read_study
from shardwright.sweeps.study_requests import study_requests
from shardwright.sweeps.study_run import run_study
from shardwright.sweeps.worker import WORKER, answer_text
from simulator.training_run.framework.framework import load_stack
from tests.shardwright.ray_nodes import ray_cluster_of_two
from tests.shardwright.test_cli import CACHE, ROOT, shardwright
from tests.shardwright.test_docs import fenced
from tests.shardwright.workers_here import solve_here

GRID = Grid(
    models=("tiny-llama-demo",),
    clusters=("2xh100-sxm", "2xa100-sxm-80gb", "2xl40s"),
    global_batches=(8,),
    sequence_lengths=(128,),
    prices=("on-demand", 1.5),
    pins={"micro_batch": "2", "recompute": "none"},
)
CLI = (
    *("plan", "tiny-llama-demo", "--on", "2xh100-sxm,2xa100-sxm-80gb,2xl40s"),
    *("--global-batch", "8", "--seq", "128", "--micro-batch", "2", "--recompute", "none"),
    *("--price", "on-demand,1.5", "--no-cache"),
)


@pytest.fixture(autouse=True, scope="module")
def own_cache() -> Iterator[None]:
    """Traces are kept with those of the other tests, for this process and its workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(CACHE))
        yield


def skip_where_code_changed() -> None:
    """Workers begin later than this process: an edit in between makes theirs another program."""
    if code_and_data_version.__wrapped__() != code_and_data_version():
        pytest.skip("code or data was edited while the tests ran")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every plan file of GRID that this process alone writes, by name."""
    folder = tmp_path_factory.mktemp("alone")
    requests = study_requests(Study(plans=questions_of(GRID), sizes=()), alone=False)
    run = run_study(
        requests, folder, workers=solve_here(answer_text), parquet=False, plans=6,
        version=__version__,
    )  # fmt: skip
    skip_where_code_changed()
    assert [row["reason"] for row in run.rows["results"]] == [""] * 6
    return plan_files(folder)


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[str]:
    with ray_cluster_of_two() as address:
        yield address


@pytest.mark.slow
def test_both_ray_nodes_work_and_a_task_dies_twice(two_nodes: str, tmp_path: Path) -> None:
    functions = "tests.planner.sweep_workers"
    jobs = [Job(key=str(number), text="0.5") for number in range(4)]
    found = list(ray_workers(f"{functions}:ray_node", two_nodes)(jobs))
    assert len({reply.text for reply in found}) == 2
    attempts = tmp_path / "attempts"
    (dead,) = ray_workers(f"{functions}:die", two_nodes)([Job(key="x", text=str(attempts))])
    assert attempts.read_text() == ".."
    assert dead.fault.startswith("its Ray task failed on 2 attempts: ")


def test_no_cluster_and_no_ray_are_said() -> None:
    if importlib.util.find_spec("ray") is None:
        with pytest.raises(InputError, match=r"shardwright\[cluster\]"):
            ray_workers(WORKER, "127.0.0.1:1")
        return
    code = (
        "import sys\nsys.modules['ray'] = None\n"
        "from planner.batch.ray_workers import ray_workers\nray_workers('a:b', 'auto')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "pip install 'shardwright[cluster]'" in done.stderr


def test_twenty_runs_give_the_same_bytes() -> None:
    posed = Poser().pose(questions_of(GRID)[0])
    skip_where_code_changed()
    texts = set()
    for _ in range(20):
        solved = verdict_of(Reply(key="", text=solve_text(posed.job.text))).found
        assert solved is not None
        texts.add(to_json(encode(finished(solved, posed))))
    assert len(texts) == 1


def test_a_task_survives_its_text_and_the_price_put_in_later_is_the_searched_one() -> None:
    # A named solver is one of blocks; without it the question is one of layouts.
    question = replace(questions_of(GRID)[0], solver="dp")
    posed = Poser().pose(question)
    task: Task = decode(Task, json.loads(posed.job.text), where="task")
    assert job_of(task) == posed.job
    for name in ("2x8xh100-sxm", "16x4xgb200", "8xmi300x"):
        cluster = get_cluster(name)
        assert decode(Cluster, json.loads(json.dumps(encode(cluster))), where="x") == cluster
    found = [
        search(
            trace_task(task),
            task.cluster,
            task.workload,
            space=task.space,
            stack=load_stack(),
            price=price,
            options=SearchOptions(clock=lambda: 0.0),
        )
        for price in (None, posed.price)
    ]
    late = with_price(found[0], posed.price)
    assert late.prediction == found[1].prediction
    assert late.usd_per_million_tokens == found[1].usd_per_million_tokens
    for mine, theirs in zip(late.alternatives, found[1].alternatives, strict=True):
        assert mine.usd_per_million_tokens == pytest.approx(
            theirs.usd_per_million_tokens, rel=1e-12
        )


def test_a_worker_with_other_code_or_data_says_so() -> None:
    data = json.loads(Poser().pose(questions_of(GRID)[0]).job.text) | {"version": "0" * 16}
    verdict = json.loads(solve_text(json.dumps(data)))
    assert "install the same on every node" in verdict["reason"]


def begin(folder: Path, *more: str) -> subprocess.Popen[str]:
    environment = dict(os.environ, PYTHONPATH=str(ROOT), XDG_CACHE_HOME=str(CACHE))
    return subprocess.Popen(
        [sys.executable, "-m", "shardwright", *CLI, "-o", str(folder), *more],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever started the tests in the background made them, and so their children, deaf to it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def plan_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "plans").glob("*.json")}


def answers(folder: Path) -> int:
    """The number of stored answers of a sweep that may be running."""
    if not (folder / "results.sqlite").is_file():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{folder}/results.sqlite?mode=ro", uri=True)) as store:
            (count,) = store.execute("SELECT count(*) FROM answers").fetchone()
    except sqlite3.OperationalError:  # it is being made
        return 0
    return int(count)


def cut_short(folder: Path, how: signal.Signals, wanted: int) -> tuple[int, str]:
    """Begin the sweep, end it when so many answers are there; its status and what it said."""
    process = begin(folder)
    while process.poll() is None and answers(folder) < wanted:
        time.sleep(0.01)
    process.send_signal(how)
    _, said = process.communicate(timeout=120)
    return process.returncode, " ".join(said.split())


@pytest.mark.slow
def test_a_sweep_that_is_cut_short_goes_on_where_it_was(
    alone: dict[str, bytes], tmp_path: Path
) -> None:
    """Three searches, each at two prices."""
    folder = tmp_path / "out"
    status, said = cut_short(folder, signal.SIGINT, 1)
    first = answers(folder)
    assert status == 130
    assert f"answers so far are kept in {folder}; the same command continues from there" in said
    assert 1 <= first < 3
    status, _ = cut_short(folder, signal.SIGKILL, first + 1)
    assert status == -signal.SIGKILL
    second = answers(folder)
    assert first < second <= 3
    process = begin(folder, "--workers", "2", "--sort", "cost")
    shown, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert f"{second} of 3 answers were known before" in " ".join(said.split())
    assert plan_files(folder) == alone
    assert "$/M" in shown
    assert all(len(line) <= 100 for line in shown.splitlines())
    costs = [
        row["usd_per_million_tokens"]
        for row in json.loads((folder / "summary.json").read_text())["rows"]
    ]
    assert costs == sorted(costs)
    assert len(costs) == 6


def test_a_file_of_questions_with_faults_in_it(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(
        'schema = "shardwright/questions@1"\n'
        "[[grids]]\n"
        'models = ["tiny-llama-demo", "tiny-lama"]\n'
        'clusters = ["2xh100-sxm", "2xh10"]\n'
        "global_batches = [8]\nsequence_lengths = [128]\n"
        'pins = { micro_batch = 2, recompute = "none" }\n'
    )
    done = shardwright(
        "plan", "--questions", str(path), "--workers", "1", "-o", "out", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["status"] for row in rows] == ["optimal", *["failed"] * 3]
    reasons = {(row["model"], row["cluster"]): row["reason"] for row in rows}
    assert reasons["tiny-llama-demo", "2xh100-sxm"] == ""
    assert "Did you mean 'tiny-llama-demo'?" in reasons["tiny-lama", "2xh100-sxm"]
    assert "unknown device 'h10'" in reasons["tiny-llama-demo", "2xh10"]
    with (tmp_path / "out" / "summary.csv").open(newline="") as stream:
        table = list(csv.DictReader(stream))
    assert sorted(row["reason"].lstrip("'") for row in table) == sorted(reasons.values())
    plan_file = tmp_path / "out" / rows[0]["file"]
    assert shardwright("predict", str(plan_file)).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "a,b", "--on", "2xh100", "--global-batch", "8"], "name it with -o FOLDER/"),
        (["plan", "a", "--workers", "2", "-o", "x"], "give MODEL and --on"),
        (["plan", "a", "--questions", "q.toml", "-o", "x"], "contains the requests"),
        (["plan", "--questions", "q.toml", "-o", "x"], "no such file"),
        ([*CLI, "-o", "x", "--sort", "stp"], "Did you mean 'step'?"),
        ([*CLI, "-o", "x", "--time-limit", "3s"], "--time-limit is for one request"),
        ([*CLI, "-o", "x", "--workers", "2", "--ray", "auto"], "give one"),
        (["plan", "gpt2"], "give MODEL and --on"),
    ],
)
def test_flags_that_make_no_sweep(arguments: list[str], message: str, tmp_path: Path) -> None:
    found = shardwright(*arguments, cwd=tmp_path)
    assert found.returncode == 2
    assert message in " ".join(found.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_prices_and_grids_that_cannot_be(tmp_path: Path) -> None:
    cluster = get_cluster("2xh100-sxm")
    with pytest.raises(UnknownNameError, match="Did you mean 'spot'"):
        price_for(cluster, "spto")
    with pytest.raises(InputError, match="0 or more US dollars"):
        price_for(cluster, "-1")
    given = price_for(cluster, "2.49")
    assert given is not None
    assert given.value == 2.49
    path = tmp_path / "q.toml"
    head = (
        'schema = "shardwright/questions@1"\n[[grids]]\nmodels = ["gpt2"]\nclusters = ["2xl40s"]\n'
    )
    path.write_text(head + "global_batches = [8]\npins = { tpp = 2 }\n")
    with pytest.raises(InputError, match=r"q.toml, line 6: grids\[0\].*unknown pin 'tpp'"):
        read_study(path)
    path.write_text(head + "global_batches = []\n")
    with pytest.raises(InputError, match=r"line 2: .*global_batches is empty"):
        read_study(path)


def test_a_grid_is_every_combination() -> None:
    found = questions_of(GRID)
    assert len(found) == 1 * 3 * 1 * 1 * 2
    assert {type(question) for question in found} == {Question}
    assert {question.price for question in found} == {"on-demand", "1.5"}


def test_the_examples_of_the_docs_are_understood(tmp_path: Path) -> None:
    docs = ROOT / "docs" / "sweeps.md"
    example, of_layouts, of_sizes = fenced(docs, "toml")
    path = tmp_path / "sweep.toml"
    path.write_text(example)
    # 2 models x 3 clusters x 2 batches x 2 lengths x 3 prices, and one.
    assert len(read_study(path, names=False).plans) == 72 + 1
    path.write_text(example + of_layouts)
    assert len(read_study(path, names=False).plans) == 72 + 1 + 2
    path.write_text(example.split("\n", 1)[0] + "\n" + of_sizes)
    assert len(read_study(path).sizes) == 2 * 3 * 2 * 2 * 2
    lines = [line for block in fenced(docs, "sh") for line in block.splitlines()]
    command = typer.main.get_command(app)
    assert len(lines) == 7
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "shardwright"
        with command.make_context("shardwright", [arguments[0]], resilient_parsing=True) as top:
            name, found, rest = command.resolve_command(top, arguments)  # type: ignore[attr-defined] # a group
            found.make_context(name, rest, parent=top)
