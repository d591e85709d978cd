"""`explain_run`: every number in the prediction of a run, with its source.

The terms of `step_terms.py` are evaluated on symbols (formula_symbol.py) instead of arrays, so the
lines add up to the prediction by construction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import get_device, get_link, node_design
from profiles.hardware.kernels.attention_surface import load_attention_surface
from profiles.hardware.kernels.gemm_surface import load_surface
from profiles.units import format_time
from simulator.formula_symbol import Symbol
from simulator.training_run.explain.explain_memory import MemoryExplanation, explain_memory
from simulator.training_run.fit.interval import step_intervals
from simulator.training_run.fit.memory_interval import memory_interval, shipped_memory_intervals
from simulator.training_run.fit.recalibration import Calibration, calibrated, calibrated_knowledge
from simulator.training_run.fit.step_spread import coefficient_spreads, step_spreads
from simulator.training_run.framework.framework import Framework, load_framework, memory_of
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_kinds import KINDS
from simulator.training_run.step.coefficients import (
    COEFFICIENTS_FILE,
    CoefficientFile,
    shipped_coefficients,
)
from simulator.training_run.step.features import Features
from simulator.training_run.step.step_slopes import log_slopes
from simulator.training_run.step.step_term import Array, Coefficients
from simulator.training_run.step.step_time import price_runs, step_seconds
from simulator.training_run.work.layer_work import matmul_type, wide_type
from simulator.values.prediction import Interval, Part

# Smallest weight above rounding error.
_NO_WEIGHT = 1e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class CoefficientUsed:
    """A coefficient with an effect on the step.

    origin   `fitted`, `of its family`, `assumed` (the start of its kind) or `calibration`
    weight   change of the step time in % for a change of the coefficient by 1 %
    spread   standard deviation of its logarithm for a new source (step_spread.py)
    sources  number of sources that determine it
    """

    name: str
    value: float
    meaning: str
    origin: str
    weight: float
    spread: float
    sources: int


@dataclass(frozen=True, slots=True)
class SourceUsed:
    """Source of times before coefficients: kernel surface, bandwidth, link, or framework counts."""

    name: str
    value: str
    method: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalUsed:
    """An interval and its basis.

    basis   rows whose residuals define it, or the fitted model
    rows    number of these rows
    spread  standard deviation of the logarithm of a step (step_spread.py); None for memory
    """

    interval: Interval
    basis: str
    rows: int
    spread: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExplanation:
    """Explanation of a prediction. `lines` add up to step.interval.value. If no file describes the
    framework's memory, `memory` is None and `why_no_memory` is the reason."""

    run: TrainingRun
    lines: tuple[StepLine, ...]
    step: IntervalUsed
    coefficients: tuple[CoefficientUsed, ...]
    fitted: CoefficientFile
    fitted_file: str
    sources: tuple[SourceUsed, ...]
    memory: MemoryExplanation | None
    memory_interval: IntervalUsed | None
    why_no_memory: str = ""


