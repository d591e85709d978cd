"""Parallel degrees have one class, `Degrees`; values that hold degrees hold one of it."""

from __future__ import annotations

import pytest

from tests.architecture.sources import Source, shipped, source_names

# Classes that have a field `tp` of their own, and why.
DEFINED = {
    "simulator/values/degrees.py: Degrees": "the class",
    "simulator/values/degrees.py: Coordinates": "a position on an axis, not a degree",
    # File borders: each degree is optional, or a row or file has it as a key of its own.
    "shardwright/runs/known_models.py: Recipe": "an entry of a file",
    "shardwright/runs/run.py: PublishedRun": "a row of a table",
    # Of a model, not of a job: the one degree that its shapes follow.
    "profiles/model/graph.py: ModelGraph": "the degree that a trace was made for",
    "profiles/model/tracing/trace_tensor_parallel.py: Sharding": "the same, while tracing",
    # Requests and searches: sets of allowed degrees, and arrays over many meshes.
    "planner/axes.py: Axes": "allowed values of an axis",
    "shardwright/options/plan_options.py: PlanOptions": "allowed values of an axis",
    "shardwright/options/keywords.py: PlanKeywords": "the same, for Python",
    "planner/space.py: Meshes": "an array over meshes",
    "executor/mesh.py: Mesh": "torch's mesh of the axis",
}


def definitions(path: str, source: Source) -> list[str]:
    """Classes with a field or property `tp`."""
    return [
        f"{path}: {each.name}"
        for each in source.classes
        if "tp" in each.fields or "tp" in each.methods
    ]


def test_nothing_else_defines_a_field_tp() -> None:
    found = [each for path, source in shipped() for each in definitions(path, source)]
    assert sorted(found) == sorted(DEFINED)


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        ("tp: int = 1", True),
        ("@property\n    def tp(self): ...", True),
        ("degrees: Degrees\n\n    def f(self): tp: int", False),
    ],
)
def test_the_check_sees_a_field_and_a_property(body: str, seen: bool) -> None:
    found = definitions("a.py", source_names(f"class A:\n    {body}"))
    assert found == (["a.py: A"] if seen else [])
