"""Processes end with their launcher, and start under any that is alive."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest

from executor.before_launch import die_with_parent

linux = pytest.mark.skipif(sys.platform != "linux", reason="prctl(2) is Linux's")


@linux
@pytest.mark.parametrize(("launcher", "code"), [(1, 0), (2, 1)])
def test_a_launcher_may_be_the_first_process_of_a_container(
    monkeypatch: pytest.MonkeyPatch, launcher: int, code: int
) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 1)
    done = subprocess.run(
        [sys.executable, "-c", ""], preexec_fn=partial(die_with_parent, launcher), check=False
    )
    assert done.returncode == code
