"""Devices that one owns beside those that would be rented: one job on both, or a job on each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from planner.heterogeneous.mixed_plan_search import plan_mixed
from planner.layout.layout_question import LayoutQuestion
from planner.layout.layout_solver import LayoutSolver
from planner.search.space import Space
from planner.sizing.sizing_search import stack_named
from profiles.errors import InputError, ShardwrightError
from profiles.hardware.catalogue.catalog import get_cluster, node_design
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.loaders import resolve_model
from profiles.units import format_time
from shardwright.asking.sized import Sized
from shardwright.asking.solve_task import task_of, trace_task
from simulator.traced.stack import load_stack
from simulator.training_run.step.coefficients import shipped_coefficients
from simulator.values.workload import Workload

_OWNED = re.compile(r"^(\d+)x([A-Za-z][\w.@/-]*)$")
# Seconds that the search over mixed devices may take.
_MIXED_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedOption:
    """A way to use both: days of the run that was asked for, tokens a day of all jobs together, and
    dollars of what is rented; None where there is none, and `why` then says so."""

    title: str
    days: float | None = None
    tokens_per_day: float | None = None
    usd: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedBeside:
    """The ways compared, and one sentence."""

    options: tuple[OwnedOption, ...]
    sentence: str
    assumptions: tuple[str, ...]


def owned_cluster(text: str) -> Cluster:
    """`128xa100-sxm-80gb` as whole nodes; raises InputError."""
    match = _OWNED.match(text)
    if match is None:
        raise InputError(f"--owned {text!r}: write how many of what, as 128xa100-sxm-80gb")
    count, name = int(match.group(1)), match.group(2)
    per_node = min(count, node_design(name).devices)
    if count < 1 or count % per_node:
        raise InputError(f"--owned {text}: {count} devices are no whole nodes of {per_node} {name}")
    nodes = f"{count // per_node}x" if count > per_node else ""
    return get_cluster(f"{nodes}{per_node}x{name}")


def owned_beside(text: str, sized: Sized, *, clock: Callable[[], float]) -> OwnedBeside | None:
    """The run on rented devices alone, on owned ones alone, a job on each, and one job on both.

    The mixed job's gain is the ratio of two steps of the search on mixed devices (our own executor,
    replicas that may differ), put on the days of the rented devices. None without an answer.
    """
    best = sized.answer.best
    if best is None:
        return None
    owned, question, run = owned_cluster(text), sized.question, best.run
    solver = LayoutSolver(coefficients=shipped_coefficients(), clock=clock)
    alone = solver.best(
        LayoutQuestion(
            name=question.name,
            model=question.model,
            cluster=owned,
            stack=run.stack,
            global_batch=run.batch,
            seq_len=question.seq_len,
            precision=question.precision,
            space=stack_named(question, run.stack).space,
            lora_rank=question.lora_rank,
        )
    )
    rented_days = best.days.value
    usd = best.usd.value if best.usd is not None else None
    rented_rate = run.tokens / rented_days
    rented_title = f"rented alone, {run.devices:,} {run.choice.asked}"
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
    options.append(_mixed(sized, owned, rented_days, clock))
    return OwnedBeside(
        options=tuple(options),
        sentence=_sentence(options),
        assumptions=(
            "owned devices fail as often as rented ones; their power and hosting are not counted",
            "the mixed job is planned for our own executor; its gain over the rented devices alone "
            "is applied to their days",
        ),
    )


def _mixed(
    sized: Sized, owned: Cluster, rented_days: float, clock: Callable[[], float]
) -> OwnedOption:
    """One job on all devices, or why there is none."""
    question = sized.question
    best = sized.answer.best
    assert best is not None
    run = best.run
    title = "one job on both"
    nodes = f"{run.nodes}x" if run.nodes > 1 else ""
    try:
        cluster = get_cluster(f"{nodes}{run.width}x{run.choice.device}+{owned.name}")
        work = Workload(
            global_batch=run.batch, sequence_length=question.seq_len, precision=question.precision
        )
        task = task_of(resolve_model(question.name), cluster, work, Space())
        answer = plan_mixed(
            trace_task(task),
            cluster,
            work,
            space=Space(),
            stack=load_stack(),
            usd_per_hour={},
            time_limit_s=_MIXED_S,
            clock=clock,
        )
    except ShardwrightError as error:
        return OwnedOption(title=title, why=str(error))
    alone = next(
        (
            each.step_time_s
            for each in answer.compared
            if each.title.startswith(run.choice.device) and each.step_time_s is not None
        ),
        None,
    )
    if answer.step_time_s is None or alone is None:
        return OwnedOption(title=title, why=f"none found in {format_time(_MIXED_S)}")
    days = rented_days * answer.step_time_s / alone
    return OwnedOption(
        title=f"{title} ({answer.chosen})",
        days=days,
        tokens_per_day=run.tokens / days,
        usd=best.usd.value * days / rented_days if best.usd is not None else None,
    )


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
