"""Changes of an answer of `size` since an earlier answer, and upper limits (`--fail-over`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.sizing.run_outlook import RunOutlook
from profiles.document import read_mapping
from profiles.errors import DocumentError, InputError, ToleranceError, UnitError, UnknownNameError
from profiles.units import format_time, format_usd, parse_quantity
from shardwright.analysis.size_better import versus_of
from shardwright.analysis.size_json import SIZE_SCHEMA, size_json
from shardwright.options.option import options_of, values_of
from shardwright.options.size_options import SizeOptions
from shardwright.requests.sizing.sized import Sized

_COMPARED = (
    *("status", "device", "nodes", "devices", "stack", "layout", "tokens", "global_batch"),
    *("step_time_s", "days", "device_hours", "usd", "usd_per_device_hour", "kwh", "tco2e"),
    *("probability_of_deadline", "probability_of_budget", "productive_time", "flop", "price"),
)
# Smaller relative changes are rounding errors.
_SAME = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A changed figure; `share` is the relative change of a number, otherwise None."""

    name: str
    before: str
    after: str
    share: float | None = None


def read_before(path: Path) -> dict[str, Any]:
    """The answer in a file of `size --json`; raises DocumentError."""
    data = read_mapping(path, expected="an answer of size --json")
    if data.get("schema") != SIZE_SCHEMA:
        raise DocumentError(f"{path}: not an answer of size --json (schema {SIZE_SCHEMA})")
    return data


def changes_since(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Change, ...]:
    """The changed figures, in the order of the comparison."""
    changes = []
    for name in _COMPARED:
        old, new = before.get(name), now.get(name)
        if isinstance(old, (int, float)) and isinstance(new, (int, float)):
            share = new / old - 1.0 if old else None
            if old == new or (share is not None and abs(share) <= _SAME):
                continue
            changes.append(Change(name=name, before=f"{old:.6g}", after=f"{new:.6g}", share=share))
        elif old != new:
            changes.append(Change(name=name, before=str(old), after=str(new)))
    return tuple(changes)


class Ceiling:
    """Upper limit of an answer's dollars or time; `""` for no limit.

    Raises UnitError for any other text.
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
        """Raises ToleranceError if the answer exceeds the limit."""
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


def replaced(options: SizeOptions, text: str) -> SizeOptions:
    """The options with changes such as `on=b200;price-kind=spot`; raises InputError."""
    flags = {
        each.flag.removeprefix("--"): each.name
        for each in options_of(SizeOptions)
        if not each.argument
    }
    texts: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in text.split(";"))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise InputError(
                f"--versus {text!r}: {part!r} changes nothing; write on=b200, or "
                "price-kind=spot;network=ib-xdr"
            )
        if name not in flags:
            raise UnknownNameError("flag", name, flags, where="--versus")
        texts[flags[name]] = value
    return replace(options, **values_of(SizeOptions, texts))


def versus_json(text: str, first: Sized, second: Sized) -> dict[str, Any]:
    """The second answer and the probabilities as plain values for JSON."""
    data: dict[str, Any] = {"versus": text, "answer": size_json(second.question, second.answer)}
    if first.answer.best is not None and second.answer.best is not None:
        versus = versus_of(first.answer.best, second.answer.best)
        data |= {
            "probability_first_is_faster": versus.faster,
            "probability_first_is_cheaper": versus.cheaper,
        }
    return data
