"""Golden outputs of a fixed plan and run: terminal, Markdown, JSON and the report's structure."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from profiles.document import to_json, write_document
from shardwright.analysis.comparison import compare_run, comparison_data
from shardwright.reports.brief.plan_page import report_html
from shardwright.reports.chrome_trace import chrome_trace
from simulator.values.measurement import MEASUREMENT_SCHEMA
from simulator.values.plan import PLAN_SCHEMA
from tests.shardwright.fixed_pair import answer, fixed_roofline, run
from tests.shardwright.golden import check_golden, structure_of
from tests.shardwright.test_cli import ROOT, shardwright

ESCAPE = "\x1b["
PRINT_COMPARISON = (
    "from shardwright.reports.brief.brief_terminal import section_report\n"
    "from shardwright.reports.brief.comparison_section import comparison_section\n"
    "from shardwright.reports.terminal_console import console\n"
    "from shardwright.analysis.comparison import compare_run\n"
    "from tests.shardwright.fixed_pair import answer, run\n"
    "console().print(section_report(comparison_section(compare_run(answer(), run()))))\n"
)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """The fixed plan.json and run.json."""
    plan_path, run_path = tmp_path / "plan.json", tmp_path / "run.json"
    write_document(plan_path, answer(), schema=PLAN_SCHEMA)
    write_document(run_path, run(), schema=MEASUREMENT_SCHEMA)
    return str(plan_path), str(run_path)


def test_the_terminal_output_piped(pair: tuple[str, str]) -> None:
    done = shardwright("compare", *pair)
    assert done.returncode == 0, done.stderr
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
    assert ESCAPE not in done.stdout
    assert ESCAPE not in done.stderr
    check_golden("compare_terminal.txt", done.stdout)


def test_the_markdown(pair: tuple[str, str]) -> None:
    done = shardwright("compare", *pair, "--markdown", "-")
    assert done.returncode == 0, done.stderr
    check_golden("compare.md", done.stdout)


def test_the_json_rows() -> None:
    data = comparison_data(compare_run(answer(), run()))
    for row in data["rows"]:
        assert {"error", "cpu_error", "measured_cpu", "inside"} <= set(row)
    check_golden("compare.json", to_json(data))


def test_the_structure_of_the_page() -> None:
    page = report_html(answer(), run(), roofline=fixed_roofline())
    check_golden("report_structure.txt", structure_of(page))


def test_the_structure_of_the_page_without_a_run() -> None:
    check_golden("report_structure_predicted.txt", structure_of(report_html(answer(), None)))


def test_the_trace() -> None:
    text = json.dumps(chrome_trace(answer().prediction, run()), indent=1, sort_keys=True)
    # Ends of events differ in the last binary digit: nanoseconds are enough.
    rounded = re.sub(r"\d+\.\d{4,}", lambda m: f"{float(m.group()):.3f}", text)
    check_golden("trace.json", rounded + "\n")


def on_a_terminal(**environment: str) -> str:
    """What a process prints whose stdout is a terminal of 100 columns."""
    leader, follower = pty.openpty()
    own = {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "100", **environment}
    base = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    with subprocess.Popen(
        [sys.executable, "-c", PRINT_COMPARISON],
        cwd=ROOT,
        env={**base, **own},
        stdout=follower,
        stderr=follower,
    ) as process:
        os.close(follower)
        found = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # Linux says so when the other end is closed.
                break
            if not part:
                break
            found += part
    os.close(leader)
    assert process.returncode == 0, found.decode()
    return found.decode()


def test_a_terminal_gets_styles_and_no_color_takes_all_of_them_away() -> None:
    assert ESCAPE in on_a_terminal()
    plain = on_a_terminal(NO_COLOR="1")
    assert "step" in plain
    assert ESCAPE not in plain
    # https://no-color.org: only a value that is not empty counts.
    assert ESCAPE in on_a_terminal(NO_COLOR="")
