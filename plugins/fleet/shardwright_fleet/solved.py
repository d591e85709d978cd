"""`solve_question`: prices and schedules a fleet, and computes the gain of more devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.prices.offer import Offer
from shardwright.requests.price_request import price_for
from shardwright_fleet.answer import (
    Advice,
    FleetAnswer,
    advice_of,
    fleet_answer,
    infeasible_answer,
)
from shardwright_fleet.prices import PhasePrices
from shardwright_fleet.problem import FleetProblem
from shardwright_fleet.question import (
    FleetCluster,
    FleetQuestion,
    Priced,
    node_counts,
    problem_of,
)
from shardwright_fleet.reader import part_of
from shardwright_fleet.relax import relax_fleet
from shardwright_fleet.solver import Solution, solve_fleet

# Shares of the remaining time: for the schedule, and for each what-if.
_SCHEDULE = 0.7
_GAP = 0.02
_LEAST_S = 2.0
# A cluster is tried with one more node, and with this fraction of its nodes added.
_PARTS = 4


def solve_question(
    question: FleetQuestion,
    prices: PhasePrices,
    *,
    clock: Callable[[], float],
    limit_s: float,
    buy: tuple[FleetCluster, ...] = (),
    seed: int = 0,
) -> FleetAnswer:
    """The answer; `buy` are clusters that could be added.

    Raises InfeasibleError if a model fits nowhere, InputError if the time limit comes first.
    """
    begin = clock()
    priced = prices.of(question)
    problem = problem_of(question, priced)
    # If prices took most of the time, a third of it is still left for the rest.
    end = max(begin + limit_s, clock() + limit_s / 3)
    left = end - clock()
    solution = solve_fleet(problem, clock=clock, limit_s=_SCHEDULE * left, seed=seed)
    if solution.status == "infeasible":
        relaxed = relax_fleet(problem, clock=clock, limit_s=max(1.0, end - clock()), seed=seed)
        answer = infeasible_answer(question, problem, relaxed)
        return replace(answer, search_time_s=clock() - begin)
    if solution.schedule is None:
        raise InputError(
            "the time limit ended the search before any schedule was found; raise it, for example "
            "--time-limit 5min"
        )
    answer = fleet_answer(question, priced, problem, solution)
    answer = replace(answer, assumptions=_assumptions(question, problem))
    changes = _changes(question, priced, prices, buy)
    found, untried = [], 0
    for number, (change, changed) in enumerate(changes):
        if clock() + _LEAST_S > end:
            untried = len(changes) - number
            break
        other, other_priced = changed()
        share = max(_LEAST_S, (end - clock()) / (len(changes) - number))
        found.append(_advice(change, other, other_priced, solution, answer, share, clock, seed))
    if untried:
        told = f"{untried} purchases were not tried for want of time (--time-limit)"
        answer = replace(answer, assumptions=(*answer.assumptions, told))
    return replace(
        answer,
        advice=tuple(each for each in found if each is not None),
        search_time_s=clock() - begin,
    )


def _changes(
    question: FleetQuestion, priced: Priced, prices: PhasePrices, buy: tuple[FleetCluster, ...]
) -> list[tuple[str, Callable[[], tuple[FleetQuestion, Priced]]]]:
    """Possible purchases as text, each with a function for its question and prices."""
    found: list[tuple[str, Callable[[], tuple[FleetQuestion, Priced]]]] = [
        (f"{one.on} rented in addition", partial(_with_rented, question, priced, one, prices))
        for one in buy
    ]
    every = [
        (parts, number, cluster)
        for parts in (0, _PARTS)
        for number, cluster in enumerate(question.clusters)
        if parts == 0 or cluster.nodes >= 2 * parts
    ]
    for parts, number, cluster in every:
        more = cluster.nodes // parts if parts else 1
        named = f"{more} more node{'s' if more > 1 else ''} of {cluster.name}"
        found.append((named, partial(_enlarged, question, priced, number, more, prices)))
    return found


def _assumptions(question: FleetQuestion, problem: FleetProblem) -> tuple[str, ...]:
    return (
        f"each phase ends within its hours with a probability of {question.sure:.0%} (sure)",
        "failures, restarts and storage as published clusters'",
        f"phases begin at multiples of {question.step_h:g} h (grid); without that, runs could end "
        f"at most {problem.grid_error_h:.0f} h earlier",
        "a phase that has begun is not moved; hours of owned clusters are paid in any case",
    )


def _advice(
    change: str,
    question: FleetQuestion,
    priced: Priced,
    solution: Solution,
    answer: FleetAnswer,
    limit_s: float,
    clock: Callable[[], float],
    seed: int,
) -> Advice | None:
    problem = problem_of(question, priced)
    other = solve_fleet(
        problem,
        clock=clock,
        limit_s=limit_s,
        hint=solution.schedule,
        seed=seed,
        gap=_GAP,
        order=False,
    )
    return advice_of(change, problem, other, answer)


def _enlarged(
    question: FleetQuestion, priced: Priced, number: int, more: int, prices: PhasePrices
) -> tuple[FleetQuestion, Priced]:
    """The question with a larger cluster, and the whole of it as an additional choice of every
    run."""
    cluster = question.clusters[number]
    nodes = cluster.nodes + more
    parts = {**cluster.parts, nodes: part_of(cluster.parts[cluster.nodes], nodes)}
    grown = replace(cluster, nodes=nodes, parts=parts)
    clusters = (*question.clusters[:number], grown, *question.clusters[number + 1 :])
    other = replace(question, clusters=clusters)
    longer = []
    for job, (run, phases) in enumerate(zip(question.runs, priced, strict=True)):
        choices = []
        for phase, known in enumerate(phases):
            one = None
            if number in run.clusters and nodes <= run.most:
                one = prices.one(other, job, phase, number, nodes)
            choices.append(known if one is None else (*known, one))
        longer.append(tuple(choices))
    return other, tuple(longer)


def _with_rented(
    question: FleetQuestion, priced: Priced, cluster: FleetCluster, prices: PhasePrices
) -> tuple[FleetQuestion, Priced]:
    """The question with an additional cluster for every run."""
    number = len(question.clusters)
    alone = replace(
        question,
        clusters=(*question.clusters, cluster),
        runs=tuple(replace(run, clusters=(*run.clusters, number)) for run in question.runs),
    )
    whole = cluster.parts[cluster.nodes]
    counts = {n for run in question.runs for n in node_counts(cluster, run)}
    grown = replace(cluster, parts={count: part_of(whole, count) for count in sorted(counts)})
    other = replace(alone, clusters=(*question.clusters, grown))
    more = []
    for job, (run, phases) in enumerate(zip(other.runs, priced, strict=True)):
        choices = []
        for phase, known in enumerate(phases):
            found = [
                prices.one(other, job, phase, number, count) for count in node_counts(cluster, run)
            ]
            choices.append((*known, *(one for one in found if one is not None)))
        more.append(tuple(choices))
    return other, tuple(more)


def rented_cluster(text: str, offers: tuple[Offer, ...] | None = None) -> FleetCluster:
    """`4x8xb200` as a rented cluster at its on-demand price; raises InputError."""
    whole = get_cluster(text)
    price = price_for(whole, "on-demand", offers)
    if len(whole.groups) != 1 or price is None:
        raise InputError(f"--buy {text}: name one type of device with a known on-demand price")
    group = whole.groups[0]
    return FleetCluster(
        name=text,
        on=text,
        nodes=group.count,
        node_devices=group.devices_per_node,
        device=group.device.name,
        parts={group.count: whole},
        price=price,
        kind="on-demand",
    )
