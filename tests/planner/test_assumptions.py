"""What an answer says of the strategies that it could not try."""

from __future__ import annotations

from planner.search.answer import _assumptions
from planner.search.space import Ground, Space

REASON = "no rule is known for which of its linear layers to split by columns and rows"


def ground(**changes: object) -> Ground:
    settings: dict[str, object] = {
        "num_devices": 8,
        "node_devices": 8,
        "num_blocks": 12,
        "tp_degrees": (1,),
        "global_batch": 8,
        "precision": "bf16",
        "why_not_tensor_parallel": REASON,
    }
    return Ground(**(settings | changes))  # type: ignore[arg-type]  # a mapping of mixed values


def test_a_model_without_tensor_parallel_rules_is_said_to_be_searched_without() -> None:
    said = _assumptions(Space(), ground())
    assert f"no tensor parallelism: {REASON} (--tp)" in said


def test_nothing_is_said_where_it_was_not_to_be_tried() -> None:
    for space, changes in (
        (Space(tp=(1,)), {}),
        (Space(), {"num_devices": 1}),
        (Space(), {"why_not_tensor_parallel": "", "tp_degrees": (1, 2)}),
    ):
        assert not any("no tensor" in said for said in _assumptions(space, ground(**changes)))


def test_a_model_of_one_block_is_said_to_have_no_pipeline() -> None:
    said = _assumptions(Space(), ground(num_blocks=1, why_not_cuttable="it has one layer"))
    assert "no pipeline: it has one layer (--pp)" in said


def test_truth_values_that_were_assumed_inside_blocks_are_said() -> None:
    said = _assumptions(Space(), ground(assumed_values=("Halting",)))
    assert any(x.startswith("what runs in Halting hangs on values") for x in said)
