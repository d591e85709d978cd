"""Tolerances of all searches: the gap of `optimal`, and when two values are equal."""

from __future__ import annotations

OPTIMAL_GAP = 1e-4
"""Relative gap between an answer and its bound below which the answer is called optimal: the
default at which MIP solvers do so (Gurobi 12 reference manual, MIPGap; read 2026-11-21)."""

DEFAULT_TIME_LIMIT_S = 60.0
"""Default of `--time-limit` in seconds; assumed: as long as a user waits for a single answer."""

DEFAULT_FIT_RISK = 0.10
"""Default of `--fit-risk`: the highest allowed probability of running out of memory."""


def status_of(gap: float) -> str:
    """`optimal`, or `feasible` if a limit ended the search with a gap."""
    return "optimal" if gap <= OPTIMAL_GAP else "feasible"
