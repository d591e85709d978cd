"""Makes runs.toml, run_covariance.npz and run_evidence.toml from tables of published runs.

    python -m tools.derive_calibration RUNS.csv [MORE.csv ...]

Deterministic: equal tables give equal files, but for the date.
"""

from __future__ import annotations

import datetime
import math
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np

from evidence.coefficient_fit import Fitted
from evidence.cross_fit import FitTable, LeftOut, fit, fit_table, left_out
from evidence.crossvalidate import plain_folds, source_folds
from evidence.fit_spread import covariance_bytes, fitted_places, knowledge_of
from evidence.groups import source_of
from evidence.prospective import Half, half_of
from profiles.document import write_bytes, write_text
from shardwright.runs.run_table import read_measured, read_runs
from simulator.training_run.fit.evidence import EVIDENCE_FILE, EVIDENCE_SCHEMA, evidence_name
from simulator.training_run.fit.step_spread import COVARIANCE_FILE
from simulator.training_run.step.coefficient_kinds import KINDS
from simulator.training_run.step.coefficients import COEFFICIENTS_FILE, COEFFICIENTS_SCHEMA
from simulator.training_run.step.step_slopes import log_slopes

# Half width of a 90 % interval of a normal distribution, in standard deviations.
NORMAL_QUANTILE = 1.645
# Rows of one source at most that count for the quantile.
_ROWS_OF_A_SOURCE = 5
# Why a coefficient may lie at a limit or more than two prior widths from its start.
_REASONS = {
    "power.a100-sxm-80gb.16": "an A100 is not power limited: its long matmuls reach 0.87 of the "
    "peak, a factor of 1.15 (profiles/hardware/kernels/gemm_surface.py)",
    "grouped.*": "the start contains no uneven routing; the fullest rank of a layer sets the pace "
    "(six sources with experts)",
}
# A coefficient within this factor of a limit is at it.
_AT_LIMIT = 1.001


def main() -> None:
    """Fit, cross-validate, write the files, and print the errors."""
    paths = [Path(name) for name in sys.argv[1:]]
    published = tuple(run for path in paths for run in read_runs(path, lenient=True))
    measured = tuple(row for path in paths for row in read_measured(path))
    table = learned(fit_table(published, measured))
    fitted = fit(table)
    today = datetime.date.today().isoformat()
    unseen = left_out(table, source_folds(table.published), start=fitted)
    quantile = quantile_of(table, unseen)
    write_text(COEFFICIENTS_FILE, coefficients_text(table, fitted, quantile, today))
    known = knowledge_of(table.assigned, fitted, np.flatnonzero(table.weights > 0))
    write_bytes(COVARIANCE_FILE, covariance_bytes(known.names, known.covariance))
    write_text(EVIDENCE_FILE, evidence_text(table, today))
    five = left_out(table, plain_folds(table.published), start=fitted, own=True)
    for title, found in (("5-fold, own effect", five), ("source left out", unseen)):
        _say_errors(title, table, found, quantile)
    for problem in doubtful(table, fitted):
        sys.stdout.write(f"doubtful: {problem}\n")


def learned(table: FitTable) -> FitTable:
    """The table without the rows of locked sources (validate/prospective.py)."""
    locked = np.asarray([half_of(source) is Half.LOCKED for source in table.origin.sources])
    return replace(table, weights=np.where(locked, 0.0, table.weights))


def quantile_of(table: FitTable, unseen: LeftOut) -> float:
    """Half width of a 90 % interval in standard deviations: the one that contains nine of ten rows
    of sources that were left out, a source weighing `_ROWS_OF_A_SOURCE` rows at most. Not less than
    that of a normal distribution."""
    rows = np.flatnonzero((table.weights > 0) & np.isfinite(unseen.time_s))
    if not rows.size:
        return NORMAL_QUANTILE
    misses = np.abs(np.log(table.measured_s / unseen.time_s))[rows] / unseen.spread[rows]
    sources = [table.origin.sources[i] for i in rows.tolist()]
    weights = np.asarray([min(1.0, _ROWS_OF_A_SOURCE / sources.count(s)) for s in sources])
    order = np.argsort(misses)
    total = np.cumsum(weights[order])
    return max(NORMAL_QUANTILE, float(misses[order][np.searchsorted(total, 0.9 * total[-1])]))


