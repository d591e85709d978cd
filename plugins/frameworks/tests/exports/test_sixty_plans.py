"""Sixty plans exported: what each target cannot say is named, and our own importer reads the rest
back as planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shardwright_frameworks.exports.export_plan import export_plan
from shardwright_frameworks.exports.launchers.launchers import LAUNCHERS
from shardwright_frameworks.exports.targets.targets import TARGETS
from shardwright_frameworks.requests.checked_config import check_config

from plugins.frameworks.tests.frameworks.folders import write_folder
from plugins.frameworks.tests.planned_runs import planned, uneven
from plugins.frameworks.tests.sixty_plans import Case, sixty_plans

CASES = sixty_plans()


def test_they_are_eight_models_on_every_target() -> None:
    assert len(CASES) == 60
    assert len({case.plan.model for case in CASES}) == 8
    assert {case.target for case in CASES} == set(TARGETS) - {"torchrun"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.target}-{case.name}")
def test_exported_and_read_back(case: Case, tmp_path: Path) -> None:
    launcher = tuple(LAUNCHERS)[len(case.name) % len(LAUNCHERS)]
    export = export_plan(case.plan, case.target, launcher=launcher)
    assert tuple(priced.gap.option for priced in export.costs.gaps) == case.gaps
    assert all(priced.slower is not None for priced in export.costs.gaps)
    folder = write_folder(tmp_path / "run", export)
    said = json.loads((folder / "unexpressed.json").read_text())
    assert tuple(each["option"] for each in said["unexpressed"]) == case.gaps
    page = (folder / "README.md").read_text()
    assert len(page.splitlines()) < 50
    assert all(f"- {option}: " in page for option in case.gaps)
    checked = check_config(case.plan, folder)
    assert checked.agreement.different == ()
    assert len(checked.agreement.same) >= 6
    if case.target == "torchtitan":
        python = check_config(case.plan, folder / "planned_config.py")
        assert python.agreement.different == ()
        assert len(python.agreement.same) >= 6


@pytest.mark.parametrize(
    ("target", "file", "before", "after"),
    [
        ("megatron", "run.sh", "Et*7|(t*9|)*2t*7L", "Et*8|(t*8|)*2t*8L"),
        ("megatron-bridge", "overrides.yaml", "Et*7|(t*9|)*2t*7L", "Et*8|(t*8|)*2t*8L"),
        ("torchtitan", "train.toml", '"layers.6"]', '"layers.6", "layers.7"]'),
        ("torchtitan", "planned_config.py", "'layers.6']", "'layers.6', 'layers.7']"),
        ("accelerate", "training.json", '"global_batch": 64', '"global_batch": 65'),
    ],
)
def test_a_change_that_an_import_does_not_hold_is_found(
    target: str, file: str, before: str, after: str, tmp_path: Path
) -> None:
    plan = planned("llama-3.1-8b", "torch", tp=2, pp=4, dp=2)
    plan = uneven(plan, (7, 9, 9, 7)) if target != "accelerate" else plan
    folder = write_folder(tmp_path / "run", export_plan(plan, target))
    path = folder / file
    against = path if path.suffix == ".py" else folder
    assert check_config(plan, against).agreement.different == ()
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    assert len(check_config(plan, against).agreement.different) == 1
