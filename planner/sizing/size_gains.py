"""`gains_of`: the gain of one more node, dollar, GB/s, GiB or point of MFU, each from a separate
search with the device, framework and batch of the best run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.layout.layout_question import LayoutSolver
from planner.layout.refined_layout import PricedLayout
from planner.sizing.size_answer import Gain
from planner.sizing.size_front import at_nodes
from planner.sizing.size_question import SizeQuestion
from planner.sizing.sizing_search import (
    SizedRun,
    goal_of,
    layout_question_of,
    question_of_run,
    sized_run,
    stack_named,
)
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_device
from profiles.units import format_usd
from simulator.training_run.explain.run_prediction import mfu_of_run
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.prediction import Interval

_GIB = 2**30
# More of each: GiB of a device; of the rate between nodes and of the dollars these shares.
_MORE_GIB, _MORE_RATE, _MORE_USD = 8, 0.1, 0.05
# More nodes are tried as these parts of what there is, and more dollars on up to twice as many.
_MORE_NODES = (8, 4, 2)


def gains_of(question: SizeQuestion, best: SizedRun, solver: LayoutSolver) -> tuple[Gain, ...]:
    """The gains that could be computed within the time limit."""
    asked = question_of_run(question, best)

    def times_as_long(change: str, times: float) -> Gain:
        """The run on the same nodes with steps longer by a factor."""
        usd = best.usd * times if best.usd is not None else None
        return Gain(change=change, days=best.hours / 24.0 * times, usd=usd)

    def step(change: str, layout: PricedLayout | None) -> list[Gain]:
        """The run on the same nodes with another step time."""
        if layout is None:
            return []
        return [times_as_long(change, layout.step_time_s / best.layout.step_time_s - 1.0)]

    found = _more_nodes(question, best, solver)
    if best.usd is not None:
        richer = _with_more_dollars(question, best, solver)
        extra = _MORE_USD * best.usd
        if richer is not None:
            found.append(_between(f"up to {format_usd(extra)} more, spent on speed", richer, best))
    run = best.layout.run
    network = run.node_network
    if run.degrees.num_devices > run.node_devices:
        rate = network.bytes_per_s_per_node / 1e9
        words = f"{_MORE_RATE * rate:.3g} GB/s more per node between nodes ({rate:.3g} now)"

        def faster(base: TrainingRun) -> TrainingRun:
            return replace(base, network=base.node_network.faster(1.0 + _MORE_RATE))

        found += step(words, solver.best(asked, altered=faster))
    usable = get_device(best.choice.device).usable_bytes
    found += step(
        f"{_MORE_GIB} GiB more memory per device",
        solver.best(asked, capacity=1.0 + _MORE_GIB * _GIB / usable),
    )
    step_s = best.layout.step_time_s
    mfu = mfu_of_run(best.layout.run, Interval(value=step_s, low=step_s, high=step_s)).value
    point = mfu / (mfu + 0.01) - 1.0
    return (*found, times_as_long(f"one point more of MFU ({mfu:.1%} now)", point))


def _more_nodes(question: SizeQuestion, best: SizedRun, solver: LayoutSolver) -> list[Gain]:
    """One more node; if it would stay idle, the fewest of an eighth, a quarter and a half more that
    would not."""
    for extra in sorted({1, *(max(1, best.nodes // part) for part in _MORE_NODES)}):
        found = at_nodes(question, best, best.nodes + extra, solver)
        if found is None:
            return []
        if found.layout.step_time_s < best.layout.step_time_s:
            more = found.nodes - best.nodes
            words = "one more node" if more == 1 else f"{more} more nodes (one would stay idle)"
            return [_between(words, found, best)]
    return []


def _between(change: str, run: SizedRun, best: SizedRun) -> Gain:
    usd = run.usd - best.usd if run.usd is not None and best.usd is not None else None
    return Gain(change=change, days=(run.hours - best.hours) / 24.0, usd=usd)


def _with_more_dollars(
    question: SizeQuestion, best: SizedRun, solver: LayoutSolver
) -> SizedRun | None:
    """The fastest run for slightly more dollars than the best."""
    if not solver.has_time or best.usd is None:
        return None
    free = replace(
        question,
        tokens=best.tokens,
        minimise="time",
        deadline_s=None,
        budget_usd=(1.0 + _MORE_USD) * best.usd,
    )
    stack = stack_named(question, best.stack)
    most = min(best.choice.most, 2 * best.nodes)
    choice = replace(best.choice, most=most)
    goal = goal_of(free, choice, stack, best.batch)
    now = goal.hours(np.asarray([best.nodes]), np.asarray([best.layout.step_time_s]))
    try:
        asked = layout_question_of(free, choice, stack, best.batch, best.width, most)
        outcome = solver.search(asked, goal=goal, below=float(now[0]))
    except InputError:
        return None
    if not outcome.layouts:
        return None
    layout, value = outcome.layouts[0], outcome.values[0]
    return sized_run(free, choice, goal, best.stack, layout, value, best.width)