def determined_by(table: FitTable, fitted: Fitted) -> dict[str, int]:
    """By coefficient the number of sources of which at least one row's step depends on it by 1 % or
    more for a change of one prior width."""
    slopes = log_slopes(table.features, table.assigned.of(fitted.values))
    found: dict[str, set[str]] = {name: set() for name in table.assigned.names}
    for kind in KINDS:
        index = table.assigned.index[kind.name]
        felt = (np.abs(slopes[kind.name]) * kind.spread > 0.01) & (table.weights > 0)
        for row in np.flatnonzero(felt).tolist():
            found[table.assigned.names[index[row]]].add(table.origin.sources[row])
    return {name: len(sources) for name, sources in found.items()}


def doubtful(table: FitTable, fitted: Fitted) -> list[str]:
    """Coefficients at a limit or more than two prior widths from their start, with the reason."""
    found = []
    values = zip(table.assigned.names, table.assigned.kinds, fitted.values.tolist(), strict=True)
    for name, number, value in values:
        kind = KINDS[number]
        widths = math.log(value / kind.start) / kind.spread
        reason = _REASONS.get(name, "not explained")
        if value <= kind.least * _AT_LIMIT or value * _AT_LIMIT >= kind.most:
            found.append(f"{name} = {value:.4g} is at a limit: {reason}")
        elif abs(widths) > 2.0:
            found.append(
                f"{name} = {value:.4g} is {widths:+.1f} prior widths from {kind.start:g}: {reason}"
            )
    return found


def _say_errors(title: str, table: FitTable, found: LeftOut, quantile: float) -> None:
    """Errors and interval coverage of step times by source."""
    sources = np.asarray(table.origin.sources)
    miss = np.log(found.time_s / table.measured_s)
    inside = np.abs(miss) <= quantile * found.spread
    medians = []
    for name in sorted(set(sources[table.weights > 0].tolist())):
        mine = sources == name
        error = np.expm1(miss[mine])
        medians.append(float(np.median(np.abs(error))))
        sys.stdout.write(
            f"{title}, {name}: {mine.sum()} rows, median {medians[-1]:.1%}, mean "
            f"{np.abs(error).mean():.1%}, bias {np.median(error):+.1%}, inside "
            f"{inside[mine].mean():.1%}\n"
        )
    sys.stdout.write(f"{title}: median of {len(medians)} sources {np.median(medians):.1%}\n")


def coefficients_text(table: FitTable, fitted: Fitted, quantile: float, today: str) -> str:
    """profiles/data/calibration/runs.toml."""
    used = np.flatnonzero(table.weights > 0)
    sources = sorted({table.origin.sources[i] for i in used.tolist()})
    variances = fitted.variances
    lines = [
        "# Coefficients of described runs, made by tools/derive_calibration.py. Meanings and units",
        "# are in profiles/data/coefficient_kinds.toml, fields in coefficients.py. A",
        "# name that ends in .* is the value of all owners or of a family of devices.",
        f'schema = "{COEFFICIENTS_SCHEMA}"',
        f'source = "step times of published runs: {", ".join(sources)}"',
        'method = "hierarchical model with source effects, Cauchy likelihood '
        '(evidence/coefficient_fit.py)"',
        f'date = "{today}"',
        f"runs = {used.size}",
        f"residual = {fitted.residual:.4f}",
        f"cluster = {variances.cluster:.4f}",
        f"noise = {variances.noise:.4f}",
        f"quantile = {quantile:.3f}",
        "",
        "[values]",
    ]
    names = (*table.assigned.names, *table.assigned.family_kinds)
    values = (*fitted.values.tolist(), *fitted.family_values.tolist())
    own = {names[i]: values[i] for i in fitted_places(table.assigned, used)}
    lines += [f'"{name}" = {value:.5g}' for name, value in sorted(own.items())]
    notes = [textwrap.wrap(each, 98) for each in doubtful(table, fitted)]
    lines += [f"# {line}" for each in notes for line in each]
    lines += ["", "[between]"]
    lines += [f"{kind} = {value:.4f}" for kind, value in sorted(variances.between.items())]
    lines += ["", "[sources_of]"]
    counts = determined_by(table, fitted)
    lines += [f'"{name}" = {counts[name]}' for name in sorted(own) if name in counts]
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


if __name__ == "__main__":
    main()
