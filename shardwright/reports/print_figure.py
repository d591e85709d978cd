"""`print_figure`: a plan's step on one page for print (PNG, PDF, SVG), drawn by matplotlib.

The interactive report has pictures of its own (timeline_picture.py, memory_picture.py); this is for
papers and slides, where a fixed page is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiles.errors import InputError
from profiles.extras import need_package
from shardwright.analysis.breakdown import critical_rank, measured_parts, predicted_parts
from shardwright.analysis.plan_sheet import MEMORY_PARTS
from shardwright.reports.picture import COLOURS
from shardwright.reports.timeline_picture import kind_of
from simulator.values.measurement import Measurement
from simulator.values.plan_file import PlanFile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".pdf", ".png", ".svg")
_MOST_RANKS = 8
_GIB = 2**30


def write_print_figure(path: Path, answer: PlanFile, measured: Measurement | None = None) -> None:
    """Writes the page; raises InputError for an ending other than FORMATS or an answer without a
    plan."""
    need_format(path)
    save_pages(path, lambda: [print_figure(answer, measured)])


def need_format(path: Path) -> None:
    """Raises InputError for an ending other than FORMATS, and if matplotlib is not installed."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(
            f"{path}: matplotlib writes {', '.join(FORMATS)} here; give one of these endings"
        )
    need_package("matplotlib", f"the figure {path}")


def save_pages(path: Path, drawn: Callable[[], Sequence[Figure]]) -> None:
    """Draws and writes pages in the format of the ending, one of FORMATS; equal figures give equal
    bytes. More than one page only as .pdf."""
    import matplotlib as mpl
    from matplotlib.backends.backend_pdf import PdfPages

    with mpl.rc_context({"svg.hashsalt": "shardwright", "font.size": 8}):
        figures = drawn()
        # No date in the files.
        if path.suffix.lower() == ".pdf":
            with PdfPages(path, metadata={"CreationDate": None}) as pages:
                for figure in figures:
                    pages.savefig(figure, dpi=200)
            return
        metadata: dict[str, Any] = {".svg": {"Date": None}, ".png": {"Software": None}}
        figures[0].savefig(path, metadata=metadata[path.suffix.lower()], dpi=200)


def blank_page(width_inches: float, height_inches: float) -> Figure:
    """A page without anything on it."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def print_figure(answer: PlanFile, measured: Measurement | None = None) -> Figure:
    """Timeline, time by part of the critical rank and peak memory by rank; a run's beside them."""
    if answer.plan is None or answer.prediction is None:
        raise InputError(f"there is nothing to draw: the answer's status is {answer.status!r}")
    figure = blank_page(7.5, 6.5)
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 2))
    _timeline(figure.add_subplot(grid[0, :]), answer, measured)
    _parts(figure.add_subplot(grid[1, 0]), answer, measured)
    _memory(figure.add_subplot(grid[1, 1]), answer, measured)
    return figure


def _timeline(axes: Any, answer: PlanFile, measured: Measurement | None) -> None:
    assert answer.prediction is not None
    groups = [("predicted", answer.prediction.events)]
    if measured is not None and measured.events:
        groups.append(("measured", measured.events))
    lanes: list[str] = []
    seen: set[str] = set()
    for group, events in groups:
        ranks = sorted({event.rank for event in events})
        for rank in ranks[:_MOST_RANKS]:
            lane = len(lanes)
            lanes.append(f"{group} {rank}" if len(groups) > 1 else f"rank {rank}")
            bars: dict[str, list[tuple[float, float]]] = {}
            for event in events:
                kind = kind_of(event)
                if event.rank == rank and kind and kind != "send":
                    bars.setdefault(kind, []).append((event.start_s, event.end_s - event.start_s))
            for kind, spans in bars.items():
                label = None if kind in seen else kind.replace("_", " ")
                seen.add(kind)
                axes.broken_barh(
                    spans, (lane - 0.4, 0.8), color=COLOURS[kind], label=label, linewidth=0
                )
    axes.set_yticks(range(len(lanes)), lanes)
    axes.invert_yaxis()
    axes.set_xlabel("seconds from the start of the step")
    axes.set_title("One step")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=6, frameon=False)


def _parts(axes: Any, answer: PlanFile, measured: Measurement | None) -> None:
    assert answer.plan is not None
    assert answer.prediction is not None
    rank = critical_rank(answer.prediction)
    rows = {"predicted": {p.rank: p for p in predicted_parts(answer.plan, answer.prediction)}}
    if measured is not None:
        rows["measured"] = {p.rank: p for p in measured_parts(answer.plan, measured)}
    names = ("forward_s", "backward_s", "gradient_exchange_s", "optimizer_s", "waiting_s")
    for lane, (group, parts) in enumerate(rows.items()):
        if rank not in parts:
            continue
        left = 0.0
        for name in names:
            time_s = getattr(parts[rank], name)
            colour = COLOURS.get(name.removesuffix("_s"), "0.85")
            label = name.removesuffix("_s").replace("_", " ") if lane == 0 else None
            axes.barh(group, time_s, left=left, color=colour, label=label)
            left += time_s
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title(f"Rank {rank} by part")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3, frameon=False)


def _memory(axes: Any, answer: PlanFile, measured: Measurement | None) -> None:
    assert answer.prediction is not None
    ranks = answer.prediction.ranks[:_MOST_RANKS]
    names = [str(rank.rank) for rank in ranks]
    below = [0.0] * len(ranks)
    for label, field in MEMORY_PARTS:
        sizes = [getattr(rank, field) / _GIB for rank in ranks]
        axes.bar(names, sizes, bottom=below, label=label, width=0.7)
        below = [base + size for base, size in zip(below, sizes, strict=True)]
    if measured is not None:
        peaks = {sample.rank: sample.peak_memory_bytes / _GIB for sample in measured.ranks}
        known = [(str(r.rank), peaks[r.rank]) for r in ranks if peaks.get(r.rank)]
        if known:
            axes.plot(*zip(*known, strict=True), "k_", markersize=14, label="measured peak")
    axes.set_xlabel("rank")
    axes.set_ylabel("GiB")
    axes.set_title("Peak memory")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3, frameon=False)
