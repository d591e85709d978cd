"""docs/architecture.md: the table of rooms names the folders and files that there are."""

from __future__ import annotations

import re

from tests.architecture.test_folders import ORDER
from tests.architecture.test_imports import ROOT

_NOT_SHIPPED = ("tools", "bench")


def rooms() -> dict[str, str]:
    """What the table says of each folder; `...` stands for simulator/training_run."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = text.split("## Rooms")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w/.]+)`[^|]*\| (.+) \|$", table, re.MULTILINE)
    return {folder.replace("...", "simulator/training_run"): words for folder, words in rows}


def missing(folder: str, words: str) -> list[str]:
    """Files that a row names and that are not in its folder."""
    named = re.findall(r"`([\w/*]+\.(?:py|j2))`", words)
    return [f"{folder}/{name}" for name in named if not any((ROOT / folder).glob(name))]


def test_every_row_names_files_of_its_own_folder():
    assert [file for folder, words in rooms().items() for file in missing(folder, words)] == []


def test_the_check_sees_a_file_that_stands_elsewhere():
    assert missing("planner/chain", "`problem.py`, `search.py`") == ["planner/chain/search.py"]


def test_every_folder_with_files_has_a_row():
    shipped = {
        folder
        for folders in ORDER.values()
        for folder in folders
        if any(path.name != "__init__.py" for path in (ROOT / folder).glob("*.py"))
    }
    assert shipped - set(rooms()) == set()
    assert set(rooms()) - shipped - set(_NOT_SHIPPED) == set()
