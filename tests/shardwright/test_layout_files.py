"""Files of `plan --stack`: predicted anew, compared, drawn, and refused where they were edited."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwright as public
from planner.axes import Axes
from planner.layout.layout_answer import LayoutFile
from profiles.errors import DocumentError, InputError
from shardwright.requests.opened_plan import open_plan, write_layout
from simulator.training_run.explain.explain_run import explain_run
from simulator.values.workload import Workload
from tests.shardwright.test_cli import shardwright

WORK = Workload(global_batch=64, sequence_length=4096)


def answer(stack: str) -> LayoutFile:
    return public.plan("llama-3.1-8b", "2x8xh100-sxm", WORK, stack=stack, tp=(1, 2), cp=1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("layouts")
    made = {}
    for stack in ("megatron-core", "torch-fsdp"):
        made[stack] = folder / f"{stack}.json"
        write_layout(made[stack], answer(stack), provenance={"command": "shardwright plan"})
    return made


def test_a_space_of_our_own_executor_is_refused_beside_a_framework() -> None:
    with pytest.raises(InputError, match="space is for our own executor"):
        public.plan("gpt2", "8xh100-sxm", WORK, stack="megatron-core", space=Axes(tp=(2,)))


def test_a_layout_is_predicted_anew_with_the_same_step(files: dict[str, Path]) -> None:
    opened = open_plan(files["megatron-core"])
    assert isinstance(opened.answer, LayoutFile)
    assert opened.answer.chosen is not None
    found = explain_run(opened.answer.chosen.run)
    step = opened.answer.chosen.prediction.step_time_s.value
    assert found.step.interval.value == pytest.approx(step, rel=1e-9)
    assert sum(line.time_s for line in found.lines) == pytest.approx(step, rel=1e-9)


def test_two_layouts_are_compared(files: dict[str, Path]) -> None:
    diff = public.diff(files["megatron-core"], files["torch-fsdp"])
    # What is assumed differs in which runs the frameworks' coefficients were fitted on.
    assert [d.name for d in diff.asked] == ["framework", "assumed"]
    step = next(change for change in diff.figures if change.name == "step")
    assert step.before is not None
    assert step.after is not None
    for change, sheet in ((step.before, "before"), (step.after, "after")):
        parts = [getattr(part, sheet) or 0.0 for part in diff.parts]
        assert sum(parts) == pytest.approx(change, rel=1e-6)
    assert "slower" in diff.reason or "faster" in diff.reason


def test_the_commands_take_layouts(files: dict[str, Path], tmp_path: Path) -> None:
    path, other = files["megatron-core"], files["torch-fsdp"]
    html = tmp_path / "report.html"
    done = shardwright("predict", str(path), "--explain", "--html", str(html), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "megatron-core with tp" in done.stdout
    assert "sum of the parts" in done.stdout
    page = html.read_text(encoding="utf-8")
    assert "llama-3.1-8b on" in page
    assert "http-equiv" not in page
    done = shardwright("compare", str(path), str(other), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["asked"][0]["name"] == "framework"
    done = shardwright("run", str(path), cwd=tmp_path)
    assert done.returncode == 2
    assert "is a layout of llama-3.1-8b for megatron-core" in " ".join(done.stderr.split())


def test_an_edited_layout_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    data = json.loads(files["megatron-core"].read_text())
    data["chosen"]["run"]["tp"] = 7
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(data))
    with pytest.raises(DocumentError, match=r"edited\.json: chosen\.run\.tp is 7, the plan was"):
        public.load_plan(path)


def test_a_run_in_the_place_of_a_plan_gets_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"schema": "shardwright/run@1"}))
    with pytest.raises(DocumentError, match="`compare` takes the plan first"):
        public.compare(path, path)


def test_the_release_is_told() -> None:
    done = shardwright("--version")
    assert done.returncode == 0
    assert done.stdout == f"shardwright {public.__version__}\n"
