"""Degrees: numbers of ranks, coordinates, groups, text, and messages about wrong degrees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InputError, UnknownNameError
from simulator.values.degrees import AXES, AXIS_ORDERS, Coordinates, Degrees, parse_degrees

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
        groups = degrees.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(
            range(degrees.num_devices)
        )
        for group in groups:
            assert len(group) == degrees.size(axis)
            assert all(degrees.group(axis, rank) == group for rank in group)
            # Members differ on this axis only, and are in its order.
            others = {degrees.coordinates(rank)._replace(**{axis: 0}) for rank in group}
            assert len(others) == 1
            assert [getattr(degrees.coordinates(r), axis) for r in group] == list(
                range(degrees.size(axis))
            )


@given(some_degrees())
def test_the_text_of_degrees_can_be_read_back(degrees: Degrees) -> None:
    assert parse_degrees(degrees.text) == degrees


def test_tensor_parallel_ranks_are_neighbors_and_stages_are_outermost() -> None:
    # 2 x 2 x 2 x 2 ranks: tp is bit 0, cp bit 1, dp bit 2, pp bit 3.
    degrees = Degrees(tp=2, cp=2, dp=2, pp=2)
    assert degrees.coordinates(0b1011) == Coordinates(tp=1, cp=1, dp=0, pp=1)
    assert degrees.group("tp", 0b1011) == (0b1010, 0b1011)
    assert degrees.group("dp", 0b1011) == (0b1011, 0b1111)
    assert degrees.group("pp", 0b1011) == (0b0011, 0b1011)


def test_replicas_are_outermost_in_the_other_order() -> None:
    degrees = Degrees(tp=2, dp=2, pp=3, axis_order="tp-cp-pp-dp")
    assert degrees.group("pp") == (0, 2, 4)
    assert degrees.group("dp") == (0, 6)


def test_text_leaves_out_what_is_not_split() -> None:
    assert Degrees(tp=4, pp=1, dp=2).text == "tp4 pp1 dp2"
    degrees = Degrees(tp=4, cp=2, pp=2, dp=4, ep=8, vpp=3, axis_order="tp-cp-pp-dp")
    assert degrees.mesh_text == "tp4 cp2 pp2 dp4 ep8"
    assert degrees.text == "tp4 cp2 pp2 dp4 ep8 vpp3 tp-cp-pp-dp"


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"tp": 0}, "tp must be 1 or more, got 0"),
        ({"vpp": -1}, "vpp must be 1 or more, got -1"),
        (
            {"tp": 2, "dp": 2, "ep": 8},
            r"ep=8 does not divide the 4 ranks of a stage \(tp 2 x cp 1 x dp 2\); use 1, 2 or 4",
        ),
    ],
)
def test_wrong_degrees_are_named_with_a_fix(degrees: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Degrees(**({"tp": 1, "pp": 1, "dp": 1} | degrees))


def test_an_unknown_order_of_axes_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="tp-cp-dp-pp"):
        Degrees(tp=1, pp=1, dp=1, axis_order="pp-tp-cp-dp")


def test_a_rank_outside_is_refused() -> None:
    with pytest.raises(InputError, match="tp2 pp1 dp2 has ranks 0 to 3, rank 4 was requested"):
        Degrees(tp=2, pp=1, dp=2).coordinates(4)


@pytest.mark.parametrize("text", ["tp4 tp2", "tp", "x2", "tp4 sideways"])
def test_text_that_is_no_degrees_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a degree"):
        parse_degrees(text)
