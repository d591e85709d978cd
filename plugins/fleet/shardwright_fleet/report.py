"""Terminal report of `fleet`: the schedule, a text Gantt chart, clusters, purchases that help."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from profiles.units import format_percent, format_time, format_usd
from shardwright.reports.labelled import labelled
from shardwright.reports.terminal import format_interval, table
from shardwright_fleet.answer import FleetAnswer, PlannedPhase, PlannedRun
from shardwright_fleet.words import advice_words, date_of, level_words
from simulator.values.prediction import Interval

_NAME, _CHART = 18, 64
_MARK, _LATE, _DUE, _IDLE = "█", "▒", "|", "·"


def fleet_report(answer: FleetAnswer) -> RenderableType:
    """The report, at most 100 columns wide."""
    if answer.status == "infeasible":
        return _infeasible(answer)
    late = [run for run in answer.runs if run.late_h > 0]
    in_time = "all in time" if not late else f"{len(late)} of {len(answer.runs)} late"
    lines: list[RenderableType] = [
        labelled(
            Text("Fleet   ", style="bold"),
            Text(f"{len(answer.runs)} runs on {len(answer.clusters)} clusters, {in_time}"),
            f"done {date_of(answer, answer.end_h)}, {answer.end_h / 24:.1f} days after the start",
            f"{format_usd(answer.usd)} of rented hours and lateness",
        ),
        labelled("Proof   ", *(level_words(level) for level in answer.levels)),
        Text(""),
        _runs(answer),
        Text(""),
        *gantt_lines(answer),
        Text(""),
        _clusters(answer),
        *_prices(answer),
    ]
    lines += own_or_rent_lines(answer)
    for one in answer.advice:
        gap = f" (gap {format_percent(one.gap)})" if one.gap > 1e-4 else ""
        lines.append(labelled("Buy     ", f"{one.change}: {advice_words(one)}{gap}"))
    lines.append(labelled("Assumed ", "; ".join(answer.assumptions), style="dim"))
    lines.append(labelled("Took    ", format_time(answer.search_time_s), style="dim"))
    return Group(*lines)


def _runs(answer: FleetAnswer) -> RenderableType:
    rows = table("job", "cluster", ">nodes", "begins", "ends", ">days", ">late", ">in time", "plan")
    for run in answer.runs:
        for number, phase in enumerate(run.phases):
            last = number == len(run.phases) - 1
            rows.add_row(
                _cut(f"{run.job} {phase.phase}".strip() if number == 0 else f"  {phase.phase}", 16),
                _cut(phase.cluster, 9),
                str(phase.nodes),
                date_of(answer, phase.begin_h)[5:13] + "h",
                date_of(answer, phase.end_h)[5:13] + "h",
                f"{(phase.end_h - phase.begin_h) / 24:.1f}",
                _late(run) if last else "",
                _sure(run) if last else "",
                _cut(f"{phase.price.step.layout.partition(',')[0]}", 17),
            )
    return rows


def _late(run: PlannedRun) -> str:
    if run.deadline_h is None:
        return "-"
    return f"{run.late_h / 24:.1f} d" if run.late_h else "no"


def _sure(run: PlannedRun) -> str:
    return "-" if run.probability is None else format_percent(run.probability)


def gantt_lines(answer: FleetAnswer) -> list[RenderableType]:
    """One line per run, under its cluster; `|` marks a deadline."""
    whole = max(answer.end_h, *(run.deadline_h or 0.0 for run in answer.runs))
    lines: list[RenderableType] = []
    for cluster in answer.clusters:
        lines.append(Text(f"{cluster.cluster} ({cluster.on})", style="bold"))
        for run in answer.runs:
            phases = [phase for phase in run.phases if phase.cluster == cluster.cluster]
            if phases:
                nodes = "/".join(dict.fromkeys(str(phase.nodes) for phase in phases))
                row = _row(run, phases, whole)
                lines.append(Text(f"  {_cut(run.job, _NAME - 2):<{_NAME}}{row} {nodes} nodes"))
    end = f"{whole / 24:.0f} d"
    lines.append(Text(" " * (_NAME + 2) + f"0{end:>{_CHART - 1}}", style="dim"))
    return lines


def _row(run: PlannedRun, phases: list[PlannedPhase], whole: float) -> str:
    cells = [_IDLE] * _CHART

    def at(hours: float) -> int:
        return min(_CHART - 1, int(hours / whole * _CHART))

    for phase in phases:
        for cell in range(at(phase.begin_h), max(at(phase.begin_h), at(phase.end_h - 1e-6)) + 1):
            begins = cell / _CHART * whole
            late = run.deadline_h is not None and begins >= run.deadline_h
            cells[cell] = _LATE if late else _MARK
    if run.deadline_h is not None:
        cells[at(run.deadline_h)] = _DUE
    return "".join(cells)


def _clusters(answer: FleetAnswer) -> RenderableType:
    rows = table("cluster", "of", ">in use", ">device-hours", ">rent", ">owned, used or not")
    for use in answer.clusters:
        rows.add_row(
            use.cluster,
            use.on,
            format_percent(use.used),
            f"{use.device_hours:,.0f}",
            "-" if use.usd_standing is not None else format_usd(use.usd),
            "-" if use.usd_standing is None else format_usd(use.usd_standing),
        )
    return rows


def _prices(answer: FleetAnswer) -> list[RenderableType]:
    return [
        labelled("Price   ", f"{use.cluster}: {use.price_words}", style="dim")
        for use in answer.clusters
        if use.price_words
    ]


def own_or_rent_lines(answer: FleetAnswer) -> list[RenderableType]:
    """One line per cluster, and the cheapest combination if every rent is known."""
    lines: list[RenderableType] = []
    for one in answer.owning:
        choice = {True: "buy", False: "rent", None: "no rent is known"}[one.buy]
        pays = one.pays_from
        never = "owning never pays"
        words = [
            f"{choice} (owned {format_interval(one.owned_usd, format_usd)}",
            "" if one.rented_usd is None else f"rented {format_usd(one.rented_usd.value)}",
            f"{format_percent(one.use)} in use)",
            never if pays is None or pays.value > 1 else f"owning pays from {_use(pays)}",
            f"purchase {format_usd(one.purchase_usd.value)}",
        ]
        lines.append(labelled("Owning  ", f"{one.cluster}: {', '.join(filter(None, words))}"))
    rents = [one.rented_usd for one in answer.owning if one.rented_usd is not None]
    if len(rents) > 1 and len(rents) == len(answer.owning):
        owned = sum(one.owned_usd.value for one in answer.owning)
        best = sum(
            min(one.owned_usd.value, rent.value)
            for one, rent in zip(answer.owning, rents, strict=True)
        )
        whole = (
            f"all owned {format_usd(owned)}, all rented "
            f"{format_usd(sum(rent.value for rent in rents))}, each as above {format_usd(best)}"
        )
        lines.append(labelled("Owning  ", whole))
    return lines


def _use(use: Interval) -> str:
    high = "never" if use.high > 1 else format_percent(use.high)
    return f"{format_percent(use.value)} use [{format_percent(min(1.0, use.low))} - {high}]"


def _infeasible(answer: FleetAnswer) -> RenderableType:
    lines: list[RenderableType] = [
        Text.assemble(("Nothing fits  ", "bold red"), "no schedule keeps every hard deadline")
    ]
    lines += [labelled("Binds     ", each) for each in answer.binds]
    lines += [labelled("Would fit ", each.change) for each in answer.changes]
    lines.append(labelled("Assumed   ", "; ".join(answer.assumptions), style="dim"))
    return Group(*lines)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
