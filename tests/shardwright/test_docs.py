"""README and docs: their commands and examples run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from planner.layout.layout_ground import far_levels_of
from profiles.hardware.catalogue.catalog import get_cluster
from tests.shardwright.test_cli import ROOT, shardwright

# These measure or train for minutes: `make demo` and the measuring tests run the same code.
LONG = ("profile", "run", "demo", "compare")


def fenced(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


def readme_commands() -> list[list[str]]:
    lines = [line for block in fenced(ROOT / "README.md", "sh") for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("shardwright ")]


def test_the_readme_names_the_two_commands_and_many_more() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
    assert len(readme_commands()) >= 8
    for path in re.findall(
        r"`((?:profiles|simulator|planner|executor|shardwright)/[\w/]+\.py)`", text
    ):
        assert (ROOT / path).is_file(), path
    assert (ROOT / "docs/images/report.png").is_file()


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_every_file_that_is_named_exists(name: str) -> None:
    """By a path from the root, or by its name alone in one of the packages; `*` as in a shell."""
    text = (ROOT / name).read_text(encoding="utf-8")
    named = re.findall(r"`([\w/.*]+\.(?:py|toml|md))`", text)
    assert len(named) > 3
    # Not in .venv and other folders that are no part of the project.
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."]
    for path in named:
        within = (any(folder.glob(f"**/{path}")) for folder in folders)
        assert any(ROOT.glob(path)) or any(within), path


def test_readme_commands_run(tmp_path: Path) -> None:
    ran, helped = 0, set()
    for command in readme_commands():
        if command[0] in LONG or "local" in command:
            helped.add(command[0])
            continue
        done = shardwright(*command, cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)
        ran += 1
    assert ran >= 4
    for name in sorted(helped):
        assert shardwright(name, "--help").returncode == 0


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = fenced(ROOT / "README.md", "python")
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out.split()[0] in ("optimal", "feasible")


def test_the_cluster_file_of_the_docs_is_read(tmp_path: Path) -> None:
    example, line, _ = fenced(ROOT / "docs/clusters.md", "toml")
    path = tmp_path / "cluster.toml"
    path.write_text(example)
    cluster = get_cluster(str(path))
    assert cluster.num_devices == 128
    assert [level.domain_size for level in cluster.levels] == [8, 64, 128]
    assert cluster.level_between((0, 7)).name == "nvlink"
    assert cluster.level_between((0, 63)).name == "rack"
    assert cluster.level_between((0, 64)).oversubscription == 2.0
    path.write_text(example.replace("count = 16", "count = 64") + line)
    sites = far_levels_of(get_cluster(str(path)))
    assert [level.part_devices for level in sites] == [64, 128]
    # 100 GB/s at 0.8 for the 256 devices of a site, each with its share.
    assert sites[-1].bytes_per_s_per_device == 0.8 * 100e9 / 256
