"""A new framework is one registered table: it is exported to, read back, and checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.configs.keyed_values import count_of, degree_of, text_of
from shardwright_frameworks.exports.export_plan import export_plan
from shardwright_frameworks.exports.targets import targets
from shardwright_frameworks.key_table import KeyTable, register
from shardwright_frameworks.reading import keyed_frameworks
from shardwright_frameworks.reading.read_config import read_config
from shardwright_frameworks.requests.checked_config import check_config

from plugins.frameworks.tests.frameworks.folders import write_folder
from plugins.frameworks.tests.planned_runs import planned

TABLE = KeyTable(
    name="kiln",
    words="Kiln",
    section="kiln",
    program="kiln_train.py",
    keys={
        "ranks": ("devices", degree_of),
        "split_matrices": ("tp", degree_of),
        "stages": ("pp", degree_of),
        "chunks": ("vpp", degree_of),
        "split_sequence": ("cp", degree_of),
        "experts": ("ep", degree_of),
        "shard": ("zero_stage", count_of),
        "rows": ("micro_batch", degree_of),
        "batch": ("global_batch", degree_of),
        "length": ("seq_len", degree_of),
        "number": ("precision", text_of),
        "again": ("recompute", text_of),
    },
)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    frameworks, exports = dict(keyed_frameworks.FRAMEWORKS), dict(targets.TARGETS)
    register(TABLE)
    row, target = keyed_frameworks.FRAMEWORKS[TABLE.name], targets.TARGETS[TABLE.name]
    for registry, before in ((keyed_frameworks.FRAMEWORKS, frameworks), (targets.TARGETS, exports)):
        registry.pop(TABLE.name)
        assert registry == before
    monkeypatch.setitem(keyed_frameworks.FRAMEWORKS, TABLE.name, row)
    monkeypatch.setitem(targets.TARGETS, TABLE.name, target)


@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize(
    "axes", [{"dp": 8}, {"tp": 2, "dp": 4}, {"pp": 2, "vpp": 2, "dp": 4, "schedule": "interleaved"}]
)
def test_a_plan_comes_back(stage: int, axes: dict[str, object], tmp_path: Path) -> None:
    plan = planned("llama-3.1-8b", "torchtitan", **axes, zero_stage=stage, recompute="full")
    folder = write_folder(tmp_path / "run", export_plan(plan, TABLE.name))
    assert check_config(plan, folder).agreement.different == ()
    found = read_config(folder / "config.yaml")
    degrees = plan.run.degrees
    assert (found.framework, found.tp, found.pp, found.vpp) == (
        "kiln", degrees.tp, degrees.pp, degrees.vpp,
    )  # fmt: skip
    assert (found.devices, found.dp, found.zero_stage) == (8, degrees.dp, stage)
    assert (found.precision, found.recompute) == ("bf16", "full")


def test_a_value_that_is_changed_is_a_difference(tmp_path: Path) -> None:
    plan = planned("llama-3.1-8b", "torchtitan", dp=8)
    folder = write_folder(tmp_path / "run", export_plan(plan, TABLE.name))
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("rows: 1", "rows: 2"))
    (found,) = check_config(plan, folder).agreement.different
    assert (found.key, found.planned, found.found) == ("micro_batch", 1, 2)
