"""Scores on later sources: the split into a learning and a locked half, the scores, the targets.

The model was built before the sources of LATER_SOURCES arrived. One half of them may be fitted and
studied like all earlier sources. The other half is locked: nothing is fitted on it, and only
`tools/open_locked.py` compares predictions with it, which leaves a line in docs/locked_ledger.csv.
The hash of a source's name decides its half, so nobody chose.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median

from evidence.compared_run import ComparedRun
from evidence.groups import device_of, source_of
from shardwright.reports.markdown_table import percent

# Id prefixes of the second batch of later runs (2026-11-24), in order of arrival.
LATER_SOURCES = (
    "kwai",
    "moezoo",
    "vocabpp",
    "xtuner",
    "alcf",
    "mindspeed",
    "llmc",
    "gpurec",
    "swift",
    "mllama",
    "awsome",
    "mds",
    "shmap",
    "tinyllama",
)
# Rows that a source needs for a coverage of its own.
FEWEST_ROWS = 5
_MAINSTREAM_DEVICES = ("a100-", "h100-", "h200-", "a800-", "h800-", "b200-")
_MAINSTREAM_TOKENS = 16384
# Not the default of the layout rules: scores must not move with the model.
_LONG_TOKENS = 32768


class Half(StrEnum):
    """What a source may be used for."""

    LEARNING = "learning"
    LOCKED = "locked"


def locked_sources() -> tuple[str, ...]:
    """The second half of LATER_SOURCES in the order of the SHA-256 digests of their names."""
    ordered = sorted(LATER_SOURCES, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return tuple(ordered[len(ordered) // 2 :])


def half_of(source: str) -> Half:
    """The half of a source (`groups.source_of`); earlier sources are all in the learning half."""
    return Half.LOCKED if source in locked_sources() else Half.LEARNING


def is_locked(run_id: str) -> bool:
    """Whether the run belongs to a locked source."""
    return half_of(source_of(run_id)) is Half.LOCKED


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorScores:
    """Scores of one predicted quantity; nan without a compared row.

    rows, sources     compared rows, and their sources
    median, mean      median over sources of their median absolute error; mean over sources of
                      their mean absolute error
    bias              median over sources of their median signed error
    coverage          share of rows whose measurement is inside the predicted interval
    width             median over rows of the interval's upper bound divided by its lower bound
    source_coverage   coverage of each source with FEWEST_ROWS compared rows or more
    """

    rows: int = 0
    sources: int = 0
    median: float = math.nan
    mean: float = math.nan
    bias: float = math.nan
    coverage: float = math.nan
    width: float = math.nan
    source_coverage: tuple[tuple[str, float], ...] = ()

    @property
    def worst_coverage(self) -> float:
        """The lowest source coverage; nan if no source has enough rows."""
        return min((share for _, share in self.source_coverage), default=math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores of some rows: step times of all rows and of each group, and peak memory.

    rows, unsupported   rows given, and those without a prediction
    step                step times of all rows; the following fields: of the groups of GROUPS
    memory              peak memory of all rows
    """

    rows: int
    unsupported: int
    step: ErrorScores
    mainstream: ErrorScores
    experts: ErrorScores
    long: ErrorScores
    unnamed: ErrorScores
    memory: ErrorScores


def mainstream(row: ComparedRun) -> bool:
    """A dense run of up to 16k tokens on an A100, H100, H200, A800, H800 or B200, graded A or B."""
    run = row.run
    return (
        run.family in ("", "dense")
        and not run.num_experts
        and (run.seq_len is not None and run.seq_len <= _MAINSTREAM_TOKENS)
        and device_of(run).startswith(_MAINSTREAM_DEVICES)
        and row.measured.quality[:1] in ("A", "B")
    )


def has_experts(row: ComparedRun) -> bool:
    """A mixture-of-experts run."""
    return row.run.family == "moe" or bool(row.run.num_experts)


def long_sequence(row: ComparedRun) -> bool:
    """A run on sequences of 32k tokens or more."""
    return row.run.seq_len is not None and row.run.seq_len >= _LONG_TOKENS


def unnamed_megatron(row: ComparedRun) -> bool:
    """A run without a framework name that uses axes of the Megatron family: vpp, cp or ep with tp
    above 1, or sequence parallelism."""
    run = row.run
    vpp, cp, ep, tp = (degree or 1 for degree in (run.vpp, run.cp, run.ep, run.tp))
    used = vpp > 1 or cp > 1 or (ep > 1 and tp > 1) or bool(run.sequence_parallel)
    return used and not run.framework


# Field of Scores, name in tables, membership.
GROUPS: tuple[tuple[str, str, Callable[[ComparedRun], bool]], ...] = (
    ("mainstream", "mainstream (dense, up to 16k tokens, A100 to B200, graded A or B)", mainstream),
    ("experts", "experts", has_experts),
    ("long", "32k tokens and more", long_sequence),
    ("unnamed", "Megatron axes without a framework name", unnamed_megatron),
)


