"""Owned devices in addition to rented ones: one job on both, or a job on each."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from planner.layout.layout_question import LayoutQuestion, LayoutSolver
from planner.layout.refined_layout import PricedLayout
from planner.sizing.sizing_search import layout_question_of, layout_question_on, stack_named
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import NAME_START, get_cluster, node_design
from profiles.hardware.catalogue.cluster import Cluster
from shardwright.requests.sizing.sized import Sized

_OWNED = re.compile(rf"^(\d+)x({NAME_START}[\w.@/-]*)$")
# Seconds that all searches here may take together.
_LIMIT_S = 60.0
# Shares of the batch that are tried, and bytes of a summed gradient.
_PARTS, _GRADIENT_BYTES = 32, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedOption:
    """A way to use owned and rented devices.

    days            of the requested run
    tokens_per_day  of all jobs together
    usd             of the rented part
    why             why the figures are None, otherwise ""
    """

    title: str
    days: float | None = None
    tokens_per_day: float | None = None
    usd: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedComparison:
    """The compared ways to use owned devices, and one sentence on them."""

    options: tuple[OwnedOption, ...]
    sentence: str
    assumptions: tuple[str, ...]


def owned_cluster(text: str) -> Cluster:
    """`128xa100-sxm-80gb` as whole nodes; raises InputError."""
    match = _OWNED.match(text)
    if match is None:
        raise InputError(f"--owned {text!r}: write number and type, as 128xa100-sxm-80gb")
    count, name = int(match.group(1)), match.group(2)
    per_node = min(count, node_design(name).devices)
    if count < 1 or count % per_node:
        raise InputError(
            f"--owned {text}: {count} is not a multiple of the {per_node} {name} of a node"
        )
    nodes = f"{count // per_node}x" if count > per_node else ""
    return get_cluster(f"{nodes}{per_node}x{name}")


def compare_owned(
    text: str, sized: Sized, *, clock: Callable[[], float], limit_s: float = _LIMIT_S
) -> OwnedComparison | None:
    """The run on rented devices only, on owned ones only, a job on each, and one job on both.

    Steps are those of the run's framework. `limit_s` limits all searches together. None without an
    answer.
    """
    best = sized.answer.best
    if best is None:
        return None
    owned, run = owned_cluster(text), best.run
    solver = LayoutSolver(clock=clock, end_s=clock() + limit_s)
    alone = solver.best(_asked(sized, owned, run.batch))
    rented_days = best.days.value
    usd = best.usd.value if best.usd is not None else None
    rented_rate = run.tokens / rented_days
    rented_title = f"rented alone, {run.devices:,} {run.choice.each}"
    options = [
        OwnedOption(title=rented_title, days=rented_days, tokens_per_day=rented_rate, usd=usd)
    ]
    if alone is None:
        options.append(OwnedOption(title=f"owned alone, {text}", why="the model does not fit"))
        why = "the model does not fit on the owned devices"
        options.append(OwnedOption(title="a job on each", why=why))
    else:
        slower = alone.step_time_s / run.layout.step_time_s
        owned_rate = rented_rate / slower
        options.append(
            OwnedOption(
                title=f"owned alone, {text}",
                days=rented_days * slower,
                tokens_per_day=owned_rate,
                usd=0.0,
            )
        )
        options.append(
            OwnedOption(
                title="a job on each (two models)",
                days=rented_days,
                tokens_per_day=rented_rate + owned_rate,
                usd=usd,
            )
        )
    options.append(_mixed(sized, owned, solver, alone))
    return OwnedComparison(
        options=tuple(options),
        sentence=_sentence(options),
        assumptions=(
            "owned devices fail as often as rented ones; their power and hosting are not counted",
            "one job on both: replicas of each type with their own layout and share of the batch, "
            "which a framework must allow; ours does (plan --on A+B)",
        ),
    )


def _mixed(
    sized: Sized, owned: Cluster, solver: LayoutSolver, alone: PricedLayout | None
) -> OwnedOption:
    """One job on all devices, or why it is impossible.

    Replicas on each type have a separate layout and a share of the batch, in 32nds, so that neither
    waits long for the other. Then both exchange their gradient sums over the slower of the two
    networks (_exchange_s).
    """
    best = sized.answer.best
    assert best is not None
    question, run = sized.question, best.run
    title = "one job on both"
    if alone is None:
        return OwnedOption(title=title, why="the model does not fit on the owned devices")
    rented_s = run.layout.step_time_s
    fair = _PARTS * rented_s / (rented_s + alone.step_time_s)
    found: list[tuple[float, int]] = []
    for part in dict.fromkeys((math.floor(fair), math.ceil(fair))):
        theirs = run.batch * part // _PARTS
        if not 0 < theirs < run.batch or not solver.has_time:
            continue
        stack = stack_named(question, run.stack)
        ours = layout_question_of(
            question, run.choice, stack, run.batch - theirs, run.width, run.nodes
        )
        sides = (solver.best(ours), solver.best(_asked(sized, owned, theirs)))
        if sides[0] is None or sides[1] is None:
            continue
        slower = max(side.step_time_s for side in sides if side is not None)
        found.append((slower + max(map(_exchange_s, sides)), theirs))
    if not found:
        return OwnedOption(title=title, why="no share of the batch has a layout on both in time")
    step_s, theirs = min(found)
    days = best.days.value * step_s / rented_s
    return OwnedOption(
        title=f"{title} ({theirs:,} of {run.batch:,} sequences on the owned)",
        days=days,
        tokens_per_day=run.tokens / days,
        usd=best.usd.value * days / best.days.value if best.usd is not None else None,
    )


def _exchange_s(side: PricedLayout | None) -> float:
    """Seconds in which a device sends its share of the summed gradients, without overlap: the parts
    exchange the sums of their ranks."""
    if side is None or side.run.lora:
        return 0.0
    run = side.run
    gradients = _GRADIENT_BYTES * run.model.parameters / run.degrees.num_devices
    each = run.node_network.bytes_per_s_per_node / run.node_devices
    return gradients / each


def _asked(sized: Sized, owned: Cluster, batch: int) -> LayoutQuestion:
    """The search problem over the layouts of the run's framework on the owned devices."""
    question, best = sized.question, sized.answer.best
    assert best is not None
    return layout_question_on(question, owned, stack_named(question, best.run.stack), batch)


def _sentence(options: list[OwnedOption]) -> str:
    rented, mixed = options[0], options[-1]
    pair = next((one for one in options if one.title.startswith("a job on each")), None)
    if mixed.days is None or rented.days is None:
        return f"One job on both was not found: {mixed.why}. A job on each keeps both busy."
    said = f"One job on both ends {rented.days - mixed.days:.2g} days earlier than the rented alone"
    if pair is not None and pair.tokens_per_day and mixed.tokens_per_day:
        share = pair.tokens_per_day / mixed.tokens_per_day - 1
        more = "more" if share >= 0 else "fewer"
        said += f"; a job on each trains on {abs(share):.0%} {more} tokens a day in all"
    return said + "."
