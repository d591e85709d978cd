"""Layouts of NVIDIA's published runs are in the space, and the best layout is no slower.

Megatron-Bridge 26.06.01: DeepSeek-V3 with multi-token prediction on 256 GB200 (pp 4, vpp 4, ep 64,
mla_up_proj recomputed) and 256 GB300 (pp 2, vpp 8, ep 32), Qwen3-235B on 256 GB200 (pp 8, vpp 3, ep
32), in MXFP8.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.axes import Axes
from planner.layout.layout_answer import LayoutChoice, LayoutFile
from planner.layout.layout_plan import plan_layout
from planner.layout.layout_question import LayoutQuestion
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.model.figures.described_model import describe_model

RUNS = [
    pytest.param(
        *("deepseek-v3", "64x4xgb200-nvl72", 4096, 4, 4, 64, "up-projection"),
        marks=pytest.mark.slow,
    ),
    ("deepseek-v3", "64x4xgb300-nvl72", 4096, 2, 8, 32, "none"),
    pytest.param(
        *("qwen3-235b-a22b", "64x4xgb200-nvl72", 8192, 8, 3, 32, "none"), marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize(("model", "on", "batch", "pp", "vpp", "ep", "recompute"), RUNS)
def test_a_published_layout_is_in_the_space(
    model: str, on: str, batch: int, pp: int, vpp: int, ep: int, recompute: str
) -> None:
    question = LayoutQuestion(
        name=model,
        model=describe_model(model).figures,
        cluster=get_cluster(on),
        stack="megatron-bridge",
        global_batch=batch,
        seq_len=4096,
        precision="mxfp8",
        space=Axes(),
    )
    pinned = Axes(
        tp=(1,), cp=(1,), pp=(pp,), vpp=(vpp,), ep=(ep,), micro_batch=(1,), recompute=(recompute,)
    )
    theirs = solved(replace(question, space=pinned)).chosen
    best = solved(question)
    assert theirs is not None
    assert theirs.run.degrees.vpp == vpp
    assert best.status == "optimal"
    assert best.chosen is not None
    assert _step_s(best.chosen) <= _step_s(theirs)


def solved(question: LayoutQuestion) -> LayoutFile:
    return plan_layout(question, clock=lambda: 0.0, alone=True)


def _step_s(choice: LayoutChoice) -> float:
    return choice.prediction.step_time_s.value
