"""Arithmetic of 90 % intervals of positive numbers, log-normal on each side of the value.

A number with value v and ends l and h is modeled as v exp(s z), z standard normal, with s = ln(h /
v) / q above and s = ln(v / l) / q below the value; q = 1.645 is the normal's 95 % quantile. This is
a two-piece normal of the logarithm (Wallis, The two-piece normal, Statistical Science 29(1), 2014).
"""

from __future__ import annotations

import math
from statistics import NormalDist

from simulator.values.prediction import Interval

_NORMAL = NormalDist()
_END = _NORMAL.inv_cdf(0.95)


def product(first: Interval, *others: Interval) -> Interval:
    """The product of independent numbers: on each side, deviations of the logarithms add in
    quadrature.

    >>> sure = Interval(value=3.0, low=3.0, high=3.0)
    >>> found = product(Interval(value=2.0, low=1.0, high=4.0), sure)
    >>> round(found.low, 9), found.value, round(found.high, 9)
    (3.0, 6.0, 12.0)
    """
    numbers = (first, *others)
    value = math.prod(each.value for each in numbers)
    if value <= 0:
        return Interval(value=0.0, low=0.0, high=0.0)
    below = math.hypot(*(_log(each.value, each.low) for each in numbers))
    above = math.hypot(*(_log(each.high, each.value) for each in numbers))
    return Interval(value=value, low=value * math.exp(-below), high=value * math.exp(above))


def total(*parts: Interval) -> Interval:
    """The sum of fully correlated numbers: the ends are added like the values."""
    return Interval(
        value=sum(part.value for part in parts),
        low=sum(part.low for part in parts),
        high=sum(part.high for part in parts),
    )


def probability_below(number: Interval, limit: float) -> float:
    """The probability (0 to 1) that a number is no more than a limit.

    >>> round(probability_below(Interval(value=10.0, low=5.0, high=20.0), 20.0), 3)
    0.95
    """
    if number.value <= 0:
        return 1.0
    if limit <= 0:
        return 0.0
    away = math.log(limit / number.value)
    side = _log(number.high, number.value) if away >= 0 else _log(number.value, number.low)
    if side <= 0:
        return 1.0 if away >= 0 else 0.0
    return _NORMAL.cdf(away / side * _END)


def probability_less(first: Interval, second: Interval) -> float:
    """The probability that one number is below another, independent of it.

    >>> both = Interval(value=2.0, low=1.0, high=4.0)
    >>> probability_less(both, both)
    0.5
    """
    if first.value <= 0 or second.value <= 0:
        return float(first.value < second.value)
    away = math.log(second.value / first.value)
    # The upper side of one and the lower side of the other.
    if away >= 0:
        spread = math.hypot(_log(first.high, first.value), _log(second.value, second.low))
    else:
        spread = math.hypot(_log(first.value, first.low), _log(second.high, second.value))
    if spread <= 0:
        return 0.5 if away == 0 else float(away > 0)
    return _NORMAL.cdf(away / spread * _END)


def _log(larger: float, smaller: float) -> float:
    return math.log(larger / smaller) if smaller > 0 else math.inf


_TIE = 0.4
"""Two predictions are a tie if the probability that the second is better is between this value and
one minus it: the model cannot distinguish them. Assumed."""


def is_tie(probability: float | None) -> bool:
    """Whether a probability that one is better is close to one half."""
    return probability is not None and _TIE <= probability <= 1.0 - _TIE
