"""The first questions of planners and engineers (docs/first-questions.md): each first screen has at
most twelve lines of 100 columns."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.shardwright.test_cli import ROOT, shardwright

PAGE = ROOT / "docs" / "first-questions.md"
LINES, COLUMNS = 12, 100


def commands() -> list[str]:
    return re.findall(r"\| `shardwright ([^`]+)` \|", PAGE.read_text(encoding="utf-8"))


def cases() -> list[object]:
    """Those of the largest searches are slow tests; others ask of every option that they give."""
    heavy = ("deepseek-v3", "h100-sxm,b200", "405b", "qwen3-235b", "mixtral", "lora")
    return [
        pytest.param(command, marks=pytest.mark.slow if any(x in command for x in heavy) else ())
        for command in commands()
    ]


def test_there_are_twelve_of_a_planner_and_eight_of_an_engineer() -> None:
    verbs = [command.split()[0] for command in commands()]
    assert (verbs.count("size"), verbs.count("plan")) == (12, 8)


@pytest.mark.parametrize("command", cases())
def test_the_first_screen_answers_it(command: str) -> None:
    done = shardwright(*shlex.split(command))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    assert len(lines) <= LINES, done.stdout
    assert max(map(len, lines)) <= COLUMNS
    assert lines[0].startswith(("Rent ", "Best "))
    assert any(line.startswith(("Cost ", "Price ")) for line in lines)
    assert any(line.startswith("Basis ") for line in lines)
