"""The accuracy page in HTML: the Markdown page with scatter plots, one self-contained file."""

from __future__ import annotations

from markdown_it import MarkdownIt

from profiles.units import format_time
from shardwright.validate.accuracy_markdown import accuracy_markdown
from shardwright.validate.groups import source_of
from shardwright.validate.markdown_table import percent
from shardwright.validate.scatter import Sample, scatter_svg
from shardwright.validate.study import AccuracyStudy

WORST = 30
_STYLE = """
:root { --ink:#1d2733; --soft:#5d6b7a; --line:#e3e8ee; --card:#ffffff; --page:#f6f8fa }
* { box-sizing:border-box }
body { margin:0; background:var(--page); color:var(--ink);
  font:15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
main { max-width:1160px; margin:0 auto; padding:28px 24px 60px }
h1 { font-size:24px; margin:0 0 2px } h2 { font-size:17px; margin:0 0 10px }
section { background:var(--card); border:1px solid var(--line); border-radius:10px;
  padding:18px 20px; margin:0 0 18px; overflow-x:auto }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums }
th { text-align:left; color:var(--soft); font-weight:600; font-size:13px;
  border-bottom:1px solid var(--line); padding:4px 10px 6px 0 }
td { padding:5px 10px 5px 0; border-bottom:1px solid #f0f3f6; vertical-align:top }
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


def accuracy_html(study: AccuracyStudy) -> str:
    """The page of the study: what the Markdown page says, behind two scatter plots."""
    # Markup in the text is escaped (html=False in this preset) and no address becomes a link.
    markdown = MarkdownIt("js-default")
    head, *sections = accuracy_markdown(study, worst=WORST).split("\n## ")
    body = [markdown.render(head), *_plots(study)]
    body += [f"<section>{markdown.render('## ' + text)}</section>" for text in sections]
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>Shardwright: accuracy</title>\n<style>{_STYLE}</style>\n</head>\n<body><main>",
            *body,
            "</main></body>\n</html>\n",
        ]
    )


def _plots(study: AccuracyStudy) -> list[str]:
    """Step times and peaks of memory, each where something was measured and predicted."""
    times = [
        (row.run.id, row.measured.step_time_s, row.predicted.step_time_s) for row in study.rows
    ]
    peaks = [
        (row.run.id, row.measured.peak_memory_gib, row.predicted.peak_memory_gib)
        for row in study.rows
    ]
    plots = []
    for what, label, points in (("Step time", format_time, times), ("Peak memory", _gib, peaks)):
        title = f"{what}, predicted against measured"
        samples = [
            Sample(
                group=source_of(run_id),
                measured=measured,
                predicted=predicted,
                title=f"{run_id}: measured {label(measured)}, predicted {label(predicted)} "
                f"({percent(predicted / measured - 1.0, signed=True)})",
            )
            for run_id, measured, predicted in points
            if measured and predicted
        ]
        if samples:
            drawn = scatter_svg(title, samples, label)
            plots.append(
                f'<section><h2>{title}</h2>\n{drawn}\n<p class="note">{_NOTE}</p></section>'
            )
    return plots


def _gib(value: float) -> str:
    return f"{value:.4g} GiB"
