"""Total training compute, and the thresholds above which laws apply.

Counted per run: model FLOPs of the forward and backward passes over all tokens (simulator/mfu.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.mfu import MODEL_FLOP

METHOD = f"{MODEL_FLOP}; nothing computed again, no failed runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeThreshold:
    """A published threshold; `state` is its legal status on `date`, `short` a summary."""

    work_flop: float
    name: str
    short: str
    source: str
    state: str
    date: str


THRESHOLDS = (
    ComputeThreshold(
        work_flop=1e25,
        name="EU AI Act: presumed systemic risk",
        short="EU AI Act, Art. 51(2), Regulation 2024/1689",
        source="Regulation (EU) 2024/1689, Article 51(2)",
        state="in force; applies since 2025-08-02",
        date="2026-11-22",
    ),
    ComputeThreshold(
        work_flop=1e26,
        name="US Executive Order 14110: report to the government",
        short="US EO 14110, rescinded January 2025",
        source="Executive Order 14110, section 4.2(b)(i), 2023-10-30",
        state="rescinded on 2025-01-20 (Executive Order 14148)",
        date="2026-11-22",
    ),
)
