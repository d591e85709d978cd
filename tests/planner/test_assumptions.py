"""What an answer says of the strategies that it could not try."""

from __future__ import annotations

from dataclasses import replace

from planner.axes import Axes
from planner.blocks.answer import _assumptions, block_rules
from planner.blocks.block_search import _context
from planner.space import LayoutContext
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.model.graph import ModelGraph
from simulator.values.workload import Workload
from tests.planner.hand_made_model import TOKENS, HandMadeModel

REASON = "no rule is known for which of its linear layers to split by columns and rows"


def context(**changes: object) -> LayoutContext:
    settings: dict[str, object] = {
        "num_devices": 8,
        "node_devices": 8,
        "num_layers": 12,
        "tp_degrees": (1,),
        "global_batch": 8,
        "precision": "bf16",
        "why_not_tensor_parallel": REASON,
    }
    return LayoutContext(rules=block_rules(), blocks=True, may_idle=False, **(settings | changes))  # type: ignore[arg-type]  # a mapping of mixed values


def test_a_model_without_tensor_parallel_rules_is_said_to_be_searched_without() -> None:
    said = _assumptions(Axes(), context())
    assert f"no tensor parallelism: {REASON} (--tp)" in said


def test_nothing_is_said_where_it_was_not_to_be_tried() -> None:
    for space, changes in (
        (Axes(tp=(1,)), {}),
        (Axes(), {"num_devices": 1}),
        (Axes(), {"why_not_tensor_parallel": "", "tp_degrees": (1, 2)}),
    ):
        assert not any("no tensor" in said for said in _assumptions(space, context(**changes)))


def test_a_model_of_one_block_is_said_to_have_no_pipeline() -> None:
    said = _assumptions(Axes(), context(num_layers=1, why_not_cuttable="it has one layer"))
    assert "no pipeline: it has one layer (--pp)" in said


class Halting(HandMadeModel):
    """Layers in which a truth value decides what runs."""

    def at(self, micro_batch: int, tp: int = 1) -> ModelGraph:
        graph: ModelGraph = super().at(micro_batch, tp)
        kinds = (replace(kind, assumed_values=kind.label == "Layer") for kind in graph.kinds)
        return replace(graph, kinds=tuple(kinds))


def test_truth_values_that_were_assumed_inside_blocks_are_said() -> None:
    work = Workload(global_batch=8, sequence_length=TOKENS)
    said = _assumptions(Axes(), _context(Halting(4), get_cluster("2xh100-sxm"), work))
    assert any(x.startswith("what runs in Layer hangs on values") for x in said)
