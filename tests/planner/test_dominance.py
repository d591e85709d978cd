"""Undominated labels: a hand example, the definition by brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.chain.partition import undominated


def test_a_hand_example() -> None:
    """Two groups: (1, 3) and (2, 1) are incomparable, (2, 3) is over both; the second group does
    not see the first."""
    columns = np.array([[1.0, 3.0], [2.0, 1.0], [2.0, 3.0], [5.0, 5.0], [5.0, 5.0]])
    assert undominated(np.array([0, 3, 5]), columns, 0.0).tolist() == [0, 1, 3]


def test_differences_within_the_slack_do_not_count() -> None:
    columns = np.array([[1.0, 1.0], [1.0 - 1e-13, 1.0 + 1e-9]])
    columns = columns[np.lexsort((columns[:, 0], columns.sum(axis=1)))]
    assert undominated(np.array([0, 2]), columns, 0.0).tolist() == [0, 1]
    assert undominated(np.array([0, 2]), columns, 1e-12).tolist() == [0]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=40),
    st.integers(min_value=0, max_value=40),
)
def test_exactly_those_that_nothing_dominates_are_kept(
    rows: list[tuple[int, int, int]], cut: int
) -> None:
    """Against the definition; equal labels are kept once."""
    split = min(cut, len(rows))
    groups = [sorted(rows[:split], key=_total), sorted(rows[split:], key=_total)]
    columns = np.array([*groups[0], *groups[1]], dtype=float)
    edges = np.array([0, split, len(rows)])
    found = undominated(edges, columns, 0.0)
    expected = [_front(group) for group in groups]
    kept = [tuple(int(x) for x in columns[i]) for i in found]
    assert sorted(kept) == sorted([*expected[0], *expected[1]])


def _total(row: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    return (sum(row), row)


def _front(rows: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    distinct = set(rows)
    return [
        row
        for row in distinct
        if not any(
            other != row and all(o <= r for o, r in zip(other, row, strict=True))
            for other in distinct
        )
    ]
