"""Explanation of a run's step time: each term's formula, as text and with numbers.

The terms of `step_terms.py` are evaluated on symbols (formula_symbol.py) instead of arrays, so the
lines add up to the prediction by construction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from profiles.units import format_time
from simulator.formula_symbol import Symbol
from simulator.training_run.step.features import Features
from simulator.training_run.step.step_term import Array, Coefficients
from simulator.training_run.step.step_time import step_seconds
from simulator.values.prediction import Part

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
    formula   as text, with coefficient names;  numbers  the same with numbers
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
    terms = step_seconds(
        cast(Features, _Features(x)),
        cast(Coefficients, _Values(c)),
        lambda term: term,
    )
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
