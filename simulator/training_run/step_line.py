"""`StepLine`: one term of a step's time, in words and numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """One term of a step.

    part      the field of StepParts that it belongs to
    time_s    its seconds in the step
    formula   in words, coefficients by their names;  numbers  the same with numbers
    """

    part: str
    name: str
    time_s: float
    formula: str
    numbers: str
