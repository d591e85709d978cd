"""Comparisons as sections of a report: a prediction with its run, and two plans."""

from __future__ import annotations

from collections.abc import Iterable

from profiles.units import format_bytes, format_count, format_percent, format_time, format_usd
from shardwright.analysis.comparison import Comparison, Row, drift_sentence
from shardwright.analysis.plan_diff import Change, PlanDiff
from shardwright.reports.brief.brief import Section, Table
from shardwright.reports.terminal import price_note


def comparison_section(comparison: Comparison) -> Section:
    """Predicted and measured values, row by row."""
    cpu = (">CPU time", ">error") if comparison.has_cpu_times else ()
    rows = tuple(_cells(row, comparison) for row in comparison.rows)
    return Section(
        title=f"{comparison.model} on {comparison.cluster}: predicted and measured",
        tables=(Table(heads=("", ">predicted", ">measured", ">error", *cpu), rows=rows),),
        note=verdict(comparison),
    )


def signed_percent(error: float | None) -> str:
    """`+3.2 %`, or a dash."""
    return "-" if error is None else f"{error * 100:+.1f} %"


def _cells(row: Row, comparison: Comparison) -> tuple[str, ...]:
    wall = (
        row.name,
        _quantity(row.predicted, row.unit),
        _quantity(row.measured, row.unit),
        signed_percent(row.error if row.measured else None),
    )
    if not comparison.has_cpu_times:
        return wall
    cpu = format_time(row.measured_cpu) if row.measured_cpu else ""
    return (*wall, cpu, signed_percent(row.cpu_error) if cpu else "")


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


def diff_section(diff: PlanDiff) -> Section:
    """Different inputs, decisions and figures, parts of the step and of the memory."""
    if diff.equal:
        return Section(title="The two plans are equal.")
    tables = [
        Table(
            heads=(title, "before", "after"),
            rows=tuple((one.name, one.before, one.after) for one in differences),
        )
        for title, differences in (("asked", diff.asked), ("decided", diff.decided))
        if differences
    ]
    tables += [
        Table(heads=(title, ">before", ">after", ">change", ">"), rows=tuple(map(_moved, changes)))
        for title, changes in (
            ("what it brings", diff.figures),
            ("where the step goes", diff.parts),
            ("where the fullest rank's memory goes", diff.memory),
        )
        if any(change.before != change.after for change in changes)
    ]
    return Section(
        title=f"{diff.reason[:1].upper()}{diff.reason[1:]}.",
        tables=tuple(tables),
        note=" ".join(_price_lines(diff)),
    )


def _price_lines(diff: PlanDiff) -> Iterable[str]:
    """The price behind the dollars; none without dollars."""
    if not any(change.unit == "usd" for change in diff.figures):
        return ()
    before, after = diff.prices
    if before == after:
        return (f"Price: {price_note(before)}.",)
    return (f"Price before: {price_note(before)}.", f"Price after: {price_note(after)}.")


def _moved(change: Change) -> tuple[str, ...]:
    unit, moved = change.unit, change.difference
    if moved is None:
        words = ""
    elif moved == 0:
        words = "="
    else:
        size = f"{abs(moved) * 100:.2g} points" if unit == "share" else _quantity(abs(moved), unit)
        words = ("+" if moved > 0 else "-") + size
    share = "" if change.relative is None or moved == 0 else f"{change.relative * 100:+.1f} %"
    values = (_quantity(change.before, unit), _quantity(change.after, unit))
    return (change.name, *values, words, share)


_WRITTEN = {
    "s": format_time,
    "bytes": format_bytes,
    "usd": format_usd,
    "share": format_percent,
    "per_s": format_count,
}


def _quantity(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return _WRITTEN[unit](value) if unit in _WRITTEN else f"{value:.3g}"
