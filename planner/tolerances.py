"""Tolerances of all searches: the gap of `optimal`, and when two values are equal."""

from __future__ import annotations

OPTIMAL_GAP = 1e-4
"""Relative gap between an answer and its bound below which the answer is called optimal: the
default at which MIP solvers do so (Gurobi 12 reference manual, MIPGap; read 2026-11-21)."""

DEFAULT_TIME_LIMIT_S = 60.0
"""Seconds that a search takes at most where `--time-limit` gives no other; assumed: as long as a
reader waits for a single answer."""

DEFAULT_FIT_RISK = 0.10
"""Probability of running out of memory that a plan may have where `--fit-risk` gives no other."""


def status_of(gap: float) -> str:
    """`optimal` or, where a limit left a gap, `feasible`."""
    return "optimal" if gap <= OPTIMAL_GAP else "feasible"
