"""The accuracy page in Markdown: errors of predictions on published measurements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable

from evidence.compared_run import ComparedRun
from evidence.groups import device_of, source_of
from evidence.peers import peers
from evidence.statistics import (
    Accuracy,
    accuracy,
    memory_summary,
    step_time_summary,
    worst_rows,
)
from evidence.study import (
    FITS_TARGET,
    GROUPINGS,
    ORDER_TARGET,
    SOURCE_LEFT_OUT,
    AccuracyStudy,
    lost_to_baseline,
    outcomes,
    regrets,
    schedule_order,
    sweep_verdicts,
)
from evidence.traced_table import traced_table
from evidence.unseen_table import SCORES_NOTE, lost_words, unseen_sections
from profiles.units import format_time
from shardwright.reports.markdown_table import cell, percent, section, table

WORST = 20
_MOST_REASONS = 12


def accuracy_markdown(study: AccuracyStudy, *, worst: int = WORST) -> str:
    """The whole page, from the hardest test to the easiest."""
    parts = [
        _head(study),
        *unseen_sections(study),
        _sources(study),
        *(_group(study, name, key) for name, key in GROUPINGS),
        _targets(study),
        _memory(study),
        _choices(study),
        traced_table(study),
        _worst(study, worst),
        _missing(study),
        _peers(),
        _reproduce(study),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(study: AccuracyStudy) -> str:
    whole = accuracy(study.rows)
    runs = "1 run" if study.locked == 1 else f"{study.locked} runs"
    locked = f" {runs} of locked sources removed." if study.locked else ""
    return (
        "# Accuracy\n\nThis page compares predictions with published measurements. An error is "
        "predicted / measured - 1. Published figures for equal runs differ by about 5 %. The "
        f"hardest test comes first: runs that were not seen before.\n\n{SCORES_NOTE}\n\n"
        f"Data: {cell(study.table)}: {whole.rows} runs, {whole.measured} with a "
        f"measured step time, {percent(whole.predicted_share)} predicted.{locked}"
    )


def _sources(study: AccuracyStudy) -> str:
    columns = [column for column in study.columns if not column.folds]
    names = [f"{cell(column.name)}: mean / median" for column in columns]
    head = ["source", "rows", "predicted", *names, "bias", "intervals hold", "rank correlation"]
    rows = []
    for source, mine in _by_source(study.rows).items():
        ids = {row.run.id for row in mine}
        errors = [
            _mean_median(row for row in rows_of if row.run.id in ids)
            for rows_of in (*(column.rows for column in columns), study.baseline)
        ]
        whole = accuracy(mine)
        rows.append([cell(source), *_counts(whole), *errors[:-1], *_quality(whole), errors[-1]])
    lost = lost_to_baseline(study)
    step = accuracy(study.rows).step_time
    return section(
        "Step time by source",
        "In this section the coefficients were fitted with other rows of the same source, so the "
        "errors **include the effect of the source**. For a new source, expect the errors of the "
        "sections above.",
        table([*head, "45 % of peak: mean / median"], rows),
        f"All rows ({cell(study.judged)}): mean error {percent(step.mean_absolute)}, median "
        f"{percent(step.median_absolute)}, bias {percent(step.bias, signed=True)}; the 90 % "
        f"intervals hold {percent(step.interval_coverage)} of the rows. Here and below means, "
        "medians and biases are over rows. Bias, intervals and rank correlation are those of the "
        f"column {cell(study.judged)}. Rank correlation is Spearman's, among layouts of one "
        "workload. The last column is a baseline: every device at 45 % of its dense peak, with "
        f"recomputation. The baseline is better on {lost_words(lost) or 'no source'}.",
    )


def _targets(study: AccuracyStudy) -> str:
    lines = []
    for result in outcomes(study):
        target = result.target
        lines.append(
            [
                cell(target.name),
                str(result.compared),
                "median" if target.is_median else "mean",
                _against(result.step_time, target.step_time),
                _against(result.bias, target.bias, signed=True),
                _against(result.memory, target.memory),
                "yes" if result.met else "no",
            ]
        )
    return section(
        "Targets on known sources",
        f"Errors of the column {cell(study.judged)}, with the target in parentheses.",
        table(["runs", "rows", "statistic", "step time", "bias", "memory", "met"], lines),
    )


def _memory(study: AccuracyStudy) -> str:
    unseen = next((c.rows for c in study.columns if c.name == SOURCE_LEFT_OUT), ())
    left_out = _by_source(unseen)
    head = ["source", "rows", "mean", "median", "bias", "intervals hold"]
    head += ["source left out: mean", "intervals hold"] if unseen else []
    rows = []
    for source, mine in _by_source(study.rows).items():
        errors = memory_summary(mine)
        if not errors.count:
            continue
        shares = [errors.mean_absolute, errors.median_absolute]
        others = [errors.interval_coverage]
        if unseen:
            found = memory_summary(left_out[source])
            others += [found.mean_absolute, found.interval_coverage]
        bias = percent(errors.bias, signed=True)
        cells = [*map(percent, shares), bias, *map(percent, others)]
        rows.append([cell(source), str(errors.count), *cells])
    return section("Peak memory by source", table(head, rows)) if rows else ""


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
            f"- Fits or fails: {fits.ran_fits} of {fits.ran} runs that ran are predicted to fit, "
            f"{fits.failed - fits.failed_fits} of {fits.failed} failed layouts to fail; balanced "
            f"accuracy {percent(fits.balanced_accuracy)} (target {percent(FITS_TARGET)}; RAPID-LLM "
            "claims 95 %)."
        )
    return section("Choices", "\n".join(lines)) if lines else ""


def _group(study: AccuracyStudy, name: str, key: Callable[[ComparedRun], str]) -> str:
    head = [name, "rows", "predicted", "mean / median", "bias", "intervals hold", "rank"]
    rows = []
    for value in sorted({key(row) for row in study.rows}, key=_natural):
        mine = [row for row in study.rows if key(row) == value]
        whole = accuracy(mine)
        rows.append([cell(value), *_counts(whole), _mean_median(mine), *_quality(whole)])
    return section(f"Step time by {name}", table(head, rows))


def _worst(study: AccuracyStudy, count: int) -> str:
    rows = []
    for row in worst_rows(study.rows, count):
        run = row.run
        measured, predicted = row.measured.step_time_s, row.predicted.step_time_s
        degrees = [(name, getattr(run, name)) for name in ("tp", "pp", "dp", "cp", "ep")]
        rows.append(
            [
                cell(run.id),
                cell(run.model),
                cell(device_of(run)),
                " ".join(f"{name}{value}" for name, value in degrees if value is not None),
                str(run.num_devices or "-"),
                format_time(measured) if measured is not None else "-",
                format_time(predicted) if predicted is not None else "-",
                percent(row.step_time_error or 0.0, signed=True),
            ]
        )
    if not rows:
        return ""
    head = ["id", "model", "device", "layout", "devices", "measured", "predicted", "error"]
    return section(f"The {len(rows)} worst rows", table(head, rows, words=4))


def _missing(study: AccuracyStudy) -> str:
    reasons = Counter(row.predicted.status for row in study.rows if not row.supported)
    if not reasons:
        return ""
    listed = sorted(reasons.items(), key=lambda entry: (-entry[1], entry[0]))
    lines = [f"- {count}: {cell(reason)}" for reason, count in listed[:_MOST_REASONS]]
    rest = sum(count for _, count in listed[_MOST_REASONS:])
    if rest:
        lines.append(f"- {rest}: other reasons")
    return section("Rows without a prediction", "\n".join(lines))


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
        "`run`: we ran the tool on these rows. `claimed`: a figure of its authors. If a row count "
        "is larger than ours, our rows are a part of theirs."
    )
    return section("Errors of other tools", table(head, rows, words=5), note)


def _reproduce(study: AccuracyStudy) -> str:
    return section("Reproduce", f"```\n{study.command}\n```", f"Written on {cell(study.date)}.")


def _by_source(rows: Iterable[ComparedRun]) -> dict[str, list[ComparedRun]]:
    """The rows of each source, by its name."""
    groups: dict[str, list[ComparedRun]] = {}
    for row in rows:
        groups.setdefault(source_of(row.run.id), []).append(row)
    return dict(sorted(groups.items()))


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
