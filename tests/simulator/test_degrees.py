"""Degrees: numbers of ranks, coordinates, groups, text, and messages about wrong degrees."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.document import decode, encode
from profiles.errors import DocumentError, InputError, UnknownNameError
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.degrees import AXES, AXIS_ORDERS, Coordinates, Degrees
from simulator.values.plan import Plan
from tests.simulator.described_runs import changed, training_runs
from tests.simulator.hand_made import plan

SMALL = st.integers(1, 4)


@st.composite
def some_degrees(draw: st.DrawFn) -> Degrees:
    tp, cp, dp = draw(SMALL), draw(SMALL), draw(SMALL)
    spread = [n for n in range(1, tp * cp * dp + 1) if tp * cp * dp % n == 0]
    return Degrees(
        tp=tp,
        cp=cp,
        dp=dp,
        pp=draw(SMALL),
        vpp=draw(SMALL),
        ep=draw(st.sampled_from(spread)),
        axis_order=draw(st.sampled_from(AXIS_ORDERS)),
    )


@given(some_degrees())
def test_ranks_and_coordinates_are_inverse(degrees: Degrees) -> None:
    found = [degrees.coordinates(rank) for rank in range(degrees.num_devices)]
    assert [degrees.rank(**at._asdict()) for at in found] == list(range(degrees.num_devices))
    assert len(set(found)) == degrees.num_devices
    assert all(at[i] < degrees.size(axis) for at in found for i, axis in enumerate(AXES))


@given(some_degrees())
def test_groups_of_an_axis_partition_the_ranks(degrees: Degrees) -> None:
    for axis in AXES:
        groups = set()
        for rank in range(degrees.num_devices):
            at = degrees.coordinates(rank)
            group = degrees.group(axis, **at._asdict())
            # Members differ on this axis only, and are in its order.
            assert [degrees.coordinates(member) for member in group] == [
                at._replace(**{axis: place}) for place in range(degrees.size(axis))
            ]
            groups.add(group)
        assert sorted(rank for group in groups for rank in group) == list(
            range(degrees.num_devices)
        )


def test_tensor_parallel_ranks_are_neighbors_and_stages_are_outermost() -> None:
    # 2 x 2 x 2 x 2 ranks: tp is bit 0, cp bit 1, dp bit 2, pp bit 3.
    degrees = Degrees(tp=2, cp=2, dp=2, pp=2)
    assert degrees.coordinates(0b1011) == Coordinates(tp=1, cp=1, dp=0, pp=1)
    assert degrees.group("tp", cp=1, pp=1) == (0b1010, 0b1011)
    assert degrees.group("dp", tp=1, cp=1, pp=1) == (0b1011, 0b1111)
    assert degrees.group("pp", tp=1, cp=1) == (0b0011, 0b1011)


def test_replicas_are_outermost_in_the_other_order() -> None:
    degrees = Degrees(tp=2, dp=2, pp=3, axis_order="tp-cp-pp-dp")
    assert degrees.group("pp") == (0, 2, 4)
    assert degrees.group("dp") == (0, 6)


def test_text_leaves_out_what_is_not_split() -> None:
    assert Degrees(tp=4, pp=1, dp=2).text == "tp4 pp1 dp2"
    degrees = Degrees(tp=4, cp=2, pp=2, dp=4, ep=8, vpp=3, axis_order="tp-cp-pp-dp")
    assert degrees.mesh_text == "tp4 cp2 pp2 dp4 ep8"
    assert degrees.text == "tp4 cp2 pp2 dp4 ep8 vpp3 tp-cp-pp-dp"
    assert Degrees(dp=8, dp_replicate=2).text == "tp1 pp1 dp8 dp_replicate2"


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"tp": 0}, "tp must be 1 or more, got 0"),
        ({"vpp": -1}, "vpp must be 1 or more, got -1"),
        (
            {"tp": 2, "dp": 2, "ep": 8},
            r"ep=8 does not divide the 4 ranks of a stage \(tp 2 x cp 1 x dp 2\); use 1, 2 or 4",
        ),
        (
            {"dp": 8, "dp_replicate": 8},
            "dp_replicate=8 does not divide dp=8 into groups of two replicas or more, which shard "
            "states; use 1 or 2 or 4",
        ),
        ({"dp": 8, "dp_replicate": 3}, "dp_replicate=3 does not divide dp=8"),
        (
            {"dp": 8, "dp_replicate": 4, "ep": 4},
            "ep=4 does not divide the 2 ranks of each of the 4",
        ),
    ],
)
def test_wrong_degrees_are_named_with_a_fix(degrees: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Degrees(**degrees)


def test_an_unknown_order_of_axes_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="tp-cp-dp-pp"):
        Degrees(axis_order="pp-tp-cp-dp")


def test_a_rank_outside_is_refused() -> None:
    with pytest.raises(InputError, match="tp2 pp1 dp2 has ranks 0 to 3, rank 4 was requested"):
        Degrees(tp=2, pp=1, dp=2).coordinates(4)


def test_a_plan_file_has_a_key_for_each_degree() -> None:
    made = plan(tp=2, pp=2, dp=4, vpp=2)
    table = encode(made)
    assert [table[key] for key in ("tp", "pp", "dp", "vpp")] == [2, 2, 4, 2]
    assert table.keys().isdisjoint({"degrees", "cp", "ep", "axis_order", "num_devices"})
    assert decode(Plan, table, where="plan") == made
    # vpp had a default in earlier releases, the others had none.
    one = encode(plan(pp=2))
    del one["vpp"]
    del one["dp_replicate"]
    assert decode(Plan, one, where="plan") == plan(pp=2)
    del one["dp"]
    with pytest.raises(DocumentError, match="plan: the key 'dp' is missing"):
        decode(Plan, one, where="plan")


@given(training_runs(), st.sampled_from(AXIS_ORDERS))
def test_a_layout_file_has_a_key_for_each_degree(run: TrainingRun, order: str) -> None:
    run = changed(run, axis_order=order)
    table = encode(run)
    assert table["expert_parallel"] == run.degrees.ep
    assert table["num_devices"] == run.degrees.num_devices
    assert decode(TrainingRun, table, where="run") == run


def test_a_plan_for_the_executor_has_no_context_or_expert_parallelism() -> None:
    for degrees in (Degrees(cp=2), Degrees(dp=2, ep=2), Degrees(axis_order="tp-cp-pp-dp")):
        with pytest.raises(InputError, match=f"only, got {degrees.text}; plan for a framework"):
            replace(plan(), degrees=degrees)
