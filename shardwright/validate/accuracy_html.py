"""The accuracy page in HTML: one self-contained file with its scatter plots, everything escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from profiles.units import format_time
from shardwright.validate.compared import ComparedRun
from shardwright.validate.groups import device_of, source_of
from shardwright.validate.markdown_table import percent
from shardwright.validate.scatter import Sample, Scatter, scatter
from shardwright.validate.statistics import accuracy, step_time_summary, worst_rows
from shardwright.validate.study import AccuracyStudy, outcomes

WORST = 30
_STYLE = """
:root { --ink:#1d2733; --soft:#5d6b7a; --line:#e3e8ee; --card:#ffffff; --page:#f6f8fa }
* { box-sizing:border-box }
body { margin:0; background:var(--page); color:var(--ink);
  font:15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
main { max-width:1160px; margin:0 auto; padding:28px 24px 60px }
h1 { font-size:24px; margin:0 0 2px } h2 { font-size:17px; margin:0 0 10px }
.sub { color:var(--soft); margin:0 0 18px }
section { background:var(--card); border:1px solid var(--line); border-radius:10px;
  padding:18px 20px; margin:0 0 18px; overflow-x:auto }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums }
th { text-align:left; color:var(--soft); font-weight:600; font-size:13px;
  border-bottom:1px solid var(--line); padding:4px 10px 6px 0 }
td { padding:5px 10px 5px 0; border-bottom:1px solid #f0f3f6; vertical-align:top }
td.n, th.n { text-align:right; white-space:nowrap }
svg { display:block; max-width:100%; height:auto }
svg text { font:11px system-ui, "DejaVu Sans", sans-serif; fill:var(--soft) }
.key { display:flex; flex-wrap:wrap; gap:14px; font-size:13px; color:var(--soft); margin:8px 0 0 }
.key i { display:inline-block; width:11px; height:11px; border-radius:6px; margin-right:5px }
code { font:13px/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace }
.note { color:var(--soft); font-size:13px }
"""
_NOTE = (
    "Both axes are logarithmic. The full line is predicted = measured, the dashed ones are 20 % "
    "off; a point's title names the run."
)


def accuracy_html(study: AccuracyStudy, *, worst: int = WORST) -> str:
    """The page of the study: two scatter plots, sources, targets and the worst rows."""
    whole = accuracy(study.rows)
    sub = (
        f"{study.table} · {whole.rows} runs, {whole.step_time.count} compared ({study.judged}) · "
        f"{study.date}"
    )
    plots = [_times(study), _memory(study)]
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Shardwright: accuracy</title>\n<style>{_STYLE}</style>\n</head>\n<body><main>",
        f'<h1>Accuracy</h1>\n<p class="sub">{escape(sub)}</p>',
        *(_section(plot.title, _svg(plot)) for plot in plots if plot is not None),
        _section("By source", _sources(study)),
        _section("Targets", _targets(study)),
        _section("Worst rows", _worst(study, worst)),
        f'<p class="note">Reproduce with <code>{escape(study.command)}</code></p>',
        "</main></body>\n</html>\n",
    ]
    return "\n".join(parts)


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{inside}</section>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int) -> str:
    """A table whose first `words` columns are text and whose others are numbers; cells escaped."""

    def line(tag: str, cells: Sequence[str]) -> str:
        marks = ["" if number < words else ' class="n"' for number in range(len(cells))]
        inside = (
            f"<{tag}{mark}>{escape(text)}</{tag}>" for mark, text in zip(marks, cells, strict=True)
        )
        return f"<tr>{''.join(inside)}</tr>"

    body = [line("th", head), *(line("td", row) for row in rows)]
    return "<table>" + "\n".join(body) + "</table>"


def _svg(plot: Scatter) -> str:
    title = escape(plot.title)
    drawn = [
        f'<svg viewBox="0 0 {plot.width:g} {plot.height:g}" width="{plot.width:g}" role="img" '
        f'aria-label="{title}">'
    ]
    for t in plot.ticks:
        label = escape(t.label)
        drawn.append(
            f'<line x1="{t.place}" x2="{t.place}" y1="{plot.top}" y2="{plot.bottom}" '
            f'stroke="#eef1f4"/><line x1="{plot.left}" x2="{plot.right}" y1="{t.height}" '
            f'y2="{t.height}" stroke="#eef1f4"/><text x="{t.place}" y="{plot.bottom + 15}" '
            f'text-anchor="middle">{label}</text><text x="{plot.left - 6}" y="{t.height + 4}" '
            f'text-anchor="end">{label}</text>'
        )
    for rule in plot.lines:
        dashes = ' stroke-dasharray="4 4"' if rule.dashed else ""
        drawn.append(
            f'<line x1="{rule.x1}" y1="{rule.y1}" x2="{rule.x2}" y2="{rule.y2}" '
            f'stroke="#8a97a5"{dashes}/>'
        )
    drawn += [
        f'<circle cx="{p.x}" cy="{p.y}" r="3" fill="{p.colour}" fill-opacity=".55">'
        f"<title>{escape(p.title)}</title></circle>"
        for p in plot.points
    ]
    across, down = (plot.left + plot.right) / 2, (plot.top + plot.bottom) / 2
    drawn.append(
        f'<text x="{across}" y="{plot.height - 4}" text-anchor="middle">measured</text>'
        f'<text x="12" y="{down}" transform="rotate(-90 12 {down})" '
        'text-anchor="middle">predicted</text></svg>'
    )
    key = "".join(
        f'<span><i style="background:{k.colour}"></i>{escape(k.name)} ({k.count})</span>'
        for k in plot.key
    )
    return "\n".join(drawn) + f'\n<div class="key">{key}</div>\n<p class="note">{_NOTE}</p>'


def _times(study: AccuracyStudy) -> Scatter | None:
    samples = [
        _sample(row, row.measured.step_time_s, row.predicted.step_time_s, memory=False)
        for row in study.rows
    ]
    known = [sample for sample in samples if sample is not None]
    return scatter("Step time, predicted against measured", known, format_time)


def _memory(study: AccuracyStudy) -> Scatter | None:
    samples = [
        _sample(row, row.measured.peak_memory_gib, row.predicted.peak_memory_gib, memory=True)
        for row in study.rows
    ]
    known = [sample for sample in samples if sample is not None]
    return scatter("Peak memory, predicted against measured", known, _gib)


def _sample(
    row: ComparedRun, measured: float | None, predicted: float | None, *, memory: bool
) -> Sample | None:
    if not measured or not predicted:
        return None
    said = _gib if memory else format_time
    error = percent(predicted / measured - 1.0, signed=True)
    title = f"{row.run.id}: measured {said(measured)}, predicted {said(predicted)} ({error})"
    return Sample(group=source_of(row.run.id), measured=measured, predicted=predicted, title=title)


def _gib(value: float) -> str:
    return f"{value:.4g} GiB"


def _sources(study: AccuracyStudy) -> str:
    head = (
        "source",
        "rows",
        "predicted",
        "mean",
        "median",
        "bias",
        "intervals hold",
        "memory, mean",
        "45 % of peak, mean",
    )
    rows = []
    for source in sorted({source_of(row.run.id) for row in study.rows}):
        whole = accuracy([r for r in study.rows if source_of(r.run.id) == source])
        dumb = step_time_summary(r for r in study.baseline if source_of(r.run.id) == source)
        step = whole.step_time
        rows.append(
            (
                source,
                str(whole.rows),
                percent(whole.predicted_share),
                percent(step.mean_absolute),
                percent(step.median_absolute),
                percent(step.bias, signed=True),
                percent(step.interval_coverage),
                percent(whole.memory.mean_absolute),
                percent(dumb.mean_absolute),
            )
        )
    return _table(head, rows, words=1)


def _targets(study: AccuracyStudy) -> str:
    rows = []
    for result in outcomes(study):
        target = result.target
        times = f"{target.statistic} {percent(result.step_time)}"
        rows.append(
            (
                target.name,
                target.to_beat or "-",
                str(result.compared),
                _with_target(times, target.step_time),
                _with_target(percent(result.bias, signed=True), target.bias),
                _with_target(percent(result.memory), target.memory),
                "yes" if result.met else "no",
            )
        )
    head = ("rows", "others reach", "n", "step time", "bias", "memory", "met")
    return _table(head, rows, words=2)


def _with_target(reached: str, target: float | None) -> str:
    return "-" if target is None else f"{reached} (target {percent(target)})"


def _worst(study: AccuracyStudy, count: int) -> str:
    rows = []
    for row in worst_rows(study.rows, count):
        error = row.step_time_error
        rows.append(
            (
                row.run.id,
                row.run.model,
                device_of(row.run),
                format_time(row.measured.step_time_s or 0.0),
                format_time(row.predicted.step_time_s or 0.0),
                "-" if error is None else percent(error, signed=True),
            )
        )
    return _table(("id", "model", "device", "measured", "predicted", "error"), rows, words=3)
