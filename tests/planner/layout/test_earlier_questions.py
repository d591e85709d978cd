"""What a process keeps of earlier questions changes no number of later ones."""

import numpy as np
import pytest

from planner.layout.layout_plan import plan_layout
from simulator.training_run.step import known_features
from simulator.training_run.step.known_features import KnownFeatures, features_of
from tests.planner.layout.asked import question
from tests.simulator.described_runs import GPT_RUN, changed


def answer(asked):
    return plan_layout(asked, clock=lambda: 0.0, alone=True)


def forgotten():
    features_of.cache_clear()


@pytest.mark.parametrize(
    ("model", "stack", "pins"),
    [
        ("mixtral-8x7b", "megatron-core", {"cp": (1,), "zero": (1,)}),
        ("llama-3.1-8b", "torchtitan", {"tp": (2,), "recompute": ("none", "full")}),
    ],
)
def test_an_answer_does_not_depend_on_what_was_asked_before(model, stack, pins):
    others = [
        question(model, "4x8xh100-sxm", stack, 64, **pins),
        question(model, "2x8xh100-sxm", stack, 48, **pins),
        question(model, "2x8xh200", stack, 96, **pins),
    ]
    last = question(model, "2x8xh100-sxm", stack, 96, **pins)
    forgotten()
    alone = answer(last)
    forgotten()
    for other in others:
        answer(other)
    assert answer(last) == alone


def test_representatives_are_computed_once():
    counted = []

    def of(runs):
        counted.extend(runs)
        return {"tp": np.asarray([float(run.degrees.tp) for run in runs])}

    known = KnownFeatures(of)
    first = known.rows(np.asarray([[1], [4]]), lambda i: changed(GPT_RUN, tp=(1, 4)[i]))
    second = known.rows(np.asarray([[4], [2], [1]]), lambda i: changed(GPT_RUN, tp=(4, 2, 1)[i]))
    assert first["tp"].tolist() == [1.0, 4.0]
    assert second["tp"].tolist() == [4.0, 2.0, 1.0]
    assert [run.degrees.tp for run in counted] == [1, 4, 2]


def test_what_is_kept_has_an_end(monkeypatch):
    monkeypatch.setattr(known_features, "_MOST_NUMBERS", 4)
    known = KnownFeatures(lambda runs: {"tp": np.asarray([float(run.degrees.tp) for run in runs])})
    for degrees in ([1, 2, 3], [4, 5, 6], [7, 8, 9, 10, 11], [7, 8]):
        found = known.rows(
            np.asarray(degrees)[:, None], lambda i, of=degrees: changed(GPT_RUN, tp=of[i])
        )
        assert found["tp"].tolist() == degrees
        assert len(known._known) <= 4
