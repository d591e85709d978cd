"""The house: which package may import which, and which modules may import heavy libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGES, ROOT, modules, source_names
from tests.fresh import python

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


def imported_names(source: str) -> tuple[str, ...]:
    """Every module that the source imports, anywhere in it."""
    return tuple(source_names(source).imports)


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


@pytest.mark.parametrize(
    "steps",
    [
        # What is imported stays: a later statement may load more than an earlier one.
        (
            ("shardwright", {"torch", "numpy", "ortools", "transformers", "matplotlib"}),
            ("shardwright.cli", {"torch", "numpy", "scipy", "transformers", "networkx"}),
            (
                "profiles.model.loaders, profiles.model.tracing.traced, simulator.traced.predict",
                {"torch", "transformers", "ortools", "matplotlib"},
            ),
            ("planner.blocks.block_search", {"torch", "transformers", "matplotlib", "executor"}),
        ),
        (
            (
                "executor.train, executor.launch, profiles.hardware.probe.probe",
                {"ortools", "transformers", "matplotlib", "planner", "typer"},
            ),
        ),
    ],
    ids=["planner", "executor"],
)
def test_imports_that_must_not_happen(
    steps: tuple[tuple[str, set[str]], ...], tmp_path: Path
) -> None:
    loaded = "print(*{name.partition('.')[0] for name in sys.modules})"
    code = "\n".join(f"import {statement}\n{loaded}" for statement, _ in steps)
    lines = python(f"import sys\n{code}", tmp_path).splitlines()
    for (statement, absent), line in zip(steps, lines, strict=True):
        assert set(line.split()) & absent == set(), statement


def test_what_measures_is_where_make_test_runs_it_alone() -> None:
    marked = [
        path.relative_to(ROOT).parent.as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.measuring" in path.read_text(encoding="utf-8").replace('"mark.measuring"', "")
    ]
    assert set(marked) == {"tests/measuring"}
    assert "pytest tests/measuring" in (ROOT / "Makefile").read_text(encoding="utf-8")