def explain_run(run: TrainingRun, calibration: Calibration | None = None) -> RunExplanation:
    """The explanation of a completed run's prediction."""
    shipped, known = shipped_coefficients(), calibrated_knowledge(calibration)
    priced = price_runs([run], calibrated(calibration))
    x, assigned, values, c = priced.x, priced.assigned, priced.values, priced.c
    total = float(priced.parts.total_s[0])
    slopes = log_slopes(x, c)
    weights = [float(slopes[KINDS[kind].name][0]) for kind in assigned.kinds]
    spreads = coefficient_spreads(assigned, known).tolist()
    spread = float(step_spreads(priced, known)[0])
    overridden = {} if calibration is None else calibration.values
    stack = load_framework(run.stack)
    memory, why_no_memory = None, ""
    try:
        memory = explain_memory(run)
    except ShardwrightError as error:
        why_no_memory = str(error)
    return RunExplanation(
        run=run,
        lines=step_lines(x, c),
        step=IntervalUsed(
            interval=step_intervals([run], [total], [spread], calibration)[0],
            basis="the fitted model",
            rows=shipped.runs,
            spread=spread,
        ),
        coefficients=tuple(
            CoefficientUsed(
                name=name,
                value=float(values[i]),
                meaning=KINDS[assigned.kinds[i]].meaning,
                origin=_origin(name, assigned.families[i], overridden, shipped),
                weight=weights[i],
                spread=spreads[i],
                sources=shipped.sources_of.get(name, 0),
            )
            for i, name in enumerate(assigned.names)
            if abs(weights[i]) > _NO_WEIGHT
        ),
        fitted=shipped,
        fitted_file="/".join(COEFFICIENTS_FILE.parts[-4:]),
        sources=(*_surfaces(run, stack), *_rates(run, stack)),
        memory=memory,
        memory_interval=None if memory is None else _peak(run, memory.shown_bytes),
        why_no_memory=why_no_memory,
    )


def _origin(
    name: str, family: str, overridden: Mapping[str, float], shipped: CoefficientFile
) -> str:
    if name in overridden:
        return "calibration"
    if name in shipped.values:
        return "fitted"
    return "of its family" if family in shipped.values else "assumed"


def _peak(run: TrainingRun, peak_bytes: float) -> IntervalUsed:
    known = shipped_memory_intervals().spread
    basis = f"{known.sources} sources, each left out"
    if not memory_of(run).compared:
        basis += "; no measured peak of this framework"
    return IntervalUsed(interval=memory_interval(run, peak_bytes), basis=basis, rows=known.rows)


def _surfaces(run: TrainingRun, stack: Framework) -> Iterator[SourceUsed]:
    surface = load_surface(run.device)
    for dtype in dict.fromkeys((matmul_type(run), wide_type(run))):
        table = surface.tables.get(dtype)
        reason = f"; {surface.reason}" if surface.reason else ""
        value, method = "as bf16's, by the peaks' ratio", "assumed"
        if table is not None:
            value = f"{table.rows} kernels, ±{table.uncertainty:.0%}"
            method = surface.method if surface.method == "assumed" else table.method
        yield SourceUsed(
            f"matmuls in {dtype}, measured on {surface.measured_on}",
            value,
            method,
            f"{surface.source} ({surface.date}){reason}",
        )
    if stack.attention == "unfused":
        return
    attention = load_attention_surface(run.device)
    older = (
        "; FlashAttention-2 on devices after Ampere: an A100's, 335 / 225 times as fast (arXiv "
        "2307.08691, section 4.1)"
        if stack.attention == "flash-2"
        else ""
    )
    reason = f"; {attention.reason}" if attention.reason else ""
    yield SourceUsed(
        f"attention, measured on {attention.measured_on}",
        f"{sum(table.rows for table in attention.tables.values())} calls",
        f"{attention.method}; the backward is derived",
        f"{attention.source} ({attention.date}){older}{reason}",
    )


def _rates(run: TrainingRun, stack: Framework) -> Iterator[SourceUsed]:
    design = node_design(run.device)
    link = get_link(design.inner_link)
    network = run.node_network
    rates = (
        ("memory bandwidth", get_device(run.device).memory_bandwidth_bytes_per_s, 1, ".0f"),
        (f"link in the node, {link.name}", link.bandwidth_bytes_per_s, design.inner_shared_by, "g"),
    )
    for name, number, shared, form in rates:
        value = f"{number.value / shared / 1e9:{form}} GB/s"
        yield SourceUsed(name, value, number.method, f"{number.source} ({number.date})")
    if run.num_nodes > 1:
        yield SourceUsed(
            f"network, {network.kind}",
            f"{network.bytes_per_s_per_node / 1e9:g} GB/s per node",
            "assumed" if network.assumed else "as the run's source says",
            network.source,
        )
    yield SourceUsed(
        f"stack {stack.name}: passes, kernels, bytes",
        "",
        "read off its code",
        f"{stack.source} ({stack.date})",
    )


