"""The partition problem as an integer program for OR-tools CP-SAT (`--solver ilp`).

For every stage and pair of cuts, a binary variable states whether the stage is between them, with
the fastest strategies that fit in memory (from chain/partition.py). A stage begins where the
previous one ends.

Times are rounded down to multiples of `unit_s`. So the program is a relaxation, and its bound is a
bound on the true optimum. The answer is deterministic: fixed seed, one worker, a limit in CP-SAT's
deterministic time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.chain.partition import PartitionSolver
from planner.chain.problem import Array, Partition, PartitionProblem

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_RESOLUTION = 2.0**34  # units in the longest step; CP-SAT sums in 64 bits
_EFFORT = 10.0  # limit in deterministic time, about seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerAnswer:
    """Result of the integer program.

    status   `optimal`, `feasible`, `infeasible` or `unknown` (limit reached)
    bound_s  lower bound on all partitions
    """

    status: str
    partition: Partition | None
    bound_s: float


def solve_integer(problem: PartitionProblem, *, seed: int = 0) -> IntegerAnswer:
    """The best partition by CP-SAT, or the proof that none exists."""
    from ortools.sat.python import cp_model

    program = _Program(problem)
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = _EFFORT
    status = solver.status_name(solver.solve(program.model)).lower()
    return IntegerAnswer(
        status=status,
        partition=program.read(solver) if status in ("optimal", "feasible") else None,
        bound_s=(
            math.inf if status == "infeasible" else solver.best_objective_bound * program.unit_s
        ),
    )


class _Program:
    def __init__(self, problem: PartitionProblem) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.model = problem, cp_model.CpModel()
        self.ranges = PartitionSolver(problem)
        self.tables = self.ranges.stage_tables(np.inf)
        slowest = sum(
            float((table.forward + table.backward).max(initial=0.0)) for table in self.tables
        )
        sends = float(problem.send_forward_s.sum() + problem.send_backward_s.sum())
        longest = (problem.num_microbatches + 1) * slowest + 2 * sends
        longest += float(max(tail.max() for tail in problem.tails_s))
        self.unit_s = max(longest, 1e-30) / _RESOLUTION
        self.ceiling = math.ceil(longest / self.unit_s)
        self.chosen = [
            [self.model.new_bool_var("") for _ in range(table.start.size)] for table in self.tables
        ]
        self._join()
        self._time()

    def _join(self) -> None:
        """Constraints: each stage has one place, and begins where the previous one ends."""
        for chosen in self.chosen:
            self.model.add_exactly_one(chosen)
        for stage in range(1, self.problem.num_stages):
            before, here = self.tables[stage - 1], self.tables[stage]
            for cut in np.union1d(before.end, here.start).tolist():
                ends = [self.chosen[stage - 1][k] for k in np.flatnonzero(before.end == cut)]
                begins = [self.chosen[stage][k] for k in np.flatnonzero(here.start == cut)]
                self.model.add(sum(ends) == sum(begins))

    def _time(self) -> None:
        """The objective of planner/chain/problem.py, term by term."""
        problem, model, p = self.problem, self.model, self.problem.num_stages
        forward, backward, down, up, tail = [], [], [], [], []
        for s, table in enumerate(self.tables):
            forward.append(self._of_stage(s, table.forward))
            backward.append(self._of_stage(s, table.backward))
            down.append(self._of_stage(s, problem.send_forward_s[s, table.start]) if s else 0)
            up.append(self._of_stage(s, problem.send_backward_s[s, table.start]) if s else 0)
            tail.append(self._of_stage(s, problem.tail_of(s)[table.start, table.end]))
        rounds = problem.num_microbatches
        longest, end = self._bounded("longest"), self._bounded("end", negative=True)
        if problem.schedule == "gpipe":
            for s in range(p):
                model.add(longest >= forward[s])
                slowest = self._bounded(f"slowest{s}")
                for j in range(s, p):
                    model.add(slowest >= backward[j])
                reached = sum(backward[s:]) + sum(up[s + 1 :])
                model.add(end >= reached + (rounds - 1) * slowest + tail[s])
            model.minimize(sum(forward) + sum(down) + (rounds - 1) * longest + end)
            return
        total = [sum(parts) for parts in zip(forward, backward, down, up, strict=True)]
        step = self._bounded("step")
        model.add(step >= sum(total) + longest + end)
        for s, slot in enumerate(problem.slots):
            here, behind = forward[s] + backward[s], sum(total[s + 1 :])
            if rounds > slot.in_flight:
                model.add(longest >= behind + (rounds - slot.in_flight) * here)
            model.add(step >= sum(total) - behind + (rounds - 1) * here + tail[0])
            model.add(end >= tail[s] - sum(backward[:s]) - sum(up[1 : s + 1]))
        model.minimize(step)

    def _bounded(self, name: str, *, negative: bool = False) -> cp_model.IntVar:
        return self.model.new_int_var(-self.ceiling if negative else 0, self.ceiling, name)

    def _of_stage(self, stage: int, seconds: Array) -> Any:
        """Time of a stage at its chosen place, in units, from the `seconds` at each place."""
        from ortools.sat.python import cp_model

        units = np.floor(seconds / self.unit_s).astype(np.int64).tolist()
        if len(set(units)) <= 1:
            return units[0] if units else 0
        return cp_model.LinearExpr.weighted_sum(self.chosen[stage], units)

    def read(self, solver: cp_model.CpSolver) -> Partition:
        """The partition of a solution."""
        starts = (
            next(int(i) for i, v in zip(table.start, chosen, strict=True) if solver.value(v))
            for table, chosen in zip(self.tables, self.chosen, strict=True)
        )
        return self.ranges.filled(tuple(starts))
