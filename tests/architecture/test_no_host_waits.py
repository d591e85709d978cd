"""What makes the host wait for a device, or all ranks meet, stands in no code of the executor that
is not listed here."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]

# (file, function) -> what it may do, and why. Nothing of it runs in a step of training.
ALLOWED: dict[tuple[str, str], tuple[str, ...]] = {
    # The check of gradients, and the search for what is not finite, are runs of their own.
    ("check.py", "check_gradients"): ("gather_all",),
    ("check.py", "reference_gradients"): ("cpu", "float"),
    ("check.py", "compare_gradients"): ("float",),
    ("check.py", "relative_error"): ("float",),
    ("check.py", "whole"): ("cpu",),
    ("check.py", "combined"): ("float",),
    ("not_finite.py", "first_not_finite"): ("gather_all", "float"),
    # Figures, not tensors.
    ("launch.py", "first_failure"): ("float",),
    ("memory.py", "allocated_and_total"): ("float",),
    ("memory.py", "PeakWatch.measured"): ("float",),
    ("memory.py", "peak_of_trace"): ("float",),
    # Once, before the first step or behind the last.
    ("mesh.py", "gather_all"): ("all_gather_object",),
    ("mesh.py", "Mesh.group_of"): ("new_group",),
    ("rank.py", "Rank._synchronise_ties"): ("gather_all",),
    ("probe_pipeline.py", "run_pipelines"): ("barrier", "gather_all"),
    ("train.py", "_run"): ("barrier",),
    ("train.py", "_check_ranks_agree"): ("gather_all",),
    ("train.py", "_measure"): ("gather_all",),
    ("train.py", "references_of_all"): ("gather_all",),
    ("train.py", "_finite_everywhere"): ("gather_all",),
    ("train.py", "_gather"): ("gather_all",),
    # Around a step that is measured: they begin together, and the loss is read when it is over.
    ("train.py", "train_step"): ("barrier", "float"),
    ("recorder.py", "Clock.settle"): ("synchronize",),
    # Only while blocks are measured.
    ("recorder.py", "BlockRecorder._now"): ("synchronize",),
    # In a step: which gradients there are goes over the wire once and is kept, and is read back
    # where a rank lacks some.
    ("replica_gradients.py", "_as_tensor"): ("tensor on a device",),
    ("replica_gradients.py", "ReplicaGradients.finish"): ("tolist",),
}


def waits(tree: ast.AST) -> list[tuple[str, str, int]]:
    """(function, what, line) of each such call; of a method the class goes before its name."""
    found: list[tuple[str, str, int]] = []

    def visit(node: ast.AST, inside: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = inside
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                name = f"{inside}.{child.name}" if inside else child.name
            if isinstance(child, ast.Call) and (what := _waits(child)):
                found.append((name, what, child.lineno))
            visit(child, name)

    visit(tree, "")
    return found


def _waits(call: ast.Call) -> str:
    """What a call does that waits, or ""."""
    target = call.func
    if isinstance(target, ast.Attribute):
        if target.attr in ("item", "tolist") and not call.args:
            return target.attr
        if target.attr in ("all_gather_object", "new_group", "barrier", "synchronize"):
            return target.attr
        if target.attr == "tensor" and any(k.arg == "device" for k in call.keywords):
            return "tensor on a device"
        if target.attr in ("cpu", "numpy") and not call.args:
            return target.attr
    if isinstance(target, ast.Name) and target.id == "gather_all":
        return target.id
    if isinstance(target, ast.Name) and target.id == "float" and call.args:
        known = isinstance(call.args[0], (ast.Constant, ast.JoinedStr))
        return "" if known else "float"
    return ""


def test_each_kind_is_found() -> None:
    code = """
class Rank:
    def step(self):
        x.item(); x.tolist(); float(loss); float("nan"); torch.tensor([1], device=d)
        dist.all_gather_object(a, b); gather_all(a); dist.new_group([0]); torch.tensor([1])
"""
    assert [what for _, what, _ in waits(ast.parse(code))] == [
        "item",
        "tolist",
        "float",
        "tensor on a device",
        "all_gather_object",
        "gather_all",
        "new_group",
    ]


def test_nothing_in_a_step_waits() -> None:
    found: dict[tuple[str, str], set[str]] = {}
    lines: dict[tuple[str, str], list[int]] = {}
    for path in sorted((ROOT / "executor").rglob("*.py")):
        file = str(path.relative_to(ROOT / "executor"))
        if file.startswith("sharding/"):
            continue
        for function, what, line in waits(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault((file, function), set()).add(what)
            lines.setdefault((file, function), []).append(line)
    wrong = {
        f"{file}:{lines[file, function]} {function}": sorted(kinds)
        for (file, function), kinds in found.items()
        if kinds - set(ALLOWED.get((file, function), ()))
    }
    assert not wrong
    unused = {
        where: kinds for where, kinds in ALLOWED.items() if set(kinds) - found.get(where, set())
    }
    assert not unused, "no longer there: take them off the list"
