"""Lines of code by hand, and all Python of the repository in one part or another."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.count_lines import PARTS, LineCount, count_lines, count_paths

ROOT = Path(__file__).parents[2]

SOURCE = '''"""Docstring
of two lines."""

import os  # code with a comment

# a comment

LIMIT = 1
"""A docstring of a value."""
TEXT = """code

of three lines, one of them blank"""


def name(
    a: int,
) -> str:
    """Docstring."""
    return f"{a}" + os.sep
'''


def test_code_is_neither_blank_comment_nor_docstring() -> None:
    # import, LIMIT, two lines of TEXT, three of the signature, return
    assert count_lines(SOURCE) == LineCount(lines=19, code=8)


@pytest.mark.parametrize("source", ["", "\n\n", "# only\n", '"""only"""\n'])
def test_files_without_code(source: str) -> None:
    assert count_lines(source).code == 0


def test_folders_add_up(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "file.py").write_text("x = 1\n\n")
    assert count_paths(("one", "t*"), tmp_path) == LineCount(lines=4, code=2)


def test_every_python_file_is_in_one_part() -> None:
    patterns = [pattern for part in PARTS.values() for pattern in part]
    folders = {found for pattern in patterns for found in ROOT.glob(pattern)}
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]
    homes = {path: folders & {path, *path.parents} for path in files}
    assert [str(path) for path, found in homes.items() if len(found) != 1] == []
