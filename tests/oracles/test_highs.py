"""The planner's optimum against HiGHS through OR-tools on 100 mid-size problems.

The programme here is another than the planner's own (chain/solver.py counts blocks of a kind for
CP-SAT in rounded units): a binary for every interval that a stage may be and for every block,
strategy and stage, in floating point, solved to a relative gap of 1e-9.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.chain.partition import partition
from planner.chain.problem import Load
from tests.oracles.random_chains import draw_chain

pywraplp = pytest.importorskip(
    "ortools.linear_solver.pywraplp", reason="this ortools has no wrapper of HiGHS"
)

CLOSED = 100
_GAP = 1e-9


class Programme:
    """Intervals and strategies of the stages of a chain, without an objective."""

    def __init__(self, chain):
        self.chain = chain
        self.solver = pywraplp.Solver.CreateSolver("HIGHS")
        n, stages = chain.num_blocks, chain.num_stages
        new = self.solver.BoolVar
        self.is_range = {
            (s, i, j): new("")
            for s in range(stages)
            for i in range(s, n)
            for j in range(i + 1, n - (stages - 1 - s) + 1)
            if (i == 0) == (s == 0) and (j == n) == (s == stages - 1)
        }
        options = range(len(chain.strategies))
        self.uses = {(s, b, k): new("") for s in range(stages) for b in range(n) for k in options}
        for s in range(stages):
            mine = self.ranges(s)
            self.solver.Add(sum(var for _, _, var in mine) == 1)
            for b in range(n):
                inside = sum(var for i, j, var in mine if i <= b < j)
                self.solver.Add(sum(self.uses[s, b, k] for k in options) == inside)
        for s in range(1, stages):
            for cut in range(1, n):
                ends = sum(var for _, j, var in self.ranges(s - 1) if j == cut)
                self.solver.Add(ends == sum(var for i, _, var in self.ranges(s) if i == cut))

    def ranges(self, stage):
        return [(i, j, var) for (s, i, j), var in self.is_range.items() if s == stage]

    def of_blocks(self, stage, figure):
        """Sum over the stage's blocks of figure[block, strategy]."""
        rows = ((b, k, var) for (s, b, k), var in self.uses.items() if s == stage)
        return sum(float(figure[b, k]) * var for b, k, var in rows)

    def of_range(self, stage, figure):
        return sum(float(figure[i, j]) * var for i, j, var in self.ranges(stage))

    def at_start(self, stage, figure):
        return sum(float(figure[i]) * var for i, _, var in self.ranges(stage)) if stage else 0.0

    def least(self, value):
        """Solves for the least `value`; its bound, or infinity where nothing fits."""
        parameters = pywraplp.MPSolverParameters()
        parameters.SetDoubleParam(pywraplp.MPSolverParameters.RELATIVE_MIP_GAP, _GAP)
        self.solver.Minimize(value)
        status = self.solver.Solve(parameters)
        if status == pywraplp.Solver.INFEASIBLE:
            return np.inf
        assert status == pywraplp.Solver.OPTIMAL
        return self.solver.Objective().Value()

    def plan(self):
        n = self.chain.num_blocks
        taken = {(s, i) for (s, i, _), var in self.is_range.items() if var.solution_value() > 0.5}
        starts = tuple(i for _, i in sorted(taken))
        used = {b: k for (_, b, k), var in self.uses.items() if var.solution_value() > 0.5}
        return starts, tuple(used[b] for b in range(n))


