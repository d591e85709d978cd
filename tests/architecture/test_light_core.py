"""What needs no extra: importing the package, and plan, size, predict and compare from figures."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from shardwright.cli import COMMANDS
from shardwright.plugins.plugin import plugin_commands
from tests.architecture.test_imports import HEAVY, ROOT, imported_names, modules

OPTIONAL = ("torch", "transformers", "ortools", "networkx", "matplotlib", "pandas", "pyarrow")
CORE = ("numpy", "scipy", "typer", "rich", "jinja2", "platformdirs")
PLAN = ("plan", "llama-3.1-8b", "--on", "2x8xh100-sxm", "--global-batch", "64", "--seq", "4096")

BLOCK = f"""
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"blocked: {{name}}", name=name)
        return None

sys.meta_path.insert(0, Blocked())
"""

LOADED = "{name.partition('.')[0] for name in sys.modules}"


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter with caches of its own."""
    environment = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        XDG_CACHE_HOME=str(folder / "cache"),
        COLUMNS="200",
    )
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, env=environment
    )


def command(folder: Path, *arguments: str, before: str = BLOCK) -> str:
    """The output of a command with the optional packages blocked; asserts its success."""
    code = (
        f"{before}\nsys.argv = ['shardwright', *{arguments!r}]\n"
        "from shardwright.cli import main\nmain()\n"
    )
    done = python(code, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_core_requires_no_optional_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {one.partition(">")[0] for one in project["dependencies"]} == set(CORE)


def test_what_the_core_imports_is_required_or_optional() -> None:
    """No import of a package that nothing installs."""
    found = {
        name.partition(".")[0]
        for path in modules()
        for name in imported_names(path.read_text(encoding="utf-8"))
    }
    own = {"profiles", "simulator", "planner", "executor", "shardwright", "__future__"}
    plugins = {name for name in found if name.startswith("shardwright_")}  # types of functions
    assert found - set(sys.stdlib_module_names) - own - plugins <= set(CORE) | set(HEAVY)


@pytest.mark.parametrize(
    "statement",
    [
        "import shardwright",
        "import shardwright.api",
        "import shardwright\nshardwright.plan",
    ],
)
def test_importing_loads_no_optional_package(statement: str, tmp_path: Path) -> None:
    done = python(f"{statement}\nimport sys\nprint(*sorted({LOADED}))", tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) & set(OPTIONAL) == set()


def test_planning_by_figures_loads_no_torch(tmp_path: Path) -> None:
    """With every package installed and none blocked."""
    code = (
        "import sys\nimport shardwright\n"
        "work = shardwright.Workload(global_batch=64, sequence_length=4096)\n"
        "found = shardwright.plan('llama-3.1-8b', '2x8xh100-sxm', work, stack='megatron-core')\n"
        "assert found.chosen is not None\n"
        f"print(*sorted({LOADED}))"
    )
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) & set(OPTIONAL) == set()


@pytest.mark.parametrize("name", sorted({*COMMANDS, *plugin_commands()} - {"validate"}))
def test_help_imports_no_search(name: str, tmp_path: Path) -> None:
    """Measured 0.3 to 0.45 s; 0.7 s and more with numpy and the searches imported."""
    code = (
        f"import sys\nsys.argv = ['shardwright', {name!r}, '--help']\n"
        "from shardwright.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = python(code, tmp_path)
    assert f"Usage: shardwright {name}" in done.stdout
    loaded = set(done.stderr.split())
    assert loaded & {"numpy", "scipy", *OPTIONAL} == set()
    assert not [name for name in loaded if name.startswith(("planner.layout", "planner.search"))]


def test_the_block_is_effective(tmp_path: Path) -> None:
    done = python(f"{BLOCK}\nimport torch", tmp_path)
    assert "blocked: torch" in done.stderr


def test_plan_predict_and_compare_without_optional_packages(tmp_path: Path) -> None:
    out = command(tmp_path, *PLAN, "-o", "free.json", "--html", "page.html", "--csv", "table.csv")
    assert "proven optimal" in out
    assert "<svg" in (tmp_path / "page.html").read_text(encoding="utf-8")
    command(tmp_path, *PLAN, "--stack", "megatron-core", "--tp", "8", "-o", "tp8.json")
    assert "Step" in command(tmp_path, "predict", "tp8.json", "--explain")
    assert "needed" in command(tmp_path, "compare", "free.json", "tp8.json")


def test_runs_are_predicted_without_optional_packages(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text(
        "id,num_layers,hidden_size,num_heads,seq_len,device,num_devices,dp,tp,pp,micro_batch,"
        "global_batch,framework\n"
        "gpt,24,2048,16,1024,a100-sxm-80gb,8,2,2,2,4,32,Megatron-LM\n",
        encoding="utf-8",
    )
    command(tmp_path, "predict", "--runs", "runs.csv", "-o", "out.csv")
    header, row = (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()
    found = dict(zip(header.split(","), row.split(","), strict=False))
    assert float(found["step_time_s"]) > 0


def test_a_run_is_sized_without_optional_packages(tmp_path: Path) -> None:
    out = command(
        tmp_path,
        *("size", "llama-3.1-8b", "--tokens", "20B", "--deadline", "30d", "--on", "h100-sxm"),
        *("--stack", "megatron-core", "--html", "size.html"),
    )
    assert "Rent" in out
