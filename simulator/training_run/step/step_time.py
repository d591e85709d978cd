"""The step time of described runs: the sum of `TERMS` (step_terms.py), as arrays over the runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from simulator.formula_symbol import named
from simulator.training_run.step import step_terms
from simulator.training_run.step.features import Features
from simulator.training_run.step.step_term import (
    LAYER,
    PER_MICROBATCH,
    Array,
    Coefficients,
    Earlier,
    Per,
    Term,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """[runs] seconds of a step; `total_s` is their sum.

    compute_s     matmuls, attention, passes and what waits for the host, of the busiest stage
    tensor_s, expert_s, context_s, gather_s   messages inside layers that do not hide
    cut_s         sends between stages; bubble_s  idle stages; reduce_s  gradients and weights
    stall_s       messages between stages that stall (blocked_host.py)
    host_s        what host memory costs: its transfers that do not hide, and an optimizer there
    """

    compute_s: Array
    tensor_s: Array
    expert_s: Array
    context_s: Array
    gather_s: Array
    cut_s: Array
    stall_s: Array
    bubble_s: Array
    reduce_s: Array
    optimizer_s: Array
    host_s: Array
    overhead_s: Array

    @property
    def total_s(self) -> Array:
        """Seconds of a step, per run."""
        return np.asarray(sum(getattr(self, name) for name in StepParts.__dataclass_fields__))


Key = TypeVar("Key", bound=Hashable)


def step_parts(x: Features, c: Coefficients) -> StepParts:
    """The parts of each run's step.

    c  per kind of coefficient the value of every run (coefficients.Assigned.of)
    """
    found = step_seconds(x, c, lambda term: term.part)
    none, runs = np.zeros(1), x.microbatches.shape
    names = StepParts.__dataclass_fields__
    assert set(found) <= set(names), set(found) - set(names)
    return StepParts(**{n: np.broadcast_to(found.get(n, none), runs) for n in names})


def step_seconds(x: Features, c: Coefficients, key: Callable[[Term], Key]) -> dict[Key, Array]:
    """Seconds of the step by a property of its terms, in their order.

    c  per kind of coefficient the value of every run (coefficients.Assigned.of)

    A stage's time per micro-batch is that of its layers, logits and chunks; the busiest stage sets
    the pace of all micro-batches. The coefficient `level` multiplies every term.
    """
    earlier = Earlier(layer=np.zeros(1))
    by_key: dict[tuple[Key, Per], Array] = {}
    sums: dict[Per, Array] = {}
    for per in PER_MICROBATCH:
        for term in step_terms.TERMS:
            if term.per is not per:
                continue
            each = term.seconds(x, c, earlier)
            _add(by_key, (key(term), per), each)
            _add(sums, per, each)
            if per is LAYER:
                earlier.of[term.name] = named(term.name, each, defined=False)
                earlier.layer = named("layer", sums[per], defined=False)
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


def _add(sums: dict[Key, Array], key: Key, value: Array) -> None:
    sums[key] = sums[key] + value if key in sums else value
