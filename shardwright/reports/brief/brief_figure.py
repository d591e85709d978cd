"""Pictures and bar charts of a brief on pages for print, with matplotlib."""

from __future__ import annotations

import math
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiles.errors import InputError
from profiles.extras import need_package
from shardwright.reports.brief.brief import BarChart, Brief
from shardwright.reports.brief.brief_html import WRITTEN
from shardwright.reports.picture import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".pdf", ".png", ".svg")
_WIDTH = 8.27  # inches, of A4
_PICTURE_INCHES, _BAR_INCHES, _CHART_INCHES = 2.9, 0.21, 0.85
_TITLE_INCHES = 0.8
_LABELS_INCHES, _WORDS_INCHES = 1.9, 1.1  # left and right of bars
_ROOM = 11.69 - _TITLE_INCHES
_STEP = re.compile(r"([MLHVhvZz])([-\d. ]*)")


def write_brief_figure(path: Path, brief: Brief) -> None:
    """Writes a PDF of A4 pages, or one long page as .png or .svg.

    Raises InputError for another file extension, and without charts (`has_charts`).
    """
    need_format(path)
    rows = _rows(brief)
    most = _ROOM if path.suffix.lower() == ".pdf" else math.inf
    import matplotlib as mpl
    from matplotlib.backends.backend_pdf import PdfPages

    with mpl.rc_context({"svg.hashsalt": "shardwright", "font.size": 8}):
        figures = [_page(brief, some, most) for some in _paged(rows, most)]
        # No date in the files, so that equal figures give equal bytes.
        if path.suffix.lower() == ".pdf":
            with PdfPages(path, metadata={"CreationDate": None}) as pages:
                for figure in figures:
                    pages.savefig(figure, dpi=200)
            return
        metadata: dict[str, Any] = {".svg": {"Date": None}, ".png": {"Software": None}}
        figures[0].savefig(path, metadata=metadata[path.suffix.lower()], dpi=200)


def need_format(path: Path) -> None:
    """Raises InputError for an ending other than FORMATS, and if matplotlib is not installed."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(
            f"{path}: matplotlib writes {', '.join(FORMATS)} here; give one of these endings"
        )
    need_package("matplotlib", f"the figure {path}")


def has_charts(brief: Brief) -> bool:
    """Whether there is anything to draw; false if nothing fits."""
    return any(section.pictures or section.bars for section in brief.sections)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Two pictures side by side, or one chart of bars."""

    height: float
    pictures: tuple[Picture, ...] = ()
    chart: BarChart | None = None


def _rows(brief: Brief) -> list[_Row]:
    rows = []
    for section in brief.sections:
        small = [one for one in section.pictures if not one.wide]
        for at in range(0, len(small), 2):
            rows.append(_Row(height=_PICTURE_INCHES, pictures=tuple(small[at : at + 2])))
        for one in section.pictures:
            if one.wide:
                keys = 20.0 * len(one.key)
                height = 0.3 + _WIDTH * (one.height + keys) / one.width
                rows.append(_Row(height=min(height, _ROOM), pictures=(one,)))
        for chart in section.bars:
            rows.append(_Row(height=_CHART_INCHES + _BAR_INCHES * len(chart.bars), chart=chart))
    if not rows:
        raise InputError(f"there is nothing to draw: {brief.headline}")
    return rows


def _paged(rows: list[_Row], most: float) -> list[list[_Row]]:
    """The rows by page, in order; each page is filled to the height `most`."""
    pages: list[list[_Row]] = [[]]
    for row in rows:
        if pages[-1] and sum(one.height for one in pages[-1]) + row.height > most:
            pages.append([])
        pages[-1].append(row)
    return pages


def _page(brief: Brief, rows: list[_Row], most: float) -> Figure:
    """One page as a matplotlib figure."""
    from matplotlib.figure import Figure

    used = _TITLE_INCHES + sum(row.height for row in rows)
    height = max(used, most + _TITLE_INCHES) if math.isfinite(most) else used
    title = textwrap.fill(brief.title, 90)
    headline = textwrap.fill(brief.headline, 118)
    figure = Figure(figsize=(_WIDTH, height))
    figure.suptitle(
        f"{title}\n{headline}",
        fontsize=9,
        x=0.02,
        y=1 - 0.1 / height,
        ha="left",
        va="top",
        parse_math=False,
    )

    def axes(left: float, right: float, foot: float, head: float) -> Any:
        # All in inches. A layout engine would place them differently from one run to the next.
        return figure.add_axes(
            (left / _WIDTH, foot / height, (right - left) / _WIDTH, (head - foot) / height)
        )

    head = height - _TITLE_INCHES
    for row in rows:
        foot = head - row.height
        if row.chart is not None:
            place = (_LABELS_INCHES, _WIDTH - _WORDS_INCHES, foot + 0.42, head - 0.26)
            _draw_bars(axes(*place), row.chart)
        width = (_WIDTH - 0.2) / (1 if row.pictures and row.pictures[0].wide else 2)
        for column, picture in enumerate(row.pictures):
            left = 0.1 + column * width
            _draw_picture(axes(left, left + width, foot, head - 0.1), picture)
        head = foot
    return figure


