"""Python's `plan` with a framework has the options of the command line, with the same effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwright as public
from tests.shardwright.test_cli import shardwright

WORK = public.Workload(global_batch=64, sequence_length=4096)
ON, MODEL, STACK = "1x8xh100-sxm", "llama-3.1-8b", "megatron-core"


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        (
            {"lora": 16, "base_precision": "nf4", "fit_risk": 0.05},
            ("--lora", "16", "--base-precision", "nf4", "--fit-risk", "5%"),
        ),
        (
            {"optimizer": "muon", "reduce": ("bf16",), "optimizer_offload": False},
            ("--optimizer", "muon", "--reduce", "bf16"),
        ),
    ],
)
def test_an_option_has_the_effect_of_its_flag(
    options: dict[str, object], flags: tuple[str, ...], tmp_path: Path
) -> None:
    mine = public.plan(MODEL, ON, WORK, stack=STACK, **options)  # type: ignore[call-overload]  # by name
    path = tmp_path / "plan.json"
    done = shardwright(
        *("plan", MODEL, "--on", ON, "--global-batch", "64", "--seq", "4096", "--stack", STACK),
        *(*flags, "--no-cache", "-o", str(path)),
    )
    assert done.returncode == 0, done.stderr
    theirs = public.load_plan(path)
    assert isinstance(mine, public.LayoutFile)
    assert isinstance(theirs, public.LayoutFile)
    assert mine.chosen is not None
    assert theirs.chosen is not None
    assert mine.chosen.run == theirs.chosen.run
    assert mine.chosen.prediction.step_time_s == theirs.chosen.prediction.step_time_s
    assert json.loads(path.read_text())["chosen"]["run"]["optimizer"] == mine.chosen.run.optimizer


def test_an_option_of_layouts_needs_a_framework() -> None:
    with pytest.raises(public.InputError, match=r"^lora=8 is an option of a framework's"):
        public.plan(MODEL, ON, WORK, lora=8)
