"""Schedules of a fleet: small ones by hand, all others against a search that tries everything."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shardwright_fleet.problem import (
    Choice,
    FleetProblem,
    Job,
    Placed,
    Pool,
    end_of,
    values_of,
)
from shardwright_fleet.relax import relax_fleet
from shardwright_fleet.solver import FleetModel, Least, solve_fleet


def one_way(nodes, steps, usd=0.0, pool=0):
    return (Choice(pool=pool, nodes=nodes, steps=steps, usd=usd),)


def job(*phases, **more):
    return Job(phases=tuple(phases), **more)


def ends(problem, solution):
    return [end_of(j, p) for j, p in zip(problem.jobs, solution.schedule, strict=True)]


def test_a_deadline_forces_the_order():
    # Both need all four nodes; the second is due when the first would still run.
    problem = FleetProblem(
        pools=(Pool(nodes=4),),
        jobs=(job(one_way(4, 10), deadline=20), job(one_way(4, 5), deadline=5)),
    )
    found = solve_fleet(problem)
    assert found.status == "optimal"
    assert ends(problem, found) == [15, 5]
    assert [proof.value for proof in found.proofs] == [0, 0, 15]


def test_priority_decides_who_is_late():
    jobs = [job(one_way(4, 10), deadline=10, priority=1), job(one_way(4, 10), deadline=10)]
    for favoured in (0, 1):
        chosen = tuple(replace(j, priority=3 if n == favoured else 1) for n, j in enumerate(jobs))
        problem = FleetProblem(pools=(Pool(nodes=4),), jobs=chosen)
        found = solve_fleet(problem)
        assert ends(problem, found)[favoured] == 10
        assert found.proofs[0].value == found.proofs[0].bound == 10  # 10 steps of priority 1


def test_lateness_comes_before_money_unless_it_has_a_price():
    cheap, fast = (
        Choice(pool=0, nodes=1, steps=8, usd=10.0),
        Choice(pool=0, nodes=4, steps=4, usd=50),
    )
    late = FleetProblem(pools=(Pool(nodes=4),), jobs=(job((cheap, fast), deadline=4),))
    assert solve_fleet(late).schedule == ((Placed(choice=1, start=0),),)
    # Four steps late at 5 dollars and 10 dollars of rent are less than 50 dollars.
    fined = replace(late, jobs=(replace(late.jobs[0], usd_per_step=5.0),))
    found = solve_fleet(fined)
    assert found.schedule == ((Placed(choice=0, start=0),),)
    assert found.proofs[1].value == pytest.approx(30.0)
    assert found.proofs[1].bound == pytest.approx(30.0)


def test_windows_releases_orders_and_phases_are_kept():
    problem = FleetProblem(
        pools=(Pool(nodes=2, opens=3, closes=30), Pool(nodes=1)),
        jobs=(
            job((*one_way(2, 4), *one_way(1, 9, pool=1)), one_way(2, 5), release=1),
            job(one_way(1, 2, pool=1), after=(0,)),
        ),
    )
    found = solve_fleet(problem)
    # The second phase is on pool 0 alone, so the first must be there too: 3 + 4 + 5, then 2 more.
    assert found.schedule == (
        (Placed(choice=0, start=3), Placed(choice=0, start=7)),
        (Placed(choice=0, start=12),),
    )
    moving = replace(problem, jobs=(replace(problem.jobs[0], may_move=True), problem.jobs[1]))
    assert solve_fleet(moving).schedule == found.schedule
    early = replace(problem, pools=(Pool(nodes=2, closes=11), Pool(nodes=1)))
    assert solve_fleet(early).proofs[-1].value == 1 + 4 + 5 + 2


def test_hard_deadlines_that_cannot_be_kept_and_the_smallest_changes():
    both = [job(one_way(4, 10), deadline=10, hard=True), job(one_way(4, 5), deadline=10, hard=True)]
    problem = FleetProblem(pools=(Pool(nodes=4),), jobs=tuple(both))
    assert solve_fleet(problem).status == "infeasible"
    found = relax_fleet(problem)
    assert found.alone == ()
    assert sum(each.steps for each in found.extensions) == 5  # either the first or the second
    assert found.added == (4,)
    alone = replace(problem, jobs=(replace(both[0], deadline=7),))
    found = relax_fleet(alone)
    assert [(each.job, each.steps) for each in found.alone] == [(0, 3)]
    assert found.added == ()


def tried_everything(problem):
    """(lateness, dollars, end), least one after the other; None where nothing is possible.

    Of each order of the phases and each choice of ways the earliest starts: some order of earliest
    starts is best, as every value rises with every end.
    """
    best = None
    phases = [(n, p) for n, j in enumerate(problem.jobs) for p in range(len(j.phases))]
    ways = [range(len(problem.jobs[n].phases[p])) for n, p in phases]
    orders = [
        order
        for order in itertools.permutations(phases)
        if all(order.index((n, p)) > order.index((n, p - 1)) for n, p in phases if p)
    ]
    for picked in itertools.product(*ways):
        way = dict(zip(phases, picked, strict=True))
        chosen = {(n, p): problem.jobs[n].phases[p][way[n, p]] for n, p in phases}
        if any(chosen[n, p].pool != chosen[n, 0].pool for n, p in phases):
            continue
        for order in orders:
            starts = earliest(problem, chosen, order)
            if starts is None:
                continue
            placed = tuple(
                tuple(Placed(choice=way[n, p], start=starts[n, p]) for p in range(len(j.phases)))
                for n, j in enumerate(problem.jobs)
            )
            over = [end_of(j, p) for j, p in zip(problem.jobs, placed, strict=True)]
            if any(j.hard and end > j.deadline for j, end in zip(problem.jobs, over, strict=True)):
                continue
            late = [max(0, e - j.deadline) for j, e in zip(problem.jobs, over, strict=True)]
            usd = sum(choice.usd for choice in chosen.values())
            value = (
                sum(j.priority * x for j, x in zip(problem.jobs, late, strict=True)),
                usd,
                max(over),
            )
            best = value if best is None else min(best, value)
    return best


def earliest(problem, chosen, order):
    used = {}
    starts = {}
    for n, p in order:
        choice, pool = chosen[n, p], problem.pools[chosen[n, p].pool]
        at = max(problem.jobs[n].release, pool.opens)
        if p:
            at = max(at, starts[n, p - 1] + chosen[n, p - 1].steps)
        while any(
            used.get((choice.pool, t), 0) + choice.nodes > pool.nodes
            for t in range(at, at + choice.steps)
        ):
            at += 1
        if pool.closes is not None and at + choice.steps > pool.closes:
            return None
        starts[n, p] = at
        for t in range(at, at + choice.steps):
            used[choice.pool, t] = used.get((choice.pool, t), 0) + choice.nodes
    return starts


@st.composite
def problems(draw):
    pools = tuple(
        Pool(
            nodes=draw(st.integers(1, 3)),
            opens=draw(st.integers(0, 2)),
            closes=draw(st.sampled_from([None, None, 12])),
        )
        for _ in range(draw(st.integers(1, 2)))
    )

    def phase():
        choices = []
        for _ in range(draw(st.integers(1, 2))):
            pool = draw(st.integers(0, len(pools) - 1))
            choices.append(
                Choice(
                    pool=pool,
                    nodes=draw(st.integers(1, pools[pool].nodes)),
                    steps=draw(st.integers(1, 5)),
                    usd=float(draw(st.integers(0, 9))),
                )
            )
        return tuple(choices)

    jobs = []
    for number in range(draw(st.integers(2, 3))):
        phases = tuple(phase() for _ in range(2 if number == 0 and draw(st.booleans()) else 1))
        jobs.append(
            Job(
                phases=phases,
                release=draw(st.integers(0, 3)),
                deadline=draw(st.integers(2, 10)),
                hard=draw(st.sampled_from([False, False, True])),
                priority=draw(st.integers(1, 3)),
            )
        )
    return FleetProblem(pools=pools, jobs=tuple(jobs))


FEW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@FEW
@given(problems())
def test_it_is_as_good_as_trying_everything(problem):
    best, found = tried_everything(problem), solve_fleet(problem, order=False)
    if best is None:
        assert found.status == "infeasible"
        return
    assert found.status == "optimal"
    assert tuple(proof.value for proof in found.proofs) == best
    for proof in found.proofs:
        assert proof.bound == pytest.approx(proof.value, abs=0.01)
    kept(problem, found.schedule)


def kept(problem, schedule):
    """Capacities at every step, windows, releases, orders."""
    for number, pool in enumerate(problem.pools):
        placed = [
            (one.start, one.start + choice.steps, choice.nodes)
            for j, row in zip(problem.jobs, schedule, strict=True)
            for phase, one in zip(j.phases, row, strict=True)
            if (choice := phase[one.choice]).pool == number
        ]
        for begin, end, _ in placed:
            assert begin >= pool.opens
            assert pool.closes is None or end <= pool.closes
        for step in range(max((end for _, end, _ in placed), default=0)):
            assert sum(n for begin, end, n in placed if begin <= step < end) <= pool.nodes
    for j, row in zip(problem.jobs, schedule, strict=True):
        at = j.release
        for phase, one in zip(j.phases, row, strict=True):
            assert one.start >= at
            at = one.start + phase[one.choice].steps


@FEW
@given(problems(), st.integers(0, 2))
def test_more_nodes_are_never_worse(problem, more):
    wider = replace(
        problem, pools=tuple(replace(pool, nodes=pool.nodes + more) for pool in problem.pools)
    )
    before, after = solve_fleet(problem, order=False), solve_fleet(wider, order=False)
    if before.schedule is not None:
        assert after.schedule is not None
        assert [proof.value for proof in after.proofs] <= [proof.value for proof in before.proofs]


def test_equal_problems_give_equal_schedules():
    problem = FleetProblem(
        pools=(Pool(nodes=3),),
        jobs=tuple(job(one_way(1 + n % 2, 3 + n), deadline=8, priority=1 + n) for n in range(5)),
    )
    first = solve_fleet(problem)
    assert first == solve_fleet(problem)
    assert values_of(problem, first.schedule).end == first.proofs[-1].value


def test_a_target_beyond_64_bits_proves_nothing():
    problem = FleetProblem(pools=(Pool(nodes=4),), jobs=(job(one_way(4, 10)),))
    model = FleetModel(problem)
    assert model.least(2**61 * model.end, 1.0, 0, 0.0) == Least(status="unknown")