# Text for features in seconds, by prefix or suffix of their names; the first match wins.
_SECONDS = {
    "peak": "datasheet peak",
    "matmul_": "kernels alone",
    "grouped_": "kernels alone",
    "attention_": "kernels alone",
    "state_": "kernels alone",
    "_inner": "time in the node",
    "_outer": "time between nodes",
    "_far": "time at the slowest level beyond the nodes' network",
    "wide_": "time in bf16 - time in the run's precision",
    "host_layer_s": "transfers",
    "gather_host_s": "bytes / link to the host",
    "host_sum_s": "time to add a micro-batch's gradients on the host",
    "head_matmul": "kernels alone",
    **dict.fromkeys(
        ("pass_", "cast_", "score_", "head_", "accumulation_s", "optimizer_s", "extra_"),
        "bytes / bandwidth",
    ),
}
# Text for features that are counts or shares.
_COUNTS = {
    "last_layers": "layers",
    "layers": "layers",
    "microbatches": "micro-batches",
    "vpp": "chunks",
    "pp": "stages",
    "nodes": "nodes",
    "kernels_forward": "kernels forward",
    "kernels_backward": "kernels backward",
    "waiting_ranks": "ranks",
    "waiting_buckets": "buckets x ranks",
    "copied_slices": "slices",
    "recomputed_": "recomputed share",
    "_steps": "latency steps",
    "cut_crossings": "crossings",
    "idle_share": "idle share of the schedule's timeline",
    "wide_first": "layers in bf16",
    "wide_last": "layers in bf16",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """One term of a step.

    part      its part of the step
    time_s    its seconds in the step
    formula   as text, with names of coefficients
    numbers   the formula with numbers
    """

    part: Part
    name: str
    time_s: float
    formula: str
    numbers: str


def step_lines(x: Features, c: Coefficients) -> tuple[StepLine, ...]:
    """The nonzero terms of one run's step.

    x, c  features and coefficients of that run only, shape [1]
    """
    features, coefficients = cast(Features, _Features(x)), cast(Coefficients, _Values(c))
    terms = step_seconds(features, coefficients, lambda term: term)
    lines = []
    for term, seconds in terms.items():
        symbol = Symbol.of(seconds)
        if symbol.value == 0.0:
            continue
        lines.append(
            StepLine(
                part=term.part,
                name=term.name,
                time_s=symbol.value,
                formula=term.words
                or "; ".join((symbol.words, *(words for words, _ in symbol.where))),
                numbers="; ".join((symbol.numbers, *(numbers for _, numbers in symbol.where))),
            )
        )
    return tuple(lines)


class _Features:
    """The features of one run as symbols."""

    def __init__(self, x: Features) -> None:
        self._x = x

    def __getattr__(self, name: str) -> Symbol:
        value = float(getattr(self._x, name)[0])
        words = _words(name, _COUNTS)
        if words in ("layers", "micro-batches"):
            return Symbol(value, words, f"{value:g} {words}")
        if words:
            return Symbol(value, words)
        return Symbol(value, _words(name, _SECONDS) or name, format_time(value))


def _words(name: str, table: Mapping[str, str]) -> str:
    fits = (words for part, words in table.items() if name.startswith(part) or name.endswith(part))
    return next(fits, "")


class _Values(Mapping[str, Any]):
    """The coefficients of one run as symbols."""

    def __init__(self, c: Mapping[str, Array]) -> None:
        self._c = c

    def __getitem__(self, kind: str) -> Symbol:
        value = float(self._c[kind][0])
        unit = next((f" {unit}" for unit in ("us", "ms") if kind.endswith(f"_{unit}")), "")
        return Symbol(value, kind, f"{value:.4g}{unit}")

    def __iter__(self) -> Any:
        return iter(self._c)

    def __len__(self) -> int:
        return len(self._c)
