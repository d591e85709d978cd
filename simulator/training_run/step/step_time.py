"""The step time of runs: the sum of `TERMS` (step_terms.py), as arrays over the runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from simulator.formula_symbol import named
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step import step_terms
from simulator.training_run.step.coefficients import (
    Assigned,
    CoefficientFile,
    assign,
    shipped_coefficients,
)
from simulator.training_run.step.features import Features, features
from simulator.training_run.step.step_term import (
    LAYER,
    PER_MICROBATCH,
    Array,
    Coefficients,
    Earlier,
    Per,
    Term,
)
from simulator.values.prediction import Component, Part

PARTS = tuple(part for part in Part if any(term.part is part for term in step_terms.TERMS))
"""The parts of a step, in the order in which they are printed."""
Key = TypeVar("Key", bound=Hashable)


class StepParts(dict[Part, Array]):
    """[runs] seconds of a step by part, in the order of `PARTS`; `total_s` is their sum. Compute
    and messages inside layers are those of the busiest stage."""

    @property
    def total_s(self) -> Array:
        """Seconds of a step, per run."""
        return np.asarray(sum(self.values()))

    def components(self, row: int = 0) -> tuple[Component, ...]:
        """The nonzero parts of one run."""
        return tuple(
            Component(name=part, time_s=float(seconds[row]))
            for part, seconds in self.items()
            if seconds[row] != 0
        )


def step_parts(x: Features, c: Coefficients) -> StepParts:
    """The parts of each run's step.

    c  per kind of coefficient the value of every run (coefficients.Assigned.of)
    """
    found = step_seconds(x, c, lambda term: term.part)
    none, runs = np.zeros(1), x.microbatches.shape
    return StepParts((part, np.broadcast_to(found.get(part, none), runs)) for part in PARTS)


def step_seconds(x: Features, c: Coefficients, key: Callable[[Term], Key]) -> dict[Key, Array]:
    """[runs] seconds of the step per group of terms, in the terms' order; `key` gives a term's
    group.

    c  per kind of coefficient the value of every run (coefficients.Assigned.of)

    A stage's time per micro-batch is the sum over its layers, logits and virtual stages; the
    busiest stage determines the rate of micro-batches. The coefficient `level` multiplies every
    term.
    """
    earlier = Earlier(layer=np.zeros(1))
    by_key: dict[tuple[Key, Per], Array] = {}
    sums: dict[Per, Array] = {}
    for term, per, each in unit_seconds(x, c, earlier, sums):
        _add(by_key, (key(term), per), each)
    first = sum(per.first(x) * each for per, each in sums.items())
    last = sum(per.last(x) * each for per, each in sums.items())
    between = sum(per.first(x) * each for per, each in sums.items() if not per.ends_only)
    earlier.busiest = named("busiest stage", np.maximum(first, last), defined=False)
    earlier.stages = named(
        "all stages", first + last + np.maximum(x.pp - 2.0, 0.0) * between, defined=False
    )
    paces = first >= last
    found: dict[Key, Array] = {}
    for (name, per), each in by_key.items():
        count = np.where(paces, per.first(x), per.last(x))
        _add(found, name, each * count * x.microbatches)
    earlier.step = x.microbatches * earlier.busiest
    for term in step_terms.TERMS:
        if term.per is None:
            each = term.seconds(x, c, earlier)
            _add(found, key(term), each)
            earlier.step = named("step so far", earlier.step + each, defined=False)
    return {name: c["level"] * each for name, each in found.items()}


def unit_seconds(
    x: Features, c: Coefficients, earlier: Earlier, sums: dict[Per, Array]
) -> Iterator[tuple[Term, Per, Array]]:
    """Terms of a micro-batch with the seconds of one unit (a layer, a chunk, the logits), before
    `level`; their sums by unit are added to `sums`."""
    for per in PER_MICROBATCH:
        for term in step_terms.TERMS:
            if term.per is not per:
                continue
            each = term.seconds(x, c, earlier)
            _add(sums, per, each)
            if per is LAYER:
                earlier.of[term.name] = named(term.name, each, defined=False)
                earlier.layer = named("layer", sums[per], defined=False)
            yield term, per, each


def _add(sums: dict[Key, Array], key: Key, value: Array) -> None:
    sums[key] = sums[key] + value if key in sums else value


@dataclass(frozen=True, slots=True)
class PricedRuns:
    """Runs, their features, and their [coefficients] values."""

    runs: Sequence[TrainingRun]
    x: Features
    assigned: Assigned
    values: Array

    @property
    def c(self) -> dict[str, Array]:
        """Per kind of coefficient the value of every run."""
        return self.assigned.of(self.values)

    @property
    def parts(self) -> StepParts:
        """The parts of each run's step."""
        return step_parts(self.x, self.c)


def price_runs(
    runs: Sequence[TrainingRun],
    coefficients: CoefficientFile | None = None,
    *,
    all_fit: bool = False,
    x: Features | None = None,
) -> PricedRuns:
    """The runs with these coefficients, the shipped ones if None.

    all_fit  skip the memory check of `features`
    x        their features, if known
    """
    assigned = assign(runs)
    values = assigned.from_file(coefficients or shipped_coefficients())
    return PricedRuns(runs, x or features(runs, all_fit=all_fit), assigned, values)