def step_scores(rows: Iterable[ComparedRun]) -> ErrorScores:
    """The scores of the step times."""
    return _scores(
        (
            row.run.id,
            row.step_time_error,
            row.step_time_inside,
            row.predicted.step_time_low_s,
            row.predicted.step_time_high_s,
        )
        for row in rows
    )


def memory_scores(rows: Iterable[ComparedRun]) -> ErrorScores:
    """The scores of the peak memory."""
    return _scores(
        (
            row.run.id,
            row.memory_error,
            row.memory_inside,
            row.predicted.peak_memory_low_gib,
            row.predicted.peak_memory_high_gib,
        )
        for row in rows
    )


def score(rows: Sequence[ComparedRun]) -> Scores:
    """All scores of some rows."""
    grouped = {name: step_scores(filter(member, rows)) for name, _, member in GROUPS}
    return Scores(
        rows=len(rows),
        unsupported=sum(not row.supported for row in rows),
        step=step_scores(rows),
        memory=memory_scores(rows),
        **grouped,
    )


def _scores(
    rows: Iterable[tuple[str, float | None, bool, float | None, float | None]],
) -> ErrorScores:
    """Scores of (run id, signed error or None, inside the interval, low, high)."""
    by_source: dict[str, list[tuple[float, bool]]] = {}
    widths = []
    for run_id, error, inside, low, high in rows:
        if error is not None:
            by_source.setdefault(source_of(run_id), []).append((error, inside))
            if low and high is not None:
                widths.append(high / low)
    if not by_source:
        return ErrorScores()
    errors = [[error for error, _ in found] for found in by_source.values()]
    return ErrorScores(
        rows=sum(map(len, errors)),
        sources=len(by_source),
        median=median(median(map(abs, each)) for each in errors),
        mean=fmean(fmean(map(abs, each)) for each in errors),
        bias=median(median(each) for each in errors),
        coverage=fmean(inside for found in by_source.values() for _, inside in found),
        width=median(widths) if widths else math.nan,
        source_coverage=tuple(
            (source, fmean(inside for _, inside in found))
            for source, found in sorted(by_source.items())
            if len(found) >= FEWEST_ROWS
        ),
    )


@dataclass(frozen=True, slots=True)
class ScoreTarget:
    """Bounds of a score, both included.

    is_ratio   printed as a plain number instead of a percentage
    """

    name: str
    score_of: Callable[[Scores], float]
    least: float = -math.inf
    most: float = math.inf
    is_ratio: bool = False

    def met(self, scores: Scores) -> bool:
        """Whether the score is within the bounds; a score without a row is not."""
        return self.least <= self.score_of(scores) <= self.most

    def verdict(self, scores: Scores) -> str:
        """`met`, `missed`, or `no rows`."""
        if math.isnan(self.score_of(scores)):
            return "no rows"
        return "met" if self.met(scores) else "missed"

    def reached(self, scores: Scores) -> str:
        """The score as text."""
        return self._text(self.score_of(scores))

    @property
    def bounds(self) -> str:
        """The bounds as text: `<= 12.0 %`, `>= 60.0 %`, `80.0 % to 95.0 %`."""
        if math.isinf(self.least):
            return f"<= {self._text(self.most)}"
        if math.isinf(self.most):
            return f">= {self._text(self.least)}"
        return f"{self._text(self.least)} to {self._text(self.most)}"

    def _text(self, value: float) -> str:
        if self.is_ratio:
            return "-" if math.isnan(value) else f"{value:.2f}"
        return percent(value)


# Targets of the issue that introduced the locked half.
SCORE_TARGETS = (
    ScoreTarget("median over sources", lambda s: s.step.median, most=0.12),
    ScoreTarget("mean over sources", lambda s: s.step.mean, most=0.18),
    ScoreTarget("bias", lambda s: s.step.bias, least=-0.04, most=0.04),
    ScoreTarget("interval coverage", lambda s: s.step.coverage, least=0.80, most=0.95),
    ScoreTarget("lowest coverage of a source", lambda s: s.step.worst_coverage, least=0.60),
    ScoreTarget("interval width", lambda s: s.step.width, most=2.6, is_ratio=True),
    ScoreTarget("mainstream: median", lambda s: s.mainstream.median, most=0.10),
    ScoreTarget("mainstream: bias", lambda s: s.mainstream.bias, least=-0.04, most=0.04),
    ScoreTarget("mainstream: width", lambda s: s.mainstream.width, most=1.9, is_ratio=True),
    ScoreTarget("experts: median", lambda s: s.experts.median, most=0.16),
    ScoreTarget("32k tokens and more: median", lambda s: s.long.median, most=0.18),
    ScoreTarget("peak memory: median", lambda s: s.memory.median, most=0.12),
)
