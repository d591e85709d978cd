"""docs/architecture.md: its folders, files and reading path exist and stay short."""

from __future__ import annotations

import re

from tests.architecture.test_folders import ORDER
from tests.architecture.test_imports import ROOT

_NOT_SHIPPED = {"evidence", "tools", "bench"}
_MOST_FILES, _MOST_LINES = 20, 4000
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text under a heading of the page."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows() -> list[tuple[tuple[str, ...], str]]:
    """Folders and contents of each row; `...` is short for simulator/training_run."""
    table = re.findall(r"^\| (`[^|]+`) \| (.+) \|$", section("Folders"), re.MULTILINE)
    return [
        (tuple(re.findall(r"`(.+?)`", first.replace("...", "simulator/training_run"))), words)
        for first, words in table
    ]


def reading_path() -> list[str]:
    """The files of the reading path, in order."""
    return re.findall(r"^\d+\. `([\w/]+\.py)`", section("Reading path"), re.MULTILINE)


def missing(folders: tuple[str, ...], words: str) -> list[str]:
    """Files that a row names and that are in none of its folders."""
    named = re.findall(r"`([\w/*]+\.(?:py|j2))`", words)
    return [name for name in named if not any(any((ROOT / each).glob(name)) for each in folders)]


def test_every_row_names_files_of_its_folders() -> None:
    assert [(folders, missing(folders, words)) for folders, words in rows()] == [
        (folders, []) for folders, _ in rows()
    ]


def test_the_check_finds_a_file_of_another_folder() -> None:
    assert missing(("planner/chain",), "`problem.py`, `search.py`") == ["search.py"]


def test_every_folder_with_files_has_one_row() -> None:
    listed = [folder for folders, _ in rows() for folder in folders]
    shipped = {
        folder
        for folders in ORDER.values()
        for folder in folders
        if any(path.name != "__init__.py" for path in (ROOT / folder).glob("*.py"))
    }
    assert sorted(listed) == sorted(shipped | _NOT_SHIPPED)


def test_the_reading_path_is_short() -> None:
    files = reading_path()
    assert 10 <= len(files) <= _MOST_FILES
    assert sum(len((ROOT / file).read_text().splitlines()) for file in files) <= _MOST_LINES


def test_the_reading_path_follows_the_imports() -> None:
    """Each file but the first is imported by a file that the section names."""
    imported = set[str]()
    for file in set(re.findall(r"`([\w/]+\.py)`", section("Reading path"))):
        text = (ROOT / file).read_text()
        for module, names in re.findall(
            r"^\s*from ([\w.]+) import \(?([\w, ]*)", text, re.MULTILINE
        ):
            folder = module.replace(".", "/")
            imported |= {f"{folder}.py", *(f"{folder}/{name}.py" for name in names.split(", "))}
    assert set(reading_path()[1:]) - imported == set()


def test_the_page_is_short() -> None:
    assert len(PAGE.splitlines()) <= 150
