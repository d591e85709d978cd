"""Exported folders on disk, what their script would start, and the environments that read them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shardwright_frameworks.exports.export_plan import ExportFolder

ROOT = Path(__file__).parents[4]
HERE = Path(__file__).parent
ENVIRONMENTS = Path(os.environ.get("SHARDWRIGHT_FRAMEWORKS", ROOT / ".venv-frameworks"))
# Prints what it was called with instead of starting anything.
_STUB = """#!/usr/bin/env bash
exec {python} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$0" "$@"
"""
_PROGRAMS = ("torchrun", "accelerate", "python3", "env")


def write_folder(folder: Path, export: ExportFolder) -> Path:
    """The files, as `shardwright export` writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in export.files:
        path = folder / file.path
        path.write_text(file.text, encoding="utf-8")
        if file.executable:
            path.chmod(0o755)
    return folder


def started_by(folder: Path) -> list[str]:
    """Program and arguments that `run.sh` ends with, expanded by bash itself."""
    stubs = folder.parent / "stubs"
    stubs.mkdir(exist_ok=True)
    for name in _PROGRAMS:
        path = stubs / name
        path.write_text(_STUB.format(python=sys.executable))
        path.chmod(0o755)
    environment = {
        "PATH": f"{stubs}:/usr/bin:/bin",
        **{
            name: f"/{name.lower()}"
            for name in (
                "MEGATRON_PATH", "BRIDGE_PATH", "NANOTRON_PATH", "MAXTEXT_BASE",
                "MEGATRON_DEEPSPEED_PATH",
            )
        },
    }  # fmt: skip
    done = subprocess.run(
        ["/bin/bash", str(folder / "run.sh")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[str] = json.loads(done.stdout)
    return [Path(found[0]).name, *found[1:]]


def python_of(environment: str) -> str:
    """The interpreter of a framework's environment; skips the test where there is none."""
    path = ENVIRONMENTS / environment / "bin" / "python"
    if not path.is_file():
        pytest.skip(f"{path} is missing: `make frameworks` makes it")
    return str(path)


def read_by(environment: str, script: str, cases: Any, tmp_path: Path) -> dict[str, Any]:
    """What a script of this folder, run by a framework's environment, answers on stdout."""
    path = tmp_path / f"{environment}-cases.json"
    path.write_text(json.dumps(cases))
    done = subprocess.run(
        [python_of(environment), str(HERE / script), str(path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
