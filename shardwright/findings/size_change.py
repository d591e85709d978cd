"""What changed of an answer of `size` since a file of it, and ceilings that it must not pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.sizing.run_outlook import RunOutlook
from profiles.document import read_mapping
from profiles.errors import DocumentError, ToleranceError, UnitError
from profiles.units import format_time, format_usd, parse_quantity
from shardwright.findings.size_json import SIZE_SCHEMA

_COMPARED = (
    *("status", "device", "nodes", "devices", "stack", "layout", "tokens", "global_batch"),
    *("step_time_s", "days", "device_hours", "usd", "usd_per_device_hour", "kwh", "tco2e"),
    *("probability_of_deadline", "probability_of_budget", "productive_time", "flop", "price"),
)
# Smaller shares are rounding.
_SAME = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A figure that is not what it was; `share` of it where both are numbers."""

    name: str
    before: str
    after: str
    share: float | None = None


def read_before(path: Path) -> dict[str, Any]:
    """An answer that `size --json` wrote; raises DocumentError."""
    data = read_mapping(path, meant="an answer of size --json")
    if data.get("schema") != SIZE_SCHEMA:
        raise DocumentError(f"{path}: no answer of size --json (schema {SIZE_SCHEMA})")
    return data


def changes_since(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Change, ...]:
    """The figures that differ, in their order."""
    found = []
    for name in _COMPARED:
        old, new = before.get(name), now.get(name)
        if isinstance(old, (int, float)) and isinstance(new, (int, float)):
            share = new / old - 1.0 if old else None
            if old == new or (share is not None and abs(share) <= _SAME):
                continue
            found.append(Change(name=name, before=f"{old:.6g}", after=f"{new:.6g}", share=share))
        elif old != new:
            found.append(Change(name=name, before=str(old), after=str(new)))
    return tuple(found)


class Ceiling:
    """Dollars or time that an answer must not exceed; `""` for none.

    Raises UnitError for what is neither.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.usd: float | None = None
        self.seconds: float | None = None
        if not text:
            return
        try:
            self.usd = parse_quantity(text, "money", where="--fail-over")
        except UnitError:
            try:
                self.seconds = parse_quantity(text, "time", where="--fail-over")
            except UnitError:
                raise UnitError(
                    f"--fail-over {text!r} is neither dollars nor time; write 20M$, or 60d"
                ) from None

    def check(self, best: RunOutlook) -> None:
        """Raises ToleranceError where the answer is above."""
        if self.usd is not None:
            if best.usd is None:
                raise ToleranceError(f"--fail-over {self.text}: the answer has no price")
            if best.usd.value > self.usd:
                raise ToleranceError(
                    f"{format_usd(best.usd.value)} is above --fail-over {self.text}"
                )
        elapsed = best.days.value * 86400.0
        if self.seconds is not None and elapsed > self.seconds:
            raise ToleranceError(f"{format_time(elapsed)} is above --fail-over {self.text}")
