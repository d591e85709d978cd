"""docs/importing.md: its script is read, its commands run, what it prints is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardwright.cli import app

PAGE = Path(__file__).parents[3] / "docs" / "importing.md"


def test_the_page_says_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (script,) = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    (commands,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("pretrain.sh").write_text(script)
    outputs = []
    for command in commands.splitlines():
        done = CliRunner().invoke(app, command.split()[1:])
        assert done.exit_code == 0, (command, done.output)
        outputs.append(" ".join(done.stdout.split()))
    for line in printed.splitlines():
        assert line in outputs[0]
    assert "full -> left out" in outputs[2]
