"""Kernels: kept where that is possible, compiled again where it is not, and cheap to compile."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SUM = """
import numpy as np
from bench.compiled import compiled, is_at_hand

@compiled
def double(values):
    total = 0.0
    for k in range(len(values)):
        total += 2.0 * values[k]
    return total

print(is_at_hand(double), double(np.arange(4.0)), is_at_hand(double))
"""


def run(folder: Path, cache: Path | str | None, home: str) -> str:
    """What the kernel says in a process of its own, its file in `folder`."""
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": home, "XDG_CACHE_HOME": home}
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, str(folder / "double.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_was_compiled_is_kept_and_what_is_damaged_is_compiled_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (tmp_path / "double.py").write_text(_SUM)
    assert run(tmp_path, cache, str(tmp_path)) == "False 12.0 True"
    assert run(tmp_path, cache, str(tmp_path)) == "True 12.0 True"
    for path in [*cache.rglob("*.nbi"), *cache.rglob("*.nbc")]:
        path.write_bytes(b"cut")
    assert run(tmp_path, cache, str(tmp_path)).endswith("12.0 True")


def test_where_no_folder_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    """A file stands where each cache folder would be: nobody, root included, can write there."""
    (tmp_path / "double.py").write_text(_SUM)
    (tmp_path / "__pycache__").write_text("")
    taken = tmp_path / "taken"
    taken.write_text("")
    assert run(tmp_path, None, str(taken)) == "False 12.0 True"
    assert list(tmp_path.rglob("*.nb?")) == []


def slice_assignments(source: str) -> list[str]:
    """Functions under @compiled that assign to a slice of an array."""
    return [
        function.name
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef)
        and any(isinstance(by, ast.Name) and by.id == "compiled" for by in function.decorator_list)
        for step in ast.walk(function)
        if isinstance(step, ast.Assign)
        for target in step.targets
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice)
    ]


def test_no_kernel_assigns_to_a_slice() -> None:
    """That alone takes numba 3 s to compile (bench/compiled.py)."""
    sources = {
        path: path.read_text()
        for path in sorted(
            path for room in ("planner", "bench") for path in (ROOT / room).rglob("*.py")
        )
    }
    assert sum(text.count("@compiled\n") for text in sources.values()) > 15
    assert {
        path: found for path, text in sources.items() if (found := slice_assignments(text))
    } == {}


@pytest.mark.parametrize("line", ["place[:n] = base[first : first + n]", "best[:] = choice"])
def test_the_search_for_slices_finds_them(line: str) -> None:
    assert slice_assignments(f"@compiled\ndef kernel(place, base):\n    {line}\n") == ["kernel"]