def _draw_picture(axes: Any, picture: Picture) -> None:
    """Draws the picture in its own coordinates, so that it equals the HTML page."""
    below = 20.0 * len(picture.key)
    axes.set_xlim(0, picture.width)
    axes.set_ylim(picture.height + below, 0)
    axes.set_aspect("equal")
    axes.axis("off")
    for path in picture.grid:
        for xs, ys in _lines(path.data):
            axes.plot(xs, ys, color=path.colour, linewidth=0.5)
    for box in picture.boxes:
        right, foot = box.x + box.width, box.y + box.height
        axes.fill((box.x, right, right, box.x), (box.y, box.y, foot, foot), color=box.colour)
    for path in picture.paths:
        style = "--" if path.dashed else "-"
        for xs, ys in _lines(path.data):
            if path.filled:
                axes.fill(xs, ys, color=path.colour, alpha=0.8, linewidth=0)
            else:
                axes.plot(xs, ys, color=path.colour, linewidth=0.6 * path.width, linestyle=style)
    sides = {"start": "left", "middle": "center", "end": "right"}
    for label in picture.labels:
        weight = "bold" if label.strong else "normal"
        side = sides[label.anchor]
        axes.text(
            *(label.x, label.y, label.text), fontsize=6, ha=side, weight=weight, parse_math=False
        )
    for box in picture.boxes:
        middle, foot = box.x + box.width / 2, box.y + 0.7 * box.height
        axes.text(*(middle, foot, box.label), fontsize=5, ha="center", color="white")
    for number, entry in enumerate(picture.key):
        y = picture.height + 20.0 * number
        if entry.shape in ("line", "dash"):
            style = "--" if entry.shape == "dash" else "-"
            axes.plot((picture.left, picture.left + 22), (y, y), style, color=entry.colour, lw=1)
        else:
            marker = {"ring": "o", "diamond": "D"}.get(entry.shape, "s")
            axes.plot([picture.left + 11], [y], marker, color=entry.colour, markersize=4)
        axes.text(*(picture.left + 30, y, entry.name), fontsize=6, va="center", parse_math=False)


def _lines(data: str) -> list[tuple[list[float], list[float]]]:
    """The corners, x and y, of each line of path data (M, L, H, V, h, v and Z)."""
    lines: list[tuple[list[float], list[float]]] = []
    x = y = 0.0
    for command, text in _STEP.findall(data):
        numbers = [float(number) for number in text.split()]
        if command == "M":
            lines.append(([], []))
        xs, ys = lines[-1]
        if command in "ML":
            x, y = numbers
        elif command in "Hh":
            x = numbers[0] if command == "H" else x + numbers[0]
        elif command in "Vv":
            y = numbers[0] if command == "V" else y + numbers[0]
        else:
            x, y = xs[0], ys[0]
        xs.append(x)
        ys.append(y)
    return lines


def _draw_bars(axes: Any, chart: BarChart) -> None:
    low, high = chart.ends
    least = 0.004 * (high - low)
    for lane, bar in enumerate(chart.bars):
        left, right = sorted((bar.low, bar.high))
        axes.barh(lane, max(right - left, least), left=left, color=bar.colour, height=0.7)
        axes.annotate(
            bar.words,
            (1.01, lane),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=6.5,
            parse_math=False,
        )
    if chart.mark is not None:
        axes.axvline(chart.mark, color="black", linestyle="--", linewidth=0.9)
    axes.set_yticks(range(len(chart.bars)))
    axes.set_yticklabels(
        [textwrap.shorten(bar.name, 52) for bar in chart.bars], fontsize=6.5, parse_math=False
    )
    axes.invert_yaxis()
    axes.set_xlim(low - (0.02 * (high - low) if low else 0.0), high * 1.02 if high > 0 else 0.0)
    unit = chart.unit if not chart.mark_words else f"{chart.unit} (dashed: {chart.mark_words})"
    axes.set_xlabel(unit, fontsize=6.5, parse_math=False)
    axes.tick_params(axis="x", labelsize=6.5)
    axes.locator_params(axis="x", nbins=7)
    if chart.unit in WRITTEN:
        written = WRITTEN[chart.unit]
        axes.xaxis.set_major_formatter(lambda value, _: written(value))
    axes.set_title(chart.title, fontsize=7.5, loc="left", parse_math=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