def closed_form(chain):
    """The least objective of planner/chain/problem.py, by HiGHS."""
    made = Programme(chain)
    stages, rounds = range(chain.num_stages), chain.num_microbatches
    infinity = made.solver.infinity()
    forward, backward, down, up = [], [], [], []
    for s in stages:
        slot = chain.slots[s]
        costs = chain.costs[slot.costs]
        ahead = np.repeat(costs.forward_s[:, None], len(chain.strategies), axis=1)
        forward.append(slot.forward_s + made.of_blocks(s, ahead))
        backward.append(slot.backward_s + made.of_blocks(s, costs.backward_s))
        down.append(made.at_start(s, chain.send_forward_s[s]))
        up.append(made.at_start(s, chain.send_backward_s[s]))
        (load,) = chain.slots[s].loads
        kept = made.of_range(s, chain.edge_bytes) + made.of_blocks(s, costs.saved_bytes)
        made.solver.Add(load.in_flight * kept <= chain.slots[s].capacity_bytes)
    tail = [made.of_range(s, chain.tail_of(s)) for s in stages]
    new = made.solver.NumVar
    if chain.schedule == "gpipe":
        slowest, end = new(0, infinity, ""), new(-infinity, infinity, "")
        for s in stages:
            made.solver.Add(slowest >= forward[s])
            behind = new(0, infinity, "")
            for later in stages[s:]:
                made.solver.Add(behind >= backward[later])
            reached = sum(backward[s:]) + sum(up[s + 1 :])
            made.solver.Add(end >= reached + (rounds - 1) * behind + tail[s])
        return made.least(sum(forward) + sum(down) + (rounds - 1) * slowest + end)
    total = [sum(parts) for parts in zip(forward, backward, down, up, strict=True)]
    step, longest = new(0, infinity, ""), new(0, infinity, "")
    end = new(-infinity, infinity, "")
    made.solver.Add(step >= sum(total) + longest + end)
    for s in stages:
        here, behind = forward[s] + backward[s], sum(total[s + 1 :])
        left = rounds - chain.slots[s].in_flight
        if left > 0:
            made.solver.Add(longest >= behind + left * here)
        made.solver.Add(step >= sum(total) - behind + (rounds - 1) * here + tail[0])
        made.solver.Add(end >= tail[s] - sum(backward[:s]) - sum(up[1 : s + 1]))
    return made.least(step)


def mid_size(number):
    """A chain with tails and memory by what is in flight; capacities that bind."""
    rng = np.random.default_rng([5, number])
    schedule, ranks = ("1f1b", "gpipe")[number % 2], int(rng.integers(2, 5))
    n, micro = int(rng.integers(8, 15)), int(rng.integers(1, 17))
    problem = draw_chain(
        [5, number],
        schedule,
        ranks=ranks,
        blocks=n,
        micro=micro,
        unlike=number % 3 == 0,
        mixed=number % 4 < 2,
        strategies=2,
    )
    chain = problem.chain
    tails = [
        np.asarray([[problem.tail_s(s, ((i, max(i, j)),)) for j in range(n + 1)] for i in range(n)])
        for s in range(ranks)
    ]
    kept = [micro if schedule == "gpipe" else min(micro, ranks - s) for s in range(ranks)]
    room = float(np.mean(kept)) * float(chain.costs[0].saved_bytes.mean(axis=1).sum()) / ranks
    slots = tuple(
        replace(
            slot,
            in_flight=k,
            loads=(Load(in_flight=k),),
            capacity_bytes=room * (0.9 + 0.6 * rng.random()),
            tail=s,
        )
        for s, (slot, k) in enumerate(zip(chain.slots, kept, strict=True))
    )
    # Nothing beyond what is kept: the programme here has no order inside a stage.
    costs = tuple(replace(c, transient_bytes=np.zeros_like(c.transient_bytes)) for c in chain.costs)
    return replace(chain, costs=costs, slots=slots, tails_s=tuple(tails))


# Every fifth in every run: both schedules, blocks alike and not. The others with make validate.
EVERY_RUN = tuple(range(0, CLOSED, 5))
OTHERS = tuple(number for number in range(CLOSED) if number not in EVERY_RUN)


def test_there_are_100_problems():
    assert len(EVERY_RUN) + len(OTHERS) >= 100


@pytest.mark.parametrize(
    "numbers", [EVERY_RUN, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["fifth", "others"]
)
def test_the_dynamic_programme_finds_what_highs_finds(numbers):
    found = 0
    for number in numbers:
        chain = mid_size(number)
        best, least = partition(chain), closed_form(chain)
        if best is None:
            assert np.isinf(least)
            continue
        assert best.step_time_s == pytest.approx(least, rel=1e-7)
        found += 1
    assert found >= len(numbers) // 2
