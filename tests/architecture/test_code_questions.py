"""docs/code-questions.md: every file exists and holds the name that is given with it."""

from __future__ import annotations

import re

from tests.architecture.test_imports import ROOT

PAGE = (ROOT / "docs/code-questions.md").read_text(encoding="utf-8")
_NAMED = re.compile(r"`([\w/.-]+/[\w.-]+)`(?: `(\w+)`)?")


def test_every_answer_exists() -> None:
    rows = PAGE.split("|---|---|\n")[1].splitlines()
    assert len(rows) == 38
    for row in rows:
        named = _NAMED.findall(row)
        assert named, row
        for path, name in named:
            assert (ROOT / path).exists(), path
            if name:
                text = (ROOT / path).read_text(encoding="utf-8")
                assert re.search(rf"(def|class) {name}\b", text), f"{path}: {name}"
