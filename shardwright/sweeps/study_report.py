"""Report of `shardwright sweep`: status of the questions, and the best rows, as text and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from profiles.units import format_count, format_percent, format_time, format_usd
from shardwright.reports.labelled import labelled
from shardwright.reports.terminal import hourly_price_words, table
from shardwright.sweeps.study_requests import PLANS, SIZES, best_rows
from shardwright.sweeps.study_run import ANSWERED, StudyRun

REPORT_SCHEMA = "shardwright/sweep-report@1"
_SHOWN = 10
_REASONS = 5
_MESH = ("tp", "cp", "ep", "pp", "dp")


def study_json(run: StudyRun, sort: str) -> dict[str, Any]:
    """The report as plain values: counts by status, the best rows of the plans, and the files."""
    return {
        "schema": REPORT_SCHEMA,
        "sorted_by": sort,
        "questions": sum(map(len, run.rows.values())),
        "jobs": run.jobs,
        "known_before": run.known,
        "statuses": {name: _statuses(rows) for name, rows in run.rows.items()},
        "best": best_rows(run.rows, sort, _SHOWN),
        "files": list(run.files),
    }


def study_report(run: StudyRun, sort: str, most: int = _SHOWN) -> RenderableType:
    """Counts by status, the best rows of each table (at most `most`), and the commonest reasons."""
    parts: list[RenderableType] = []
    for name, heading in ((PLANS, "plan"), (SIZES, "run")):
        rows = run.rows.get(name, [])
        if not rows:
            continue
        counts = _statuses(rows)
        able = sum(counts.get(status, 0) for status in ANSWERED)
        said = [f"{len(rows):,} questions, {able:,} have a {heading}"]
        said += [f"{counts[s]:,} {s}" for s in ("infeasible", "failed") if counts.get(s)]
        parts += [Text(", ".join(said) + "."), Text("")]
        best = best_rows(run.rows, sort, most) if name == PLANS else _cheapest(rows)
        if best:
            parts += [_plans(best) if name == PLANS else _sizes(best), Text("")]
            parts += _prices(best)
        parts += _reasons(rows)
    return Group(*parts)


def _statuses(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    return dict(sorted(Counter(row["status"] for row in rows).items()))


def _plans(rows: Sequence[dict[str, Any]]) -> RenderableType:
    sized = len({(row["global_batch"], row["sequence_length"]) for row in rows}) > 1
    priced = len({row["price_asked"] for row in rows}) > 1
    shown = table(
        *("#", "model", "on", "plan"),
        *([">batch x seq"] if sized else []),
        *(">step", ">MFU"),
        *([">price"] if priced else []),
        ">$/M",
    )
    for row in rows:
        usd = row.get("usd_per_million")
        mesh = " ".join(f"{axis}{row[axis]}" for axis in _MESH if (row.get(axis) or 1) > 1)
        shown.add_row(
            str(row["question"]),
            row["model"],
            row["cluster"],
            f"{row['stack']}, {mesh or 'one device'}",
            *([f"{row['global_batch']} x {row['sequence_length']}"] if sized else []),
            format_time(row["step_time_s"]),
            format_percent(row["mfu"]),
            *([row["price_asked"]] if priced else []),
            "-" if usd is None else f"{format_usd(usd)} {row['counted_in']}",
        )
    return shown


def _cheapest(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs by their dollars, those without a price last."""
    able = [row for row in rows if row["status"] in ANSWERED]

    def dollars(row: dict[str, Any]) -> tuple[bool, float, int]:
        usd = row.get("usd")
        return usd is None, usd or 0.0, row["question"]

    return sorted(able, key=dollars)[:_SHOWN]


def _sizes(rows: Sequence[dict[str, Any]]) -> RenderableType:
    shown = table("#", "model", "of", ">tokens", "best", ">devices", ">days", ">dollars")
    for row in rows:
        shown.add_row(
            str(row["question"]),
            row["model"],
            row["on"],
            format_count(row["tokens"]),
            f"{row['device']}, {row['stack']}",
            f"{row['devices']:,}",
            f"{row['days']:.3g}",
            "-" if row.get("usd") is None else format_usd(row["usd"]),
        )
    return shown


def _prices(rows: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """The prices behind the rows' dollars, each once."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        usd, price = row.get("usd_per_device_hour"), row.get("price")
        if usd is not None and price:
            named = found.setdefault(hourly_price_words(usd, price), {})
            named[row.get("cluster") or row["device"]] = None
    return [labelled("Price:  ", f"on {', '.join(on)}: {words}") for words, on in found.items()]


def _reasons(rows: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """The commonest reasons why there is no answer."""
    why = Counter(f"{row['model']}: {row['reason']}" for row in rows if row["reason"])
    if not why:
        return []
    ranked = sorted(why.items(), key=lambda each: (-each[1], each[0]))
    more = len(ranked) - _REASONS
    said = [Text(""), Text("Without an answer:")]
    said += [Text(f"  {count:,} of {reason}") for reason, count in ranked[:_REASONS]]
    return [*said, *([Text(f"  and {more:,} reasons more (column reason)")] if more > 0 else [])]
