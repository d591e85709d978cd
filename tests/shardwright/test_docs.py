"""README and docs: their commands and examples run."""

from __future__ import annotations

import fnmatch
import functools
import re
import shlex
from pathlib import Path

import pytest

from planner.layout.layout_question import far_levels_of
from profiles.hardware.catalogue.catalog import get_cluster
from shardwright.cli import COMMANDS
from shardwright.plugins.plugin import plugin_commands
from tests.shardwright.test_cli import ROOT, shardwright

# These measure or train for minutes: `make demo` and the measuring tests run the same code.
LONG = ("profile", "run", "demo")
# Pages that name files of users and of other projects.
LOOSE = ("case-studies.md", "accuracy.md", "accuracy_modules.md", "frameworks.md")
PACKAGES = "profiles|simulator|planner|executor|plugins|shardwright|tests|tools|bench|docs|examples"


def fenced(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


WITH_PLUGINS = pytest.mark.skipif(
    not (ROOT / "plugins").is_dir(),
    reason="pages describe plug-ins, which are absent",
)


def commands_of(page: str) -> list[list[str]]:
    """The commands of a page, in order, without `shardwright`."""
    lines = [line for block in fenced(ROOT / page, "sh") for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("shardwright ")]


def is_heavy(command: list[str]) -> bool:
    """Whether a command measures or trains, or needs what such a command wrote."""
    return command[0] in LONG or "local" in command or "tiny.json" in command


def pages() -> list[Path]:
    """Every page that is read on its own, with paths from the root."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    return [*found, *sorted((ROOT / "docs").glob("**/*.md"))]


@WITH_PLUGINS
def test_the_readme_is_short_and_names_every_command() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert {"make demo", "make test", "source .venv/bin/activate"} <= set(re.split(r"  +|\n", text))
    table = text.split("## Commands")[1].split("\n## ")[0]
    first_cells = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    named = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted({*COMMANDS, *plugin_commands()})


@functools.cache
def project_files() -> tuple[str, ...]:
    """Paths of the project's files from its root."""
    # Not in .venv and other folders that are no part of the project.
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."]
    return tuple(str(path.relative_to(ROOT)) for each in folders for path in each.rglob("*.*"))


@WITH_PLUGINS
@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_and_named_files_exist(page: Path) -> None:
    """Links from the page's folder; files in backticks by their path, or by its end; `*` as in a
    shell."""
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert (page.parent / target).is_file(), target
    if page.name not in LOOSE:
        for path in re.findall(rf"`([\w/*]+\.py|(?:{PACKAGES})/[\w/.*-]+\.\w+)`", text):
            assert fnmatch.filter(project_files(), path) or fnmatch.filter(
                project_files(), f"*/{path}"
            ), path


@WITH_PLUGINS
def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    """In order, in an empty folder, without those that measure or train."""
    ran, helped = 0, set()
    for command in commands_of("README.md"):
        if is_heavy(command):
            helped.add(command[0])
            continue
        done = shardwright(*command, cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)
        ran += 1
    assert ran >= 2
    assert {"profile", "run", "compare", "plan"} >= helped >= {"profile", "run", "compare"}
    for name in sorted(helped):
        assert shardwright(name, "--help").returncode == 0


@pytest.mark.slow  # profiles this machine and trains: some five minutes
def test_all_commands_of_the_tour_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the README too, and those that measure and train."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for command in commands_of("docs/tour.md"):
        done = shardwright(*command, cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)


def test_the_tour_has_the_commands_of_the_readme() -> None:
    readme, tour = commands_of("README.md"), commands_of("docs/tour.md")
    assert [command for command in tour if command in readme] == readme


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = fenced(ROOT / "docs/tour.md", "python")
    exec(compile(example, "tour.md", "exec"), {})
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
