"""Difference of two plans: inputs, decisions, numbers, and the reason for the change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from planner.layout.layout_answer import LayoutFile
from profiles.document import encode
from profiles.sourced import Sourced
from profiles.units import format_bytes, format_percent, format_time
from shardwright.analysis.plan_sheet import PlanSheet, sheet_of
from simulator.values.plan_file import PlanFile
from simulator.values.prediction import Part

_NAMED = 3  # maximum number of parts of the step in the reason
_NOTICED = 0.05  # smallest change of a part in the reason, as a share of the step's change
_QUESTION = (
    *("model", "cluster", "global batch", "sequence length"),
    *("precision", "optimizer"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One line of the diff of two plans."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A number of both plans; None if a plan has none.

    unit  `s`, `bytes`, `usd`, `kwh`, `per_s` or `share`
    """

    name: str
    unit: str
    before: float | None
    after: float | None

    @property
    def difference(self) -> float | None:
        """after - before."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before

    @property
    def relative(self) -> float | None:
        """(after - before) / before, None if before is 0 or missing."""
        return (
            self.difference / self.before if self.difference is not None and self.before else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDiff:
    """The difference of two plan files.

    `asked`, `decided`  differences of inputs and decisions, as text; equal entries are omitted
    figures         step, MFU, tokens, peak memory, money, energy
    parts           of the step of each critical rank; they add up to its step
    memory          of each plan's fullest rank at its peak; they add up to its peak
    prices          price used for each plan's dollars, None without one
    reason          one sentence: why the second plan is faster or slower
    """

    asked: tuple[Difference, ...]
    decided: tuple[Difference, ...]
    figures: tuple[Change, ...]
    parts: tuple[Change, ...]
    memory: tuple[Change, ...]
    prices: tuple[Sourced | None, Sourced | None]
    reason: str

    @property
    def equal(self) -> bool:
        """Whether there is no difference."""
        numbers = (*self.figures, *self.parts, *self.memory)
        return not self.asked and not self.decided and all(n.before == n.after for n in numbers)


def diff_plans(before: PlanFile | LayoutFile, after: PlanFile | LayoutFile) -> PlanDiff:
    """Differences of the second plan file from the first, and the reason for its step time."""
    a, b = sheet_of(before), sheet_of(after)
    return PlanDiff(
        asked=_differences(a.asked, b.asked),
        decided=_differences(a.decided, b.decided),
        figures=_figures(a, b),
        parts=_parts(a, b),
        memory=_memory(a, b),
        prices=(a.price, b.price),
        reason=_reason(a, b),
    )


def plan_diff_data(diff: PlanDiff) -> dict[str, Any]:
    """The difference as plain values for JSON; changes have difference and relative, or null."""

    def values(changes: Iterable[Change]) -> list[dict[str, Any]]:
        return [
            {
                **dict.fromkeys(("before", "after")),
                **encode(change),
                "difference": change.difference,
                "relative": change.relative,
            }
            for change in changes
        ]

    return {
        "equal": diff.equal,
        "asked": encode(diff.asked),
        "decided": encode(diff.decided),
        "figures": values(diff.figures),
        "parts": values(diff.parts),
        "memory": values(diff.memory),
        "prices": encode(diff.prices),
        "reason": diff.reason,
    }


def _differences(a: dict[str, str], b: dict[str, str]) -> tuple[Difference, ...]:
    return tuple(
        Difference(name=name, before=a.get(name, "-"), after=b.get(name, "-"))
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    )


def _figures(a: PlanSheet, b: PlanSheet) -> tuple[Change, ...]:
    units = {name: unit for sheet in (a, b) for name, (unit, _) in sheet.figures.items()}
    values = [{name: value for name, (_, value) in sheet.figures.items()} for sheet in (a, b)]
    return tuple(
        Change(name=name, unit=unit, before=values[0].get(name), after=values[1].get(name))
        for name, unit in units.items()
    )


def _parts(a: PlanSheet, b: PlanSheet) -> tuple[Change, ...]:
    return tuple(
        Change(
            name=name,
            unit="s",
            before=a.parts.get(name, 0.0) if a.parts else None,
            after=b.parts.get(name, 0.0) if b.parts else None,
        )
        for name in (part.words for part in Part)
        if a.parts.get(name) or b.parts.get(name)
    )


def _memory(a: PlanSheet, b: PlanSheet) -> tuple[Change, ...]:
    return tuple(
        Change(name=name, unit="bytes", before=a.memory.get(name), after=b.memory.get(name))
        for name in dict.fromkeys([*a.memory, *b.memory])
        if a.memory.get(name) or b.memory.get(name)
    )


def _reason(a: PlanSheet, b: PlanSheet) -> str:
    if a.prediction is None or b.prediction is None:
        both = a.prediction is None and b.prediction is None
        which = "neither plan file has" if both else "one plan file does not have"
        return f"{which} a plan, so there are no times to compare"
    first, second = a.prediction.step_time_s, b.prediction.step_time_s
    change_s = second.value - first.value
    if abs(change_s) <= 1e-9 * first.value:
        return "the second takes as long as the first"
    direction = "faster" if change_s < 0 else "slower"
    share = format_percent(abs(change_s) / first.value)
    moved = sorted(
        (part for part in _parts(a, b) if abs(part.difference or 0.0) > _NOTICED * abs(change_s)),
        key=lambda part: (-abs(part.difference or 0.0), part.name),
    )
    with_it = [p for p in moved if (p.difference or 0.0) * change_s > 0][:_NAMED]
    against = [p for p in moved if (p.difference or 0.0) * change_s < 0][:_NAMED]
    reason = f"the second is {share} {direction}: {_list(with_it)}"
    if against:
        reason += f", against {_list(against)}"
    more = b.prediction.peak.value - a.prediction.peak.value
    if change_s < 0 and more > 0:
        reason += f", for {format_bytes(more)} more memory"
    if first.low <= second.high and second.low <= first.high:
        reason += ". Their intervals overlap, so the order is not certain"
    if other := [name for name in _QUESTION if a.asked.get(name) != b.asked.get(name)]:
        reason += f". Their inputs differ ({', '.join(other)}), so a step is not the same work"
    return reason


def _list(parts: list[Change]) -> str:
    words = []
    for part in parts:
        moved_s = part.difference or 0.0
        words.append(f"{format_time(abs(moved_s))} {'less' if moved_s < 0 else 'more'} {part.name}")
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
