"""Makes profiles/data/calibration/*.toml from tables of published runs.

    python -m tools.derive_calibration RUNS.csv [MORE.csv ...]

Deterministic: equal tables give equal files, but for the date.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from profiles.document import write_bytes, write_text
from profiles.published.measured import read_measured
from profiles.published.run import FIGURES
from profiles.published.run_table import read_runs
from shardwright.validate.cross_fit import (
    FitTable,
    fit,
    fit_table,
    information_of,
    left_out,
    predicted_s,
)
from shardwright.validate.crossvalidate import plain_folds, source_folds
from shardwright.validate.groups import source_of
from shardwright.validate.memory_fit import (
    MemoryTable,
    fit_memory,
    left_out_bytes,
    left_out_intervals,
    memory_table,
    predicted_bytes,
    ratios_by_regime,
)
from shardwright.validate.source_interval import fold_intervals, source_intervals, step_bands
from simulator.training_run.fit.evidence import EVIDENCE_FILE, EVIDENCE_SCHEMA, evidence_name
from simulator.training_run.fit.fit import Fitted
from simulator.training_run.fit.interval import (
    FEWEST,
    INTERVALS_FILE,
    INTERVALS_SCHEMA,
    Band,
    StepBands,
    band_of,
    bands,
    shipped_intervals,
)
from simulator.training_run.fit.step_spread import INFORMATION_FILE, information_bytes
from simulator.training_run.framework.framework import framework_names, load_framework, memory_of
from simulator.training_run.memory.footprint import footprint
from simulator.training_run.step.coefficient_kinds import KINDS
from simulator.training_run.step.coefficients import (
    COEFFICIENTS_FILE,
    COEFFICIENTS_SCHEMA,
    CoefficientFile,
)
from simulator.values.prediction import Interval


def main() -> None:
    """Fit, cross-validate, write the files, and say what came out."""
    paths = [Path(name) for name in sys.argv[1:]]
    published = tuple(run for path in paths for run in read_runs(path, lenient=True))
    measured = tuple(row for path in paths for row in read_measured(path))
    table = fit_table(published, measured)
    fitted = fit(table)
    today = datetime.date.today().isoformat()
    write_text(COEFFICIENTS_FILE, _coefficients(table, fitted, today))
    write_bytes(INFORMATION_FILE, information_bytes(information_of(table, fitted)))
    write_text(EVIDENCE_FILE, evidence_text(table, today))
    five = left_out(table, plain_folds(table.published), start=fitted.values)
    unseen = left_out(table, source_folds(table.published), start=fitted.values)
    # Rows that may all stall tell nothing of other steps.
    step = step_bands(table, five, unseen) or shipped_intervals().step
    peaks = memory_table(published, measured)
    memory_folds = plain_folds(peaks.published)
    left = left_out_bytes(peaks, memory_folds)
    memory = bands(ratios_by_regime(peaks, left))
    memory = _peaks_elsewhere(FIGURES, memory) | memory
    write_text(INTERVALS_FILE, _intervals(step, memory, today))
    _say_memory(peaks, left, left_out_intervals(peaks, left, memory_folds))
    _say_held("5-fold", table, fold_intervals(table, five, step))
    _say_held("source left out", table, source_intervals(table, five, unseen))
    _say_errors(table, predicted_s(table, fitted.values), five.time_s)


def _say_errors(table: FitTable, shipped: np.ndarray, five: np.ndarray) -> None:
    """Mean and median errors of step times by source, in-sample and 5-fold."""
    sources = np.asarray([source_of(run.id) for run in table.published])
    for name in ("", *sorted(set(sources.tolist()))):
        mine = (sources == name) if name else np.ones(len(sources), dtype=bool)
        words = []
        for how, found in (("in-sample", shipped), ("5-fold", five)):
            error = np.abs(found[mine] / table.measured_s[mine] - 1)
            words.append(f"{how} mean {error.mean():.1%}, median {np.median(error):.1%}")
        sys.stdout.write(f"step {name or 'all'}: {mine.sum()} rows, {', '.join(words)}\n")


def _say_held(title: str, table: FitTable, intervals: Sequence[Interval]) -> None:
    """What intervals hold, by source, on average over sources, and of all rows."""
    held = coverage_by_source(table, intervals)
    for name, share in held.items():
        sys.stdout.write(f"{title}, {name}: intervals hold {share:.1%}\n")
    pairs = zip(table.measured_s.tolist(), intervals, strict=True)
    rows = np.mean([band.low <= time_s <= band.high for time_s, band in pairs])
    sys.stdout.write(
        f"{title}: intervals hold {np.mean(list(held.values())):.1%} on average over sources, "
        f"{rows:.1%} of the rows\n"
    )


def _say_memory(table: MemoryTable, left: np.ndarray, intervals: Sequence[Interval]) -> None:
    """Errors and coverage of peaks that were left out, by source."""
    sources = np.asarray([source_of(run.id) for run in table.published])
    pairs = zip(table.measured.tolist(), intervals, strict=True)
    inside = np.asarray([band.low <= peak <= band.high for peak, band in pairs])
    shipped = predicted_bytes(table, fit_memory(table))
    for name in ("", *sorted(set(sources.tolist()))):
        mine = (sources == name) if name else np.ones(len(sources), dtype=bool)
        errors = [np.abs(found[mine] / table.measured[mine] - 1) for found in (shipped, left)]
        sys.stdout.write(
            f"memory {name or 'all'}: {mine.sum()} rows, in-sample {errors[0].mean():.1%}, 5-fold "
            f"{errors[1].mean():.1%}, median {np.median(errors[1]):.1%}, intervals hold "
            f"{inside[mine].mean():.1%}\n"
        )


def _coefficients(table: FitTable, fitted: Fitted, today: str) -> str:
    sources = sorted({source_of(run.id) for run in table.runs})
    file = CoefficientFile(
        source=f"step times of published runs: {', '.join(sources)}",
        method="hierarchical least squares of log(predicted / measured), Cauchy's loss "
        "(fit/fit.py)",
        date=today,
        runs=int((table.weights > 0).sum()),
        residual=round(fitted.residual, 4),
    )
    lines = [
        "# The coefficients of described runs; meanings in step/coefficients.py.",
        "# Made by tools/derive_calibration.py; `runs` is the number of rows fitted",
        "# on, `residual` their mean absolute relative error. A name that ends in .* is the value",
        "# of its family or kind, for devices, stacks and networks without one of their own.",
        f'schema = "{COEFFICIENTS_SCHEMA}"',
        f'source = "{file.source}"',
        f'method = "{file.method}"',
        f'date = "{file.date}"',
        f"runs = {file.runs}",
        f"residual = {file.residual}",
        "",
        "[values]",
    ]
    used = np.flatnonzero(table.weights > 0)
    touched = {i for index in table.assigned.index.values() for i in index[used].tolist()}
    own = {name: fitted.values[i] for i, name in enumerate(table.assigned.names) if i in touched}
    families = zip(table.assigned.family_names, fitted.family_values.tolist(), strict=True)
    own |= dict(families)
    for kind in KINDS:
        own.setdefault(f"{kind.name}.*", fitted.kind_values[kind.name])
    lines += [f'"{name}" = {value:.5g}' for name, value in sorted(own.items())]
    return "\n".join(lines) + "\n"


def evidence_text(table: FitTable, today: str) -> str:
    """profiles/data/calibration/run_evidence.toml: the fitted rows by framework and device."""
    found: dict[str, list[str]] = {}
    for run, weight in zip(table.runs, table.weights.tolist(), strict=True):
        if weight > 0:
            found.setdefault(evidence_name(run), []).append(source_of(run.id))
    lines = [
        "# How many fitted runs, of which sources, know a framework on a device. Made by",
        "# tools/derive_calibration.py.",
        f'schema = "{EVIDENCE_SCHEMA}"',
        f'date = "{today}"',
        "",
        "[step]",
    ]
    for name, sources in sorted(found.items()):
        listed = ", ".join(f'"{source}"' for source in sorted(set(sources)))
        lines.append(f'"{name}" = {{ runs = {len(sources)}, sources = [{listed}] }}')
    return "\n".join(lines) + "\n"


def _intervals(step: StepBands, memory: dict[str, Band], today: str) -> str:
    lines = [
        "# Bands of measured over predicted on rows that were left out",
        "# (simulator/training_run/fit/interval.py). Made by",
        "# tools/derive_calibration.py.",
        f'schema = "{INTERVALS_SCHEMA}"',
        'source = "the published runs that the coefficients are fitted on"',
        'method = "of steps quantiles of a two-piece t-distribution of residuals in widths '
        "(fit/interval.py), rows left out with their source and 5-fold; split conformal of stalled "
        'steps and of memory 5-fold (memory of torchtitan: profiles/data/published/figures.csv)"',
        f'date = "{today}"',
        "",
        "[step]",
        f"low = {step.low:.4f}",
        f"high = {step.high:.4f}",
        f"ceiling = {step.ceiling:.4f}",
        f"rows = {step.rows}",
        f"sources = {step.sources}",
    ]
    for title, table in (("step.stalled", step.stalled), ("memory", memory)):
        lines += ["", f"[{title}]"]
        for name, band in table.items():
            lines.append(
                f'"{name}" = {{ low = {band.low:.4f}, high = {band.high:.4f}, rows = {band.rows} }}'
            )
    return "\n".join(lines) + "\n"


def _peaks_elsewhere(path: Path, known: Mapping[str, Band]) -> dict[str, Band]:
    """Memory of a framework -> band, of those without one whose framework the table at `path` has
    enough peaks of, sharded in whatever way.

    Nothing is fitted on these rows, so that their residuals are those of rows left out.
    """
    table = memory_table(read_runs(path, lenient=True), read_measured(path))
    ratios: dict[str, list[float]] = {}
    for run, measured in zip(table.runs, table.measured.tolist(), strict=True):
        shown = footprint(run).shown_bytes
        ratios.setdefault(_maker(memory_of(run).name), []).append(measured / shown)
    names = {each.name for name in framework_names() for each in load_framework(name).memory}
    return {
        name: band_of(ratios[_maker(name)])
        for name in sorted(names - set(known))
        if len(ratios.get(_maker(name), ())) >= FEWEST
    }


def _maker(name: str) -> str:
    return name.partition("-")[0]


def coverage_by_source(table: FitTable, intervals: Iterable[Interval]) -> dict[str, float]:
    """Share of each source's measured step times that lie in their intervals."""
    inside: dict[str, list[bool]] = {}
    for run, measured, band in zip(table.runs, table.measured_s, intervals, strict=True):
        inside.setdefault(source_of(run.id), []).append(bool(band.low <= measured <= band.high))
    return {name: float(np.mean(found)) for name, found in sorted(inside.items())}


if __name__ == "__main__":
    main()
