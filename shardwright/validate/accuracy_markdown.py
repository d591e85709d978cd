"""The accuracy page in Markdown: how far predictions are from published measurements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable

from profiles.units import format_time
from shardwright.reports.markdown_table import cell, percent, table
from shardwright.validate.compared import ComparedRun
from shardwright.validate.groups import device_of, source_of
from shardwright.validate.peers import peers
from shardwright.validate.statistics import (
    Accuracy,
    accuracy,
    memory_summary,
    step_time_summary,
    worst_rows,
)
from shardwright.validate.study import (
    COVERAGE_TARGET,
    FITS_TARGET,
    GROUPINGS,
    INTERVALS_TARGET,
    ORDER_TARGET,
    SOURCE_INTERVALS_TARGET,
    SOURCE_LEFT_OUT,
    AccuracyStudy,
    honesty,
    lost_to_baseline,
    outcomes,
    regrets,
    schedule_order,
    sweep_verdicts,
)
from shardwright.validate.targets import Statistic
from shardwright.validate.traced_table import traced_table
from shardwright.validate.unseen_table import lost_words, memory_left_out, unseen_lead

WORST = 20
_MOST_REASONS = 12


def accuracy_markdown(study: AccuracyStudy, *, worst: int = WORST) -> str:
    """The whole page: sources, targets, memory, choices, groups, worst rows, peers."""
    parts = [
        _head(study),
        _sources(study),
        traced_table(study),
        _targets(study),
        _memory(study),
        _choices(study),
        *(_group(study, name, key) for name, key in GROUPINGS[1:]),
        _worst(study, worst),
        _missing(study),
        _peers(),
        _reproduce(study),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(study: AccuracyStudy) -> str:
    whole = accuracy(study.rows)
    step = whole.step_time
    return (
        "# Accuracy\n\nPredictions beside what others measured and published. An error is "
        "predicted over measured minus one; means and medians are of absolute errors. Published "
        f"figures themselves agree to about 5 %.\n\n{unseen_lead(study)}"
        f"{cell(study.table)}: {whole.rows} runs, "
        f"{whole.measured} with a measured step time, {percent(whole.predicted_share)} predicted. "
        f"Step time ({cell(study.judged)}): mean error {percent(step.mean_absolute)}, median "
        f"{percent(step.median_absolute)}, bias {percent(step.bias, signed=True)}; the 90 % "
        f"intervals hold {percent(step.interval_coverage)} of the rows."
    )


def _sources(study: AccuracyStudy) -> str:
    names = [column.name for column in study.columns]
    head = [
        "source",
        "rows",
        "predicted",
        *(f"{cell(name)}: mean / median" for name in names),
        "bias",
        "intervals hold",
        "rank correlation",
        "45 % of peak: mean / median",
    ]
    rows = []
    for source in sorted({source_of(row.run.id) for row in study.rows}):
        mine = [row for row in study.rows if source_of(row.run.id) == source]
        whole = accuracy(mine)
        errors = [
            _mean_median(r for r in column.rows if source_of(r.run.id) == source)
            for column in study.columns
        ]
        dumb = _mean_median(r for r in study.baseline if source_of(r.run.id) == source)
        rows.append([cell(source), *_counts(whole), *errors, *_quality(whole), dumb])
    lost = lost_to_baseline(study)
    said = "No source is predicted better by a constant 45 % MFU."
    if lost:
        said = f"A constant 45 % MFU is more accurate on: {lost_words(lost)}."
    note = (
        f"Bias, intervals and ranks are those of the column {cell(study.judged)}; ranks are "
        "Spearman's among layouts of one workload. The last column is a baseline that runs every "
        "device at 45 % of its dense peak, recomputation counted. "
    )
    return _section("Step time by source", table(head, rows), note + said)


def _targets(study: AccuracyStudy) -> str:
    head = ["rows", "others reach", "n", "statistic", "step time", "bias", "memory", "met"]
    lines = []
    for result in outcomes(study):
        target = result.target
        lines.append(
            [
                cell(target.name),
                cell(target.to_beat) or "-",
                str(result.compared),
                target.statistic if target.step_time is not None else Statistic.MEAN,
                _against(result.step_time, target.step_time),
                _against(result.bias, target.bias, signed=True),
                _against(result.memory, target.memory),
                "yes" if result.met else "no",
            ]
        )
    note = (
        f"Reached (target), by the column {cell(study.judged)}; a target none of whose rows could "
        "be compared is not met."
    )
    return _section("Targets", table(head, lines, words=2), note, _honest(study))


def _honest(study: AccuracyStudy) -> str:
    found = honesty(study)
    low, high = INTERVALS_TARGET
    lines = [
        f"- The 90 % intervals hold {percent(found.intervals)} of the measured step times (target "
        f"{percent(low)} to {percent(high)}"
    ]
    if found.worst_source:
        lines[0] += (
            f"; fewest on {cell(found.worst_source)}, {percent(found.worst_intervals)}, target "
            f"{percent(SOURCE_INTERVALS_TARGET)} or more on every source"
        )
    lines[0] += ")."
    if not math.isnan(found.strange):
        lines.append(
            f"- With a whole source left out, also of the bands, intervals hold "
            f"{percent(found.strange)} of its rows on average over the sources, "
            f"{percent(found.strange_rows)} of all rows: what a run of a source that is in no "
            "table here may expect."
        )
    if not math.isnan(found.coverage):
        lines.append(
            f"- Of the rows that state devices, tp and pp, {percent(found.coverage)} have a "
            f"prediction (target {percent(COVERAGE_TARGET)} or more)."
        )
    return "\n".join(lines)


def _memory(study: AccuracyStudy) -> str:
    rows = []
    for source in sorted({source_of(row.run.id) for row in study.rows}):
        mine = [row for row in study.rows if source_of(row.run.id) == source]
        errors = memory_summary(mine)
        if errors.count:
            rows.append(
                [
                    cell(source),
                    str(errors.count),
                    percent(errors.mean_absolute),
                    percent(errors.median_absolute),
                    percent(errors.bias, signed=True),
                    percent(errors.interval_coverage),
                    *_left_out_memory(study, source),
                ]
            )
    if not rows:
        return ""
    head = ["source", "n", "mean", "median", "bias", "intervals hold"]
    if any(column.name == SOURCE_LEFT_OUT for column in study.columns):
        head += ["source left out: mean", "intervals hold"]
    return _section("Peak memory by source", table(head, rows))


def _left_out_memory(study: AccuracyStudy, source: str) -> list[str]:
    found = memory_left_out(study, source)
    if not found.count:
        return []
    return [percent(found.mean_absolute), percent(found.interval_coverage)]


def _choices(study: AccuracyStudy) -> str:
    lines = []
    for source, target, cost in regrets(study):
        if cost.groups:
            lines.append(
                f"- {source}: over {cost.groups} workloads of five layouts or more, the layout "
                f"ranked first is {percent(cost.mean)} slower than the best measured one on "
                f"average (target {percent(target)}), {percent(cost.worst)} at worst."
            )
    order = schedule_order(study)
    if order.pairs:
        lines.append(
            f"- Zero Bubble: {order.right} of {order.pairs} pairs of schedules more than 3 % apart "
            f"are in the right order, {percent(order.share)} (target {percent(ORDER_TARGET)})."
        )
    fits = sweep_verdicts(study)
    if fits.ran and fits.failed:
        lines.append(
            f"- Fits or fails: {fits.ran_fits} of {fits.ran} runs that ran are said to fit, "
            f"{fits.failed - fits.failed_fits} of {fits.failed} failed layouts to fail; balanced "
            f"accuracy {percent(fits.balanced_accuracy)} (target {percent(FITS_TARGET)}; RAPID-LLM "
            "claims 95 %)."
        )
    return _section("Choices", "\n".join(lines)) if lines else ""


def _group(study: AccuracyStudy, name: str, key: Callable[[ComparedRun], str]) -> str:
    head = [name, "rows", "predicted", "mean / median", "bias", "intervals hold", "rank"]
    rows = []
    for value in sorted({key(row) for row in study.rows}, key=_natural):
        whole = accuracy([row for row in study.rows if key(row) == value])
        step = whole.step_time
        errors = f"{percent(step.mean_absolute)} / {percent(step.median_absolute)}"
        rows.append([cell(value), *_counts(whole), errors, *_quality(whole)])
    return _section(f"Step time by {name}", table(head, rows))


def _worst(study: AccuracyStudy, count: int) -> str:
    rows = []
    for row in worst_rows(study.rows, count):
        run = row.run
        measured, predicted = row.measured.step_time_s, row.predicted.step_time_s
        degrees = " ".join(
            f"{name}{value}"
            for name, value in (
                ("tp", run.tp),
                ("pp", run.pp),
                ("dp", run.dp),
                ("cp", run.cp),
                ("ep", run.ep),
            )
            if value is not None
        )
        rows.append(
            [
                cell(run.id),
                cell(run.model),
                cell(device_of(run)),
                degrees,
                str(run.num_devices or "-"),
                format_time(measured) if measured is not None else "-",
                format_time(predicted) if predicted is not None else "-",
                percent(row.step_time_error or 0.0, signed=True),
            ]
        )
    if not rows:
        return ""
    head = ["id", "model", "device", "layout", "devices", "measured", "predicted", "error"]
    return _section(f"The {len(rows)} worst rows", table(head, rows, words=4))


def _missing(study: AccuracyStudy) -> str:
    reasons = Counter(row.predicted.status for row in study.rows if not row.supported)
    if not reasons:
        return ""
    listed = sorted(reasons.items(), key=lambda entry: (-entry[1], entry[0]))
    lines = [f"- {count}: {cell(reason)}" for reason, count in listed[:_MOST_REASONS]]
    rest = sum(count for _, count in listed[_MOST_REASONS:])
    if rest:
        lines.append(f"- {rest}: other reasons")
    return _section("Rows without a prediction", "\n".join(lines))


def _peers() -> str:
    head = ["tool", "rows", "error", "", "source"]
    rows = [
        [
            cell(peer.tool),
            cell(f"{peer.source}: {peer.rows}" if peer.source else peer.rows),
            cell(peer.error),
            peer.how,
            cell(peer.citation),
        ]
        for peer in peers()
    ]
    note = (
        "`run`: the tool was run on these rows; `claimed`: what its authors say. Where the row "
        "counts are larger than ours, the table holds the part that ours was drawn from."
    )
    return _section("What others reach", table(head, rows, words=5), note)


def _reproduce(study: AccuracyStudy) -> str:
    written = f"This page was written by it on {cell(study.date)}."
    return _section("How to reproduce", f"```\n{study.command}\n```", written)


def _section(title: str, *paragraphs: str) -> str:
    return "\n\n".join([f"## {title}", *paragraphs])


def _mean_median(rows: Iterable[ComparedRun]) -> str:
    step = step_time_summary(rows)
    if not step.count:
        return "-"
    return f"{percent(step.mean_absolute)} / {percent(step.median_absolute)}"


def _counts(whole: Accuracy) -> list[str]:
    return [str(whole.rows), percent(whole.predicted_share)]


def _quality(whole: Accuracy) -> list[str]:
    rank = whole.rank_correlation
    return [
        percent(whole.step_time.bias, signed=True),
        percent(whole.step_time.interval_coverage),
        "-" if math.isnan(rank) else f"{rank:.2f}",
    ]


def _against(reached: float, target: float | None, *, signed: bool = False) -> str:
    if target is None:
        return "-"
    return f"{percent(reached, signed=signed)} ({percent(target)})"


def _natural(name: str) -> tuple[float, str]:
    """Sizes by their number, everything else by name."""
    first = name.split(" ", maxsplit=1)[0]
    return (float(first) if first.isdigit() else math.inf, name)
