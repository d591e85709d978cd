"""Folders import only folders that come before them in their package."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.test_imports import PACKAGES, ROOT, imported_names, modules

# Of each package the folders in their order; a folder may import itself and those before it.
ORDER = {
    "profiles": (
        "profiles",
        "profiles/hardware",
        "profiles/hardware/catalogue",
        "profiles/hardware/prices",
        "profiles/hardware/energy",
        "profiles/hardware/kernels",
        "profiles/model",
        "profiles/model/building",
        "profiles/model/fake_tensors",
        "profiles/model/tracing",
        "profiles/model/steps",
        "profiles/model/figures",
        "profiles/hardware/probe",
    ),
    "simulator": (
        "simulator/schedules",
        "simulator/values",
        "simulator",
        "simulator/goodput",
        "simulator/training_run",
        "simulator/training_run/run",
        "simulator/training_run/framework",
        "simulator/training_run/work",
        "simulator/training_run/messages",
        "simulator/memory",
        "simulator/training_run/step",
        "simulator/training_run/fit",
        "simulator/training_run/explain",
        "simulator/traced",
    ),
    "planner": (
        "planner",
        "planner/chain",
        "planner/costs",
        "planner/mesh",
        "planner/blocks",
        "planner/heterogeneous",
        "planner/layout",
        "planner/batch",
        "planner/sizing",
    ),
    "executor": ("executor/replay", "executor"),
    "shardwright": (
        "shardwright/plugins",
        "shardwright/options",
        "shardwright/runs",
        "shardwright/requests",
        "shardwright/requests/sizing",
        "shardwright/analysis",
        "shardwright/reports",
        "shardwright/reports/sizing",
        "shardwright/reports/prices",
        "shardwright/reports/brief",
        "shardwright/sweeps",
        "shardwright/results",
        "shardwright/console",
        "shardwright/page",
        "shardwright/commands/tables",
        "shardwright/commands",
        "shardwright",
    ),
}


def folder_of(module: str) -> str:
    """The folder of a dotted name of ours; "" for others. A package's own name is no room: what it
    gives away stands elsewhere."""
    path = Path(module.replace(".", "/"))
    if (ROOT / path).with_suffix(".py").is_file():
        return str(path.parent)
    return str(path) if len(path.parts) > 1 and (ROOT / path).is_dir() else ""


def order_faults(path: str, source: str) -> list[str]:
    """What a module imports from folders behind its own."""
    own = str(Path(path).parent)
    order = ORDER[own.split("/")[0]]
    targets = {folder_of(name) for name in imported_names(source)} & set(order)
    behind = order[order.index(own) + 1 :]
    return [f"{path} imports from {target}" for target in sorted(targets & set(behind))]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_has_a_place(package):
    found = {str(path.parent.relative_to(ROOT)) for path in modules()}
    assert {name for name in found if name.split("/")[0] == package} == set(ORDER[package])


def test_folders_import_those_before_them():
    faults = []
    for path in modules():
        faults += order_faults(str(path.relative_to(ROOT)), path.read_text())
    assert faults == []


def test_the_check_sees_a_fault():
    assert order_faults("planner/chain/x.py", "from planner.blocks.block_search import search") == [
        "planner/chain/x.py imports from planner/blocks"
    ]
    assert order_faults("planner/blocks/x.py", "from planner.chain.problem import Array") == []
