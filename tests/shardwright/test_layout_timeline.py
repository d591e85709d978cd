"""The step of a layout drawn out: it ends where the predicted step does, and holds what fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.layout.layout_answer import LayoutChoice
from profiles.errors import InputError
from shardwright.analysis.layout_timeline import layout_timeline
from shardwright.reports.timeline_picture import timeline_note
from tests.planner.layout.asked import question, solved
from tests.simulator.described_runs import changed

PINS = {"tp": (2,), "pp": (4,), "dp": (2,), "cp": (1,), "recompute": ("none",)}


def chosen(**pins: tuple[int | str, ...]) -> LayoutChoice:
    found = solved(question(**(PINS | pins))).chosen
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("schedule", "off"), [("1f1b", 1e-9), ("gpipe", 1e-9), ("interleaved", 0.02), ("zb-h1", 0.02)]
)
def test_the_timeline_ends_with_the_step_and_runs_every_pass(schedule: str, off: float) -> None:
    """The idle time of some schedules is estimated: one line says how far the timeline is off."""
    choice = chosen(schedule=(schedule,))
    step = layout_timeline(choice)
    assert step.step_time_s == choice.prediction.step_time_s
    assert abs(step.timeline_gap) < off
    assert ("The timeline ends" in timeline_note(step)) == (off > 1e-3)
    run = choice.run
    passes = [event for event in step.events if event.name.lstrip("0123456789")[:1] in "FBI"]
    assert len(passes) == 2 * run.num_microbatches * run.degrees.pp * run.degrees.vpp
    # Every micro-batch crosses the cuts between stages twice.
    sends = [event for event in step.events if event.stream == "send"]
    assert len(sends) == 2 * run.num_microbatches * (run.degrees.num_stages - 1)
    # Four stages of tp 2 and dp 2: rank 0, 4, 8, 12 begin them.
    assert sorted({event.rank for event in step.events}) == [0, 4, 8, 12]
    full = max(rank.peak_bytes for rank in step.ranks)
    assert full <= choice.prediction.peak.value * 1.001
    for rank in step.ranks:
        # A forward keeps its activations from its start to the end of its B or W.
        own = [event for event in step.events if event.rank == rank.rank and event.stream != "send"]
        begun = [event.start_s for event in own if "F" in event.name]
        freed = [event.end_s for event in own if set(event.name) & {"B", "W"}]
        held = {
            at: sum(t <= at for t in begun) - sum(t <= at for t in freed)
            for at in (0.0, *begun, *freed)
        }
        base = rank.static_bytes + rank.communication_bytes
        each = rank.activations_bytes / max(held.values())
        found = {sample.time_s: sample.memory_bytes for sample in rank.timeline}
        assert found == pytest.approx({at: base + each * count for at, count in held.items()})
        assert found[rank.peak_time_s] == max(found.values())


def test_parts_that_take_twice_as_long_end_at_twice_the_time() -> None:
    """As they may with coefficients of another calibration."""
    choice = chosen()
    made = choice.prediction
    parts = tuple(replace(part, time_s=2 * part.time_s) for part in made.components)
    step_s = made.step_time_s
    whole = replace(step_s, value=2 * step_s.value, high=2 * step_s.high)
    slow = replace(choice, prediction=replace(made, step_time_s=whole, components=parts))
    once, twice = (layout_timeline(each).events for each in (choice, slow))
    assert [event.end_s for event in twice] == pytest.approx([2 * event.end_s for event in once])


def test_replicas_outside_the_stages_number_their_ranks_otherwise() -> None:
    choice = chosen()
    other = replace(choice, run=changed(choice.run, axis_order="tp-cp-pp-dp"))
    assert sorted({event.rank for event in layout_timeline(other).events}) == [0, 2, 4, 6]


def test_a_step_of_too_many_passes_is_not_drawn() -> None:
    choice = chosen()
    many = replace(choice.run, global_batch=2**20)
    with pytest.raises(InputError, match="is not drawn"):
        layout_timeline(replace(choice, run=many))
