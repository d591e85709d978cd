"""`shardwright sweep` as it is typed: errors with their lines, the report, `--json`, the help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from planner.batch.folder_lock import folder_held
from profiles.errors import DocumentError
from profiles.hardware.prices.price_table import device_price
from shardwright.cli import app
from shardwright.commands.sweep import sweep as sweep_command
from shardwright.reports.terminal_console import console
from shardwright.sweeps.study_file import read_study
from shardwright.sweeps.study_report import study_report
from shardwright.sweeps.study_run import StudyRun
from tests.shardwright.study_text import STUDY, study_file
from tests.shardwright.test_cli import ROOT, shardwright
from tests.shardwright.test_sweep import skip_where_code_changed


def typed(*arguments: str, cwd: Path) -> str:
    """What a command that ends with 2 says on stderr, its lines joined."""
    done = shardwright("sweep", *arguments, cwd=cwd)
    assert done.returncode == 2, done.stdout + done.stderr
    return " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("line", "typo", "said"),
    [
        ('clusters = ["1x8xh100-sxm", "1xl40s"]', 'clusterz = ["1x8xh100-sxm"]', "clusters"),
        ('"1xl40s"', '"1xl41s"', "unknown device 'l41s'"),
        ('"torchtitan"]\nprices', '"torchtitn"]\nprices', "unknown framework 'torchtitn'"),
        ('prices = ["on-demand", 2.5]', 'prices = ["on-demnd", 2.5]', "unknown price 'on-demnd'"),
        ("[32, 64]", '[32, "x64"]', "expected a whole number, found 'x64'"),
        ('micro_batch = "1"', 'micro_btch = "1"', "unknown pin 'micro_btch'"),
        ('tokens = ["10B"]', 'tokens = ["10TB"]', "10TB"),
        ('deadlines = ["10d"]', 'deadlines = ["10"]', "--deadline"),
        ("global_batches = [32, 64]", "global_batches = [32, 64", "Unclosed array"),
    ],
)
def test_a_typo_is_told_with_its_line(line: str, typo: str, said: str, tmp_path: Path) -> None:
    text = "\n" * 30 + STUDY
    assert line in text
    path = tmp_path / "study.toml"
    path.write_text(text.replace(line, typo))
    number = 1 + text[: text.index(line)].count("\n")
    with pytest.raises(DocumentError) as raised:
        read_study(path)
    assert said in str(raised.value)
    if "Unclosed" not in said:  # tomllib says where the file ends
        assert f"line {number}" in str(raised.value)


def test_lists_over_several_lines_and_several_typos(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(
        'schema = "shardwright/questions@1"\n\n[[grids]]\nmodels = [\n  "gpt2",\n  "gpt22",\n]\n'
        'clusters = ["8xh100-sxm", "8xh101"]\nglobal_batches = [8]\n'
    )
    with pytest.raises(DocumentError) as raised:
        read_study(path)
    first, second = str(raised.value).splitlines()
    assert first.startswith(f"{path}, line 6: grids[0].models: unknown model 'gpt22'")
    assert second.startswith(f"{path}, line 8: grids[0].clusters: --on '8xh101'")


def test_errors_leave_the_folder_as_it_is(tmp_path: Path) -> None:
    file, out = str(study_file(tmp_path)), ("-o", "out")
    assert "name it with -o FOLDER/" in typed(file, cwd=tmp_path)
    assert "give one file" in typed(*out, cwd=tmp_path)
    assert "Did you mean 'cost'?" in typed(file, *out, "--sort", "cst", cwd=tmp_path)
    both = ("--workers", "1", "--ray", "auto")
    assert "give one" in typed(file, *out, *both, cwd=tmp_path)
    assert "no such file" in typed("missing.toml", *out, cwd=tmp_path)
    assert not (tmp_path / "out").exists()
    with folder_held(tmp_path / "out", "shardwright sweep other.toml"):
        said = typed(file, *out, "--no-parquet", cwd=tmp_path)
    assert f"process {os.getpid()} on" in said
    assert "shardwright sweep other.toml" in said
    (tmp_path / "out" / "results.sqlite").write_bytes(b"damaged" * 99)
    assert "results.sqlite is damaged" in typed(file, *out, "--no-parquet", cwd=tmp_path)
    assert (tmp_path / "out" / "results.sqlite").read_bytes() == b"damaged" * 99


def test_without_pyarrow_it_says_what_to_do() -> None:
    code = (
        "import sys\nsys.modules['pyarrow'] = None\n"
        "from shardwright.sweeps.parquet_file import need_pyarrow\nneed_pyarrow()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "pip install 'shardwright[tables]'" in done.stderr
    assert "--no-parquet" in done.stderr


def test_the_report_is_short_and_json_has_the_counts(tmp_path: Path) -> None:
    """The command as it is typed, with a worker process."""
    arguments = ("sweep", str(study_file(tmp_path)), "-o", "out", "--workers", "1", "--no-parquet")
    done = shardwright(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "32 questions, 24 have a plan, 8 infeasible." in done.stdout
    assert "0 of 18 answers were known before" in " ".join(done.stderr.split())
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
    price = device_price("h100-sxm")
    assert price is not None
    # Whose price it is, of which kind and of which date.
    assert f"per device-hour: {price.words}" in " ".join(done.stdout.split())
    again = shardwright(*arguments, "--json", cwd=tmp_path)
    found = json.loads(again.stdout)
    skip_where_code_changed()
    assert found["known_before"] == found["jobs"] == 18
    assert found["statuses"]["results"] == {"infeasible": 8, "optimal": 24}
    assert set(found["files"]) == {
        *("summary.csv", "summary.columns.csv", "sizes.csv", "sizes.columns.csv"),
        "results.sqlite",
    }


def test_runs_without_a_price_come_last() -> None:
    run = {"model": "gpt2", "on": "h100-sxm", "tokens": 1e9, "device": "h100-sxm", "reason": ""}
    run |= {"stack": "torchtitan", "devices": 8, "days": 1.0, "status": "optimal"}
    rows = [run | {"question": number, "usd": usd} for number, usd in enumerate((None, 9.0, 5.0))]
    made = console()
    with made.capture() as captured:
        made.print(study_report(StudyRun(rows={"sizes": rows}, jobs=3, known=0, files=()), "step"))
    lines = [line.split() for line in captured.get().splitlines()]
    assert [words[0] for words in lines if "gpt2" in words] == ["2", "1", "0"]


def test_help_of_the_command_is_imported_alone() -> None:
    group = typer.main.get_command(app)
    context = group.make_context("shardwright", ["sweep"])
    name, command, _ = group.resolve_command(context, ["sweep"])  # type: ignore[attr-defined] # a group
    assert name == "sweep"
    assert sweep_command.__doc__
    assert {"study", "output", "workers", "ray", "sort", "plans"} <= {
        p.name for p in command.params
    }
