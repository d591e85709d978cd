"""Which cells are legal, and what is said where the pins leave none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.axes import Axes, parse_axis
from planner.blocks.answer import block_rules, legal_cells
from planner.space import LayoutContext
from profiles.errors import InputError, UnknownNameError
from simulator.values.plan import Recompute
from simulator.values.runnable import why_not_runnable

GROUND = LayoutContext(
    rules=block_rules(),
    blocks=True,
    may_idle=False,
    num_devices=8,
    node_devices=4,
    num_layers=6,
    tp_degrees=(1, 2, 4, 8),
    global_batch=16,
)


def test_cells_of_two_devices_are_counted_by_hand():
    # Batch 4, 3 blocks, tp 1 or 2, zero 0: pp1 dp2 tp1: micro-batch 1, 2 -> 2. pp1 dp1 tp2:
    # micro-batch 1, 2, 4 -> 3. pp2 dp1 tp1: micro-batch 1, 2, 4 under 1f1b and gpipe -> 6;
    # interleaved needs vpp 2 x pp 2 = 4 blocks -> 0. Together 11.
    context = LayoutContext(
        rules=block_rules(),
        blocks=True,
        may_idle=False,
        num_devices=2,
        node_devices=2,
        num_layers=3,
        tp_degrees=(1, 2),
        global_batch=4,
    )
    assert len(legal_cells(Axes(zero=(0,)), context)) == 11


def test_every_cell_obeys_the_rules():
    cells = legal_cells(Axes(), GROUND)
    assert len(set(cells)) == len(cells)
    for cell in cells:
        assert cell.degrees.pp * cell.degrees.dp * cell.degrees.tp == 8
        assert 16 % (cell.degrees.dp * cell.micro_batch) == 0
        assert cell.degrees.tp <= 4  # a free tp stays within the node
        assert cell.degrees.num_stages <= 6
        assert (cell.schedule == "interleaved") == (cell.degrees.vpp > 1)
        assert (cell.degrees.pp == 1) == (cell.schedule == "none")
        assert cell.degrees.dp > 1 or cell.zero_stage == 0
        refused = why_not_runnable(
            cell.degrees,
            zero_stage=cell.zero_stage,
            schedule=cell.schedule,
            precision="bf16",
            num_microbatches=cell.num_microbatches,
        )
        assert refused == ""
    assert {cell.schedule for cell in cells} == {"none", "1f1b", "gpipe", "interleaved"}


def test_hybrid_sharding_by_hand():
    """One stage of one device: dp 8 has groups of four under ZeRO 1, 2 and 3, and micro-batches of
    one or two samples."""
    pins = {"tp": (1,), "pp": (1,)}
    cells = legal_cells(Axes(dp_replicate=(2,), **pins), GROUND)
    assert len(cells) == 6
    assert {cell.degrees.shard_replicas for cell in cells} == {4}
    assert {cell.shares for cell in cells} == {4}
    assert {cell.zero_stage for cell in cells} == {1, 2, 3}
    assert len(legal_cells(Axes(dp_replicate=(1, 2), **pins), GROUND)) == 8 + 6
    assert {cell.degrees.dp_replicate for cell in legal_cells(Axes(**pins), GROUND)} == {1}


def test_pins_and_restrictions_hold():
    space = Axes(tp=(1, 2), pp=(2,), zero=(3,), micro_batch=(2,), schedule=("gpipe",))
    cells = legal_cells(space, GROUND)
    assert {cell.degrees.tp for cell in cells} == {1, 2}
    assert {(cell.degrees.pp, cell.micro_batch, cell.schedule) for cell in cells} == {
        (2, 2, "gpipe")
    }


def test_a_pinned_tp_may_leave_the_node():
    assert {cell.degrees.tp for cell in legal_cells(Axes(tp=(8,)), GROUND)} == {8}


def test_a_free_tp_divides_its_node():
    """Nodes of six: every other group of four would lie across two of them."""
    context = LayoutContext(
        rules=block_rules(),
        blocks=True,
        may_idle=False,
        num_devices=12,
        node_devices=6,
        num_layers=6,
        tp_degrees=(1, 2, 3, 4, 6),
        global_batch=12,
    )
    assert {cell.degrees.tp for cell in legal_cells(Axes(), context)} == {1, 2, 3, 6}
    assert {cell.degrees.tp for cell in legal_cells(Axes(tp=(4,)), context)} == {4}


def test_interleaved_needs_whole_rounds():
    # dp 2 x micro-batch 8 leaves one micro-batch: no round of pp = 2 stages.
    space = Axes(schedule=("interleaved",), pp=(2,), tp=(2,), micro_batch=(8,))
    with pytest.raises(InputError, match=r"interleaved needs .* micro-batches in multiples of pp"):
        legal_cells(space, GROUND)


@pytest.mark.parametrize(
    ("space", "context", "message"),
    [
        (
            Axes(pp=(3,), tp=(2,)),
            GROUND,
            r"^--pp 3: tp x cp x pp x dp must use the 8 devices of --on, .* Use --pp 2 or 4\.$",
        ),
        (Axes(dp=(8,), pp=(2,)), GROUND, r"^--pp 2 with --dp 8: .* Use --pp 1, or --dp 4\.$"),
        (Axes(tp=(3,)), GROUND, r"^--tp 3: tp is one of 1, 2, 4, 8. Use --tp 2 or 4\.$"),
        (
            Axes(tp=(2,)),
            replace(GROUND, tp_degrees=(1,), why_not_tensor_parallel="it has convolutions"),
            r"^--tp 2: it has convolutions. Use --tp 1\.$",
        ),
        (Axes(pp=(8,)), GROUND, r"^--pp 8: every stage has one of the model's 6 blocks or more"),
        (
            Axes(pp=(2,)),
            replace(GROUND, why_not_cuttable="skips join every block"),
            "cannot be cut into stages: skips join every block",
        ),
        (
            Axes(pp=(1,), tp=(1,)),
            replace(GROUND, global_batch=7),
            r"--pp 1: dp must divide --global-batch 7, and .* the 8 devices .* --global-batch 8",
        ),
        (
            Axes(micro_batch=(3,)),
            GROUND,
            r"^--micro-batch 3: micro-batch must divide --global-batch 16. "
            r"Use --micro-batch 2 or 4, or --global-batch 24\.$",
        ),
        (
            Axes(schedule=("1f1b",), vpp=(2,)),
            GROUND,
            r"^--vpp 2 with --schedule 1f1b: 1f1b has vpp 1. Use --vpp 1, or --schedule interlea",
        ),
        (
            Axes(tp=(3,), zero=(1,), dp=(1,)),
            GROUND,
            r"^--tp 3: .* --dp 1 with --zero 1: without replicas .* there is nothing to shard",
        ),
    ],
)
def test_pins_that_leave_nothing_are_named_together(space, context, message):
    with pytest.raises(InputError, match=message):
        legal_cells(space, context)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"tp": (0,)}, "--tp must be 1 or more, got 0"),
        ({"micro_batch": (-2,)}, "--micro-batch must be 1 or more, got -2"),
        ({"zero": (4,)}, "--zero must be 0, 1, 2 or 3, got 4"),
        ({"pp": ()}, "--pp allows no value"),
    ],
)
def test_impossible_values_are_errors(axes, message):
    with pytest.raises(InputError, match=message):
        Axes(**axes)


def test_an_unknown_schedule_names_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean '1f1b'"):
        Axes(schedule=("1f1",))


def test_a_list_that_is_not_one_is_an_error():
    assert parse_axis("1, 2", "--tp") == (1, 2)
    with pytest.raises(InputError, match="--tp '1;2' is not a list of whole numbers"):
        parse_axis("1;2", "--tp")


def test_strategies_follow_the_recompute_axis():
    assert Axes().strategies == (Recompute.NONE, Recompute.ATTENTION, Recompute.FULL)
    assert Axes(recompute=(Recompute.FULL,)).strategies == (Recompute.FULL,)
