"""Commands in one interpreter that has imported nothing before, where tests look at imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

_RUN = """
import contextlib, io, json, sys
{before}
from shardwright import cli
for words in {commands!r}:
    sys.argv = ["shardwright", *words]
    status, out, err = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli._run()
        except SystemExit as stop:
            status = stop.code or 0
    print(json.dumps([status, out.getvalue(), err.getvalue(), sorted(sys.modules)]))
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """Exit status and output of a command, and the names of modules that are loaded after it."""

    status: int
    stdout: str
    stderr: str
    loaded: tuple[str, ...]

    @property
    def packages(self) -> set[str]:
        return {name.partition(".")[0] for name in self.loaded}


def without(*packages: str) -> str:
    """Code after which these packages cannot be imported."""
    return f"sys.modules |= dict.fromkeys({packages!r})"


def python(code: str, folder: Path) -> str:
    """Output of code in a fresh interpreter with caches of its own; asserts its success."""
    path = os.pathsep.join(dict.fromkeys((str(ROOT), *filter(None, sys.path))))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": path, "HOME": str(folder), "COLUMNS": "300"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_in_turn(commands: Sequence[Sequence[str]], folder: Path, before: str = "") -> list[Ran]:
    """The commands in turn in one fresh interpreter that has executed `before`."""
    words = [list(each) for each in commands]
    lines = python(_RUN.format(before=before, commands=words), folder).splitlines()
    return [Ran(*values, tuple(loaded)) for *values, loaded in map(json.loads, lines)]
