"""What is said of the machine's speed between a profile and a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.hardware.catalogue.device import ReferencePoint
from shardwright.analysis.comparison import compare_run, comparison_data, drift_sentence, drifts_of
from shardwright.reports.brief.comparison_section import verdict
from simulator.values.measurement import Measurement
from simulator.values.plan_file import PlanFile
from tests.shardwright.fixed_pair import answer, run


def points(memory_s: float, layers_s: float) -> tuple[ReferencePoint, ...]:
    named = (("memory", memory_s), ("layers", layers_s))
    return tuple(ReferencePoint(kernel=k, time_s=t, spread=0.01) for k, t in named)


def pair(layers_after_s: float = 0.0402) -> tuple[PlanFile, Measurement]:
    file = answer()
    assert file.prediction is not None
    said = replace(file, prediction=replace(file.prediction, references=points(0.003, 0.04)))
    measured = replace(
        run(),
        references_before=points(0.0032, 0.04),
        references_after=points(0.0034, layers_after_s),
    )
    return said, measured


def test_speed_is_that_of_the_run_over_the_profiles() -> None:
    said, measured = pair()
    assert said.prediction is not None
    memory, layers = drifts_of(said.prediction, measured)
    # 3 ms in the profile, 3.2 and 3.4 ms around the run
    assert memory.speed == pytest.approx(3.0 / 3.3)
    assert layers.speed == pytest.approx(40 / 40.1)
    # Memory explains, it does not judge.
    assert not memory.disturbed
    assert not layers.disturbed
    sentence = drift_sentence((memory, layers))
    assert "memory speed 0.91" in sentence
    assert sentence.endswith("unchanged.")


def test_a_machine_that_moved_is_called_disturbed_and_no_error_is_corrected() -> None:
    said, measured = pair(layers_after_s=0.044)  # mean 42 ms against 40: 0.952
    comparison = compare_run(said, measured)
    assert "speed on two layers 0.95: the machine's speed changed" in verdict(comparison)
    plain = compare_run(answer(), run())
    assert comparison.rows == plain.rows
    data = comparison_data(comparison)
    assert [d["disturbed"] for d in data["drifts"]] == [False, True]


def test_a_kernel_that_does_not_judge_is_named_where_it_moved_far() -> None:
    said, measured = pair()
    slow = replace(measured, references_after=points(0.009, 0.0402))
    assert said.prediction is not None
    sentence = drift_sentence(drifts_of(said.prediction, slow))
    assert "layers ran as fast as when profiled, memory speed changed" in sentence


def test_nothing_is_said_where_nothing_was_timed() -> None:
    comparison = compare_run(answer(), run())
    assert comparison.drifts == ()
    assert drift_sentence(()) == ""
    assert "Against the profile" not in verdict(comparison)
