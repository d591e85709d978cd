"""`best_rows`: the rows of a table of plans that are best by some criterion."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from profiles.errors import UnknownNameError
from shardwright.sweeps.plan_columns import PLAN_SORTS
from shardwright.sweeps.study_requests import PLANS


def need_sort(name: str) -> None:
    """Raises UnknownNameError for a name that PLAN_SORTS has not."""
    if name not in PLAN_SORTS:
        raise UnknownNameError("column", name, PLAN_SORTS, where="--sort")


def best_rows(
    rows: Mapping[str, Sequence[dict[str, Any]]], sort: str, count: int
) -> list[dict[str, Any]]:
    """So many rows that have a plan, the best first; of equal ones the first in the study.

    sort  a name of PLAN_SORTS
    """
    column, largest = PLAN_SORTS[sort]
    sign = -1.0 if largest else 1.0
    able = [row for row in rows.get(PLANS, ()) if row.get(column) is not None]
    return heapq.nsmallest(count, able, key=lambda row: (sign * row[column], row["question"]))
