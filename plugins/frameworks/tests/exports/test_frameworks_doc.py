"""docs/frameworks.md: its commands run on its script, and print what it says they print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml
from shardwright_frameworks.exports.launchers.launchers import LAUNCHERS
from shardwright_frameworks.exports.targets.targets import TARGETS

from tests.shardwright.test_cli import ROOT, shardwright
from tests.shardwright.test_docs import fenced

PAGE = ROOT / "docs" / "frameworks.md"


def test_every_target_and_launcher_is_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in TARGETS)
    assert all(f"`{name}`" in text for name in LAUNCHERS)
    for block in fenced(PAGE, "yaml"):
        assert "shardwright check plan.json --against train.sh" in str(yaml.safe_load(block))


def test_its_commands_run(tmp_path: Path) -> None:
    (script,) = fenced(PAGE, "bash")
    (tmp_path / "pretrain.sh").write_text(script)
    lines = [line for block in fenced(PAGE, "sh") for line in block.splitlines()]
    assert len(lines) == 8
    printed = ""
    for line in lines:
        done = shardwright(*shlex.split(line)[1:], cwd=tmp_path)
        assert done.returncode == (4 if "better.json --against" in line else 0), (line, done.stderr)
        printed += done.stdout
    (shown,) = fenced(PAGE, "text")
    assert shown in printed
    steps = [
        re.findall(r"[Ss]tep +([\d.]+) s \[", printed),
        re.findall(r"([\d.]+) s\s+\d+ %", printed),
    ]
    quoted = re.search(
        r"predicted at ([\d.]+) s .* at ([\d.]+) s, the plan at ([\d.]+) s", PAGE.read_text()
    )
    assert quoted is not None
    assert quoted[1] in steps[0], steps
    assert quoted[2] in steps[1], steps
    assert quoted[3] in steps[0], steps
