"""Model flop utilisation."""

from __future__ import annotations

from simulator.values.prediction import Interval


def mfu(work_flop: float, step_s: Interval, peak_flop_per_s: float) -> Interval:
    """Flop of a step's forward and backward, without recomputation, over the step time and the
    dense peak of all devices together (PaLM, arXiv 2204.02311, appendix B)."""
    return Interval(
        value=work_flop / (step_s.value * peak_flop_per_s),
        low=work_flop / (step_s.high * peak_flop_per_s),
        high=work_flop / (max(step_s.low, 1e-12) * peak_flop_per_s),
    )
