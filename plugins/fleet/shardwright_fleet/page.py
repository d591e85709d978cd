"""The HTML report of a fleet: one self-contained file, everything escaped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from profiles.errors import InputError
from profiles.units import format_percent, format_usd
from shardwright.reports.html import fact, template
from shardwright_fleet.answer import FleetAnswer
from shardwright_fleet.gantt_chart import fleet_picture
from shardwright_fleet.words import advice_words, date_of, level_words


def fleet_html(answer: FleetAnswer, *, provenance: Mapping[str, object] | None = None) -> str:
    """The whole page; raises InputError without a schedule."""
    if answer.status == "infeasible":
        raise InputError("no schedule keeps every hard deadline: nothing to draw")
    late = [run for run in answer.runs if run.late_h]
    weighted = sum(run.late_h for run in answer.runs) / 24.0
    facts = [
        fact("Runs", str(len(answer.runs)), f"on {len(answer.clusters)} clusters"),
        fact("Late", str(len(late)), f"{weighted:.1f} days in all"),
        fact("All done", f"{answer.end_h / 24:.1f} d", date_of(answer, answer.end_h)),
        fact("Cost", format_usd(answer.usd), "rented hours and lateness"),
        fact("Largest gap", format_percent(answer.gap or 0.0), answer.status),
    ]
    return str(
        template("fleet.html.j2", folder=Path(__file__).parent).render(
            title=f"{len(answer.runs)} runs on {len(answer.clusters)} clusters",
            subtitle=f"from {date_of(answer, 0.0)} on; "
            + "; ".join(level_words(level) for level in answer.levels),
            facts=facts,
            picture=fleet_picture(answer),
            answer=answer,
            date=lambda hours: date_of(answer, hours),
            usd=format_usd,
            advice_words=advice_words,
            command=str((provenance or {}).get("command", "")),
        )
    )
