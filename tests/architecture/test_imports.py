"""The house: which package may import which, and which modules may import heavy libraries."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("profiles", "simulator", "planner", "executor", "shardwright")
MAY_IMPORT = {
    "profiles": {"profiles"},
    "simulator": {"profiles", "simulator"},
    "planner": {"profiles", "simulator", "planner"},
    "executor": {"profiles", "simulator", "executor"},
    "shardwright": set(PACKAGES),
}
HEAVY = {
    "torch": (
        "profiles/model/building/build",
        "profiles/model/fake_tensors/trace",
        "profiles/model/tracing/trace_",
        "profiles/model/tracing/trace.py",
        "profiles/model/steps/trace_",
        "profiles/hardware/probe/",
        "executor/",
    ),
    "transformers": ("profiles/model/building/build",),
    "ortools": ("planner/",),
    "ray": ("planner/batch/ray_workers",),
    "pyarrow": ("shardwright/sweeps/parquet_file",),
    "networkx": ("planner/chain/ideals", "profiles/model/tracing/trace_derive_tensor_parallel"),
    "matplotlib": ("shardwright/reports/brief/brief_figure",),
    "yaml": (),
    "typer": ("shardwright/",),
    "rich": ("shardwright/",),
    "jinja2": ("shardwright/reports/",),
    "pandas": ("shardwright/results/result.py",),
    "streamlit": ("shardwright/page/",),
}


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@functools.cache
def imported_names(source: str) -> tuple[str, ...]:
    """Every module that the source imports, anywhere in it."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.append(node.module)
    return tuple(names)


def direction_faults(path: str, source: str) -> list[str]:
    own = path.split("/")[0]
    tops = {name.split(".")[0] for name in imported_names(source)}
    return [f"{path} imports {top}" for top in sorted(tops & set(PACKAGES) - MAY_IMPORT[own])]


def heavy_faults(path: str, source: str) -> list[str]:
    tops = {name.split(".")[0] for name in imported_names(source)}
    return [
        f"{path} imports {top}"
        for top in sorted(tops & set(HEAVY))
        if not path.startswith(HEAVY[top])
    ]


def test_dependencies_point_one_way() -> None:
    faults = []
    for path in modules():
        faults += direction_faults(str(path.relative_to(ROOT)), path.read_text())
    assert faults == []


def test_heavy_imports_are_confined() -> None:
    faults = []
    for path in modules():
        faults += heavy_faults(str(path.relative_to(ROOT)), path.read_text())
    assert faults == []


def test_the_two_checks_see_a_fault() -> None:
    assert direction_faults("planner/x.py", "def f():\n    import executor.train") == [
        "planner/x.py imports executor"
    ]
    assert heavy_faults("simulator/x.py", "from torch import nn") == [
        "simulator/x.py imports torch"
    ]
    assert heavy_faults("executor/x.py", "import torch.distributed") == []


def test_module_names_say_something() -> None:
    bad = {"utils.py", "common.py", "helpers.py", "misc.py", "manager.py"}
    assert [str(path) for path in modules() if path.name in bad] == []


def loaded_after(statement: str) -> set[str]:
    """Top-level modules in memory after a fresh interpreter ran the statement."""
    names = "{m.split('.')[0] for m in sys.modules}"
    code = f"{statement}\nimport sys\nprint(' '.join(sorted({names})))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split("\n")[-2].split())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import shardwright", {"torch", "numpy", "ortools", "transformers", "matplotlib"}),
        (
            "import shardwright.cli",
            {"torch", "numpy", "scipy", "ortools", "transformers", "matplotlib", "networkx"},
        ),
        (
            "import profiles.model.loaders, profiles.model.tracing.traced",
            {"torch", "transformers", "ortools", "matplotlib"},
        ),
        ("import simulator.traced.predict", {"torch", "transformers", "ortools", "matplotlib"}),
        ("import planner.search.search", {"torch", "transformers", "matplotlib", "executor"}),
        (
            "import executor.train, executor.launch, profiles.hardware.probe.probe",
            {"ortools", "transformers", "matplotlib", "planner", "typer"},
        ),
    ],
)
def test_imports_that_must_not_happen(statement: str, absent: set[str]) -> None:
    assert loaded_after(statement) & absent == set()


def test_help_loads_few_modules() -> None:
    """Start-up is counted in modules, not timed: typer and rich are about 400."""
    code = (
        "import sys\nsys.argv = ['shardwright', '--help']\n"
        "from shardwright.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(len(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert int(done.stderr.split()[-1]) < 600


def test_what_measures_is_where_make_test_runs_it_alone() -> None:
    marked = [
        path.relative_to(ROOT).parent.as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.measuring" in path.read_text(encoding="utf-8").replace('"mark.measuring"', "")
    ]
    assert set(marked) == {"tests/measuring"}
    assert "pytest tests/measuring" in (ROOT / "Makefile").read_text(encoding="utf-8")
