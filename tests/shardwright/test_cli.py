"""The command line as a user meets it: surface, exit codes, messages, files."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from profiles.document import write_document
from shardwright.cli import _run, app
from shardwright.plugins.plugin import plugin_commands
from simulator.values.measurement import MEASUREMENT_SCHEMA
from simulator.values.plan import PLAN_SCHEMA
from tests.shardwright.hand_made import answer, run_of

ROOT = Path(__file__).parents[2]
PLAN_70B = ["plan", "llama-3.1-70b", "--global-batch", "1024", "--seq", "8192"]


CACHE = ROOT / ".pytest_cache" / "shardwright"


def shardwright(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Exit status and output of a command in this process, which keeps what commands before it
    imported and computed. Their processes: tests/fresh.py, tests/forked.py."""
    status, out, err = 0, io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(CACHE))
        patch.setattr(sys, "argv", ["shardwright", *arguments])
        patch.chdir(cwd)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                _run()
            except SystemExit as stop:
                status = int(stop.code or 0)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def test_the_surface_is_frozen() -> None:
    group = typer.main.get_command(app)
    context = group.make_context("shardwright", ["catalog"])
    names = set(group.list_commands(context)) - set(plugin_commands())
    commands = {name: group.resolve_command(context, [name])[1] for name in names}
    assert sorted(commands) == [
        "catalog",
        "compare",
        "demo",
        "fit",
        "plan",
        "predict",
        "profile",
        "run",
        "size",
        "sweep",
        "ui",
    ]
    for name, command in commands.items():
        examples = re.findall(rf"shardwright {name}", command.epilog or "")
        assert len(examples) == 2, f"the help of {name} ends with two examples"


def test_a_70b_plan_comes_with_bound_and_runners_up(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    done = shardwright(
        *PLAN_70B,
        "--stack",
        "torch",
        "--on",
        "16x8xh100-sxm",
        "--json",
        "--no-cache",
        "-o",
        str(path),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for key in (
        "status",
        "bound",
        "gap",
        "step_time_s",
        "step_time_low_s",
        "step_time_high_s",
        "mfu",
        "peak_memory_bytes",
        "usd_per_million_tokens",
        "search_time_s",
        "cells_considered",
        "plan",
        "alternatives",
    ):
        assert found[key] is not None, key
    assert found["status"] in ("optimal", "feasible")
    assert 0 <= found["gap"] < 0.01
    assert found["bound"] <= found["step_time_s"] * (1 + 1e-9)
    assert found["step_time_low_s"] <= found["step_time_s"] <= found["step_time_high_s"]
    assert found["peak_memory_bytes"] < 80 * 2**30
    assert 1 <= len(found["alternatives"]) <= 3
    shown = shardwright("predict", str(path), "--explain", "--html", str(tmp_path / "r.html"))
    assert shown.returncode == 0, shown.stderr
    assert (tmp_path / "r.html").stat().st_size < 3_000_000
    assert all(len(line) <= 100 for line in shown.stdout.splitlines())


def test_four_devices_are_too_few_and_the_answer_says_what_fits() -> None:
    done = shardwright(*PLAN_70B, "--on", "4xh100-sxm")
    assert done.returncode == 3
    assert "No plan of llama-3.1-70b fits on 4xh100-sxm" in done.stdout
    assert "of the closest layout, " in done.stdout
    assert "--on" in done.stdout
    assert "no layout of llama-3.1-70b fits on 4xh100-sxm" in done.stderr


def test_a_wrong_choice_is_an_error_in_our_words() -> None:
    done = shardwright("plan", "gpt2", "--on", "2xh100-sxm", "--optimizer", "adam")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert said.startswith("error: Invalid value for '--optimizer': 'adam' is not one of 'adamw'")


def test_comparing_files(tmp_path: Path) -> None:
    plan, run = tmp_path / "plan.json", tmp_path / "run.json"
    write_document(plan, answer(), schema=PLAN_SCHEMA)
    write_document(run, run_of(answer()), schema=MEASUREMENT_SCHEMA)
    html = tmp_path / "report.html"
    done = shardwright("compare", str(plan), str(run), "--html", str(html))
    assert done.returncode == 0, done.stderr
    assert "-20.0 %" in done.stdout
    assert html.is_file()
    assert shardwright("compare", str(plan), str(run), "--fail-over", "25%").returncode == 0
    strict = shardwright("compare", str(plan), str(run), "--fail-over", "15%")
    assert strict.returncode == 4
    assert "--fail-over allows 15%" in strict.stderr
    # Not a number is no tolerance: nothing would ever be over it.
    assert shardwright("compare", str(plan), str(run), "--fail-over", "nan").returncode == 2
    ignored = shardwright("compare", str(plan), str(plan), "--fail-over", "15%")
    assert ignored.returncode == 2
    assert "need a run" in ignored.stderr
    assert "are equal" in shardwright("compare", str(plan), str(plan)).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["plan", "llama-3.1-8b", "--on", "8xh100", "--global-batch", "0"],
            "--global-batch must be",
        ),
        (["plan", "llama-3.1-8b", "--on", "8xh10", "--global-batch", "8"], "Did you mean 'h100'"),
        (["plan", "llama-3.1-8b", "--on", "9xh100", "--global-batch", "8"], "node holds 8"),
        (["plan", "lama", "--on", "8xh100", "--global-batch", "8"], "config.json"),
        (
            ["plan", "gpt2", "--on", "2xh100", "--global-batch", "8", "--tp", "x"],
            "is not a list of whole numbers",
        ),
        (["predict", "missing.json"], "no such file"),
        (["compare", "missing.json", "other.json"], "no such file"),
        (["catalog", "show", "h300"], "unknown device 'h300'"),
        (
            ["plan", "gpt2", "--on", "local", "--local", "none.json", "--global-batch", "8"],
            "run `shardwright profile` first",
        ),
    ],
)
def test_bad_input_is_exit_code_2_with_the_fix(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = shardwright(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": "shardwright/plan@2", "stat', "not valid JSON, or cut short"),
        ('{"schema": "shardwright/plan@9"}', "is not supported"),
        ('{"schema": "shardwright/run@1"}', "is not a shardwright/plan@2 file"),
        (
            '{"schema": "shardwright/plan@2", "statsu": "x"}',
            "unknown key 'statsu'",
        ),
    ],
)
def test_a_damaged_plan_file_says_what_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    done = shardwright("run", str(path), cwd=tmp_path)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_a_reader_that_closes_the_pipe_is_no_fault() -> None:
    """Several results are shown one after another; whoever reads the first line alone ends it."""
    code = (
        "import os, sys\nfrom shardwright.console.output import show\n"
        "read, write = os.pipe()\nos.dup2(write, 1)\nos.close(read)\n"
        "try:\n    show('one')\n    sys.stdout.flush()\n    show('two')\n"
        "except BrokenPipeError:\n    os.write(2, b'told')\nos._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, text=True)
    assert done.stderr == "told"
