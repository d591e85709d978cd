"""A new accelerator is one file, with its relatives for kernels, collectives and coefficients."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAN = ("plan", "llama-3.1-8b", "--on", "8xh150", "--global-batch", "64", "--seq", "4096")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages, which tests may change."""
    folder = tmp_path_factory.mktemp("project")
    for package in ("profiles", "simulator", "planner", "executor", "shardwright"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    (folder / "work").mkdir()
    return folder


def device(project: Path, *, without: str = "") -> None:
    """Adds h150.toml: an H100 with relatives, or without one of them."""
    folder = project / "profiles" / "data" / "devices"
    text = (folder / "h100-sxm-80gb.toml").read_text(encoding="utf-8")
    lines = ['name = "h150"' if line.startswith("name =") else line for line in text.splitlines()]
    lines = ["aliases = []" if line.startswith("aliases =") else line for line in lines]
    lines = [
        'efficiency_of = "h100-sxm-80gb"' if line.startswith("efficiency_of =") else line
        for line in lines
    ]
    for table in {"kernels", "collectives"} - {without}:
        lines += [f"[{table}]", 'measured_on = "h100-sxm-80gb"', 'reason = "an H100"']
    (folder / "h150.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def answer(project: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shardwright.cli", *PLAN, "--stack", "megatron-core", *more],
        cwd=project / "work",
        env=os.environ | {"PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_its_file_is_enough(project: Path) -> None:
    device(project)
    found = answer(project, "--no-cache")
    assert found.returncode == 0, found.stderr
    assert "proven optimal" in found.stdout


@pytest.mark.parametrize("table", ["kernels", "collectives"])
def test_a_missing_relative_is_an_error(project: Path, table: str) -> None:
    device(project, without=table)
    found = answer(project, "--no-cache")
    assert found.returncode == 2
    assert f"h150 has no measured {table}" in " ".join(found.stderr.split())
