"""Markdown of a comparison, for pull requests."""

from __future__ import annotations

from profiles.units import format_bytes, format_time
from shardwright.analysis.comparison import Comparison, Row
from shardwright.analysis.drift import drift_sentence
from shardwright.reports.markdown_table import cell, table


def quantity(value: float, unit: str) -> str:
    """Seconds or bytes as readable text."""
    return format_time(value) if unit == "s" else format_bytes(value)


def signed_percent(error: float | None) -> str:
    """`+3.2 %`, or a dash."""
    return "-" if error is None else f"{error * 100:+.1f} %"


def comparison_markdown(comparison: Comparison) -> str:
    """A table of predicted and measured values."""
    title = f"### {cell(comparison.model)} on {cell(comparison.cluster)}: predicted and measured"
    rows = table(heads(comparison), [cells(row, comparison) for row in comparison.rows])
    return f"{title}\n\n{rows}\n\n{verdict(comparison)}\n"


def heads(comparison: Comparison) -> tuple[str, ...]:
    """Column heads of a comparison; CPU time and its error only for a run on CPUs."""
    cpu = ("CPU time", "error") if comparison.has_cpu_times else ()
    return ("", "predicted", "measured", "error", *cpu)


def cells(row: Row, comparison: Comparison) -> list[str]:
    """The cells of a row, in the order of `heads`."""
    wall = [
        row.name,
        quantity(row.predicted, row.unit),
        quantity(row.measured, row.unit),
        signed_percent(row.error if row.measured else None),
    ]
    if not comparison.has_cpu_times:
        return wall
    cpu = quantity(row.measured_cpu, "s") if row.measured_cpu else ""
    return [*wall, cpu, signed_percent(row.cpu_error) if cpu else ""]


def verdict(comparison: Comparison) -> str:
    """One sentence on the step, the interval and the gradients."""
    step = comparison.step
    inside = "inside" if step.inside else "outside"
    text = (
        f"The measured step is {inside} the predicted interval; {comparison.undisturbed_steps} of "
        f"{comparison.steps} steps were undisturbed."
    )
    if comparison.cancelling is not None:
        slow, fast = comparison.cancelling
        text += (
            f" Two errors cancel in it: {slow.name} {signed_percent(slow.error)}, "
            f"{fast.name} {signed_percent(fast.error)}."
        )
    if comparison.gradients_passed is not None:
        equal = "equal" if comparison.gradients_passed else "DIFFER FROM"
        text += f" Loss and gradients {equal} those of the unsplit model."
    drift = drift_sentence(comparison.drifts)
    return f"{text} {drift}" if drift else text
