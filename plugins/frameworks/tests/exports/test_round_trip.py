"""A plan exported to every target and imported back is the same run, or the exporter says why not.

Per target: ZeRO 0 to 3, tp, pp, cp, ep, a dense model and one of experts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from shardwright_frameworks.exports.export_plan import export_plan
from shardwright_frameworks.exports.targets.targets import TARGETS
from shardwright_frameworks.exports.values.planned_run import PlannedRun
from shardwright_frameworks.reading.read_config import read_config
from shardwright_frameworks.requests.checked_config import check_config

from plugins.frameworks.tests.frameworks.folders import write_folder
from plugins.frameworks.tests.planned_runs import planned
from profiles.errors import InputError
from simulator.values.pipeline_layout import layout_stages

# The framework whose plans a target takes as they are.
_STACKS = {
    "megatron": "megatron-core",
    "megatron-bridge": "megatron-bridge",
    "torchtitan": "torchtitan",
    "nanotron": "nanotron",
    "maxtext": "maxtext",
    "deepspeed": "transformers",
    "accelerate": "transformers",
    "hf-trainer": "transformers",
}
_MESHES: tuple[dict[str, object], ...] = (
    {"dp": 8},
    {"tp": 2, "dp": 4},
    {"pp": 2, "dp": 4},
    {"pp": 2, "dp": 4, "vpp": 2, "schedule": "interleaved"},
    {"cp": 2, "dp": 4},
    {"tp": 2, "pp": 2, "cp": 2, "dp": 2},
)
_EXPERTS: tuple[dict[str, object], ...] = (
    {"dp": 8, "ep": 8},
    {"dp": 8, "ep": 2},
    {"tp": 2, "dp": 4, "ep": 4},
    {"pp": 2, "dp": 4, "ep": 4},
    {"cp": 2, "dp": 4, "ep": 8},
    {"pp": 2, "dp": 4, "ep": 4, "vpp": 2, "schedule": "interleaved-overlap"},
)
# Keys that an import answers for every target, beside those that its words have.
_ALWAYS = ("devices", "dp", "zero_stage", "micro_batch", "global_batch", "seq_len", "precision")


def _cases() -> Iterator[tuple[str, str, dict[str, object]]]:
    for target, stage in itertools.product(sorted(_STACKS), range(4)):
        for mesh in _MESHES:
            yield target, "llama-3.1-8b", {**mesh, "zero_stage": stage}
        for mesh in (*_MESHES[:1], *_EXPERTS):
            yield target, "mixtral-8x7b", {**mesh, "zero_stage": stage}
    for target, again in itertools.product(sorted(_STACKS), ("none", "selective", "full")):
        for precision in ("fp32", "fp16", "fp8"):
            axes = {"dp": 8, "zero_stage": 1, "recompute": again, "precision": precision}
            yield target, "llama-3.1-8b", {**axes, "micro_batch": 2}


CASES = tuple(_cases())


def _name(case: tuple[str, str, dict[str, object]]) -> str:
    target, model, axes = case
    return "-".join([target, model.partition("-")[0], *(f"{k}={v}" for k, v in axes.items())])


def _plan(target: str, model: str, axes: dict[str, object]) -> PlannedRun:
    # Nanotron's own plans have no higher stage; those of others are written with a gap.
    others = target == "nanotron" and int(str(axes["zero_stage"])) > 1
    return planned(model, "torchtitan" if others else _STACKS[target], **axes)


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_an_export_imported_back_is_the_plan(
    case: tuple[str, str, dict[str, object]], tmp_path: Path
) -> None:
    target, model, axes = case
    plan = _plan(target, model, axes)
    try:
        export = export_plan(plan, target)
    except InputError as refusal:
        # The reason names the target and what to do instead.
        if not str(refusal).startswith(f"--to {target}: "):
            raise
        return
    checked = check_config(plan, write_folder(tmp_path / "run", export))
    assert checked.agreement.different == ()
    assert set(_ALWAYS) <= set(checked.agreement.same)


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize("layout", ["Et*6|(t*9|)*2t*8L", "(Et*8|)*1(t*8|)*2t*8L"])
def test_a_layout_of_stages_comes_back(target: str, layout: str, tmp_path: Path) -> None:
    axes: dict[str, object] = {"pp": 2, "vpp": 2, "dp": 4, "schedule": "interleaved"}
    plan = planned("llama-3.1-8b", _STACKS[target], **axes, pipeline_layout=layout)
    export = export_plan(plan, target)
    assert not export.exported.unexpressed
    folder = write_folder(tmp_path / "run", export)
    assert check_config(plan, folder).agreement.different == ()
    imported = read_config(folder)
    assert imported.vpp == 2
    assert layout_stages(imported.pipeline_layout or "") == layout_stages(layout)


def test_another_layout_is_a_difference(tmp_path: Path) -> None:
    axes: dict[str, object] = {"pp": 2, "dp": 4}
    one, other = (
        planned("llama-3.1-8b", "megatron-core", **axes, pipeline_layout=layout)
        for layout in ("Et*15|t*17L", "Et*16|t*16L")
    )
    folder = write_folder(tmp_path / "run", export_plan(one, "megatron"))
    (found,) = check_config(other, folder).agreement.different
    assert (found.key, found.found) == ("pipeline_model_parallel_layout", "Et*15|t*17L")


def test_every_target_but_our_own_is_exported_to() -> None:
    assert set(_STACKS) == set(TARGETS) - {"torchrun"}
