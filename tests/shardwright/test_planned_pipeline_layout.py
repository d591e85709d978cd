"""`--pipeline-layout` of `plan`: a pin of the stages, with pp and vpp that suit it."""

from __future__ import annotations

import pytest

import shardwright as public
from planner.layout.layout_answer import LayoutFile

WORK = public.Workload(global_batch=64, sequence_length=4096)
FOUR = "Et*7|(t*9|)*2t*7L"


def _planned(layout: str, **pins: int) -> LayoutFile:
    answer = public.plan(
        *("llama-3.1-8b", "2x8xh100-sxm", WORK),
        stack="megatron-core",
        pipeline_layout=layout,
        **pins,
    )
    assert isinstance(answer, LayoutFile)
    return answer


def test_every_plan_has_as_many_stages() -> None:
    answer = _planned("E,t*7|t*9|t*9|t*7,L", tp=4)
    assert answer.chosen is not None
    runs = [answer.chosen.run, *(each.run for each in answer.alternatives)]
    assert {run.pipeline_layout for run in runs} == {FOUR}
    assert {run.degrees.num_stages for run in runs} == {4}


def test_even_stages_cost_what_the_own_split_does() -> None:
    pins = {"tp": 2, "pp": 2, "vpp": 2, "micro_batch": 1, "zero": 1}
    given, own = _planned("(Et*8|)*1(t*8|)*2t*8L", **pins).chosen, _planned("", **pins).chosen
    assert given is not None
    assert own is not None
    assert given.run.pipeline_layout == "Et*8|(t*8|)*2t*8L"
    assert given.prediction.step_time_s == own.prediction.step_time_s
    assert given.required_memory_bytes == own.required_memory_bytes


@pytest.mark.parametrize(
    ("layout", "pins", "said"),
    [
        (FOUR, {"pp": 3}, r"--pp 3: pp must divide the 4 stages of --pipeline-layout.* Use --pp 2"),
        (FOUR, {"pp": 2, "vpp": 4}, r"here 8, must be the 4 stages .* Use .*--vpp 2"),
        ("Et*8|t*8L", {}, r"it has 16 layers \(t\), the model 32\. Use 'Et\*16\|t\*16L'"),
        ("Et*2|(t|)*29tL", {}, r"the 31 stages of --pipeline-layout need 31 devices or more"),
    ],
)
def test_an_impossible_layout_is_refused(layout: str, pins: dict[str, int], said: str) -> None:
    with pytest.raises(public.InputError, match=said):
        _planned(layout, **pins)
