"""The accuracy page in HTML: the Markdown page with scatter plots, one self-contained file."""

from __future__ import annotations

from markdown_it import MarkdownIt

from evidence.accuracy_markdown import accuracy_markdown
from evidence.groups import source_of
from evidence.scatter import Sample, scatter_svg
from evidence.study import AccuracyStudy
from profiles.units import format_time
from shardwright.reports.html import template
from shardwright.reports.markdown_table import percent

WORST = 30


def accuracy_html(study: AccuracyStudy) -> str:
    """The Markdown page of the study as HTML, with two scatter plots."""
    # Markup in the text is escaped (html=False in this preset) and no address becomes a link.
    markdown = MarkdownIt("js-default")
    head, *sections = accuracy_markdown(study, worst=WORST).split("\n## ")
    return str(
        template("accuracy.html.j2").render(
            head=markdown.render(head),
            plots=_plots(study),
            sections=[markdown.render("## " + text) for text in sections],
        )
    )


def _plots(study: AccuracyStudy) -> list[tuple[str, str]]:
    """(title, picture) of step times and of peaks; no picture without a compared row."""
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
            plots.append((title, scatter_svg(title, samples, label)))
    return plots


def _gib(value: float) -> str:
    return f"{value:.4g} GiB"
