"""Axes of flags as texts, for tests."""

from __future__ import annotations

from collections.abc import Mapping

from planner.axes import Axes
from shardwright.options.option import values_of
from shardwright.options.plan_options import PlanOptions
from shardwright.requests.plan_choices import axes_of_options


def axes_of_texts(texts: Mapping[str, str]) -> Axes:
    """The axes of the texts of flags, by their names."""
    return axes_of_options(PlanOptions(**values_of(PlanOptions, texts)))
