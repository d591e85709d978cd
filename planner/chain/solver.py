"""The integer programme: the same partition problem for OR-tools CP-SAT, as the certificate.

Blocks of equal kind that follow each other form a run and are counted, not enumerated: the
variables are the numbers x[stage, run, strategy]. A run of one block makes the same model a plain
assignment, so a chain without repetition needs nothing else.

Times are rounded down to multiples of `unit_s`, bytes down to whole bytes and capacities down
too where they are whole: so the programme is a relaxation, its bound is a bound on the true
optimum, and the loss is at most `error_s` (every rounded time times how often it can count).
The answer is deterministic: fixed seed, one worker, a limit in CP-SAT's deterministic time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.chain.problem import Array, Partition, PartitionProblem, fits, step_time

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_RESOLUTION = 2.0**34  # units in the longest step that is asked about; CP-SAT sums in 64 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerAnswer:
    """What the integer programme found and proved.

    status     `optimal`, `feasible`, `infeasible` or `unknown` (limit reached, or numbers
               that CP-SAT cannot sum)
    bound_s    no partition takes less; error_s  loss from rounding, already below the bound
    """

    status: str
    partition: Partition | None
    bound_s: float
    error_s: float

    def certifies(self, step_time_s: float) -> bool:
        """True where no partition can be faster than `step_time_s` by more than the rounding."""
        return self.status == "optimal" and step_time_s <= self.bound_s + self.error_s


def solve_integer(
    problem: PartitionProblem,
    *,
    hint: Partition | None = None,
    seed: int = 0,
    effort: float = 10.0,
) -> IntegerAnswer:
    """The best partition by CP-SAT, or that there is none.

    hint    a partition to start from; effort  limit in deterministic time (about seconds)
    """
    from ortools.sat.python import cp_model

    model = _CountModel(problem, hint)
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = effort
    status = solver.status_name(solver.solve(model.model)).lower()
    if status == "model_invalid":  # numbers beyond 64 bits: nothing is proven
        status = "unknown"
    found = model.read(solver) if status in ("optimal", "feasible") else None
    if found is not None and not fits(problem, found):
        found = None  # only by rounding of fractional bytes; the bound holds all the same
    bound = solver.best_objective_bound * model.unit_s if status != "infeasible" else math.inf
    return IntegerAnswer(status=status, partition=found, bound_s=bound, error_s=model.error_s)


class _CountModel:
    def __init__(self, problem: PartitionProblem, hint: Partition | None) -> None:
        from ortools.sat.python import cp_model

        self.problem = problem
        self.model = cp_model.CpModel()
        self.runs = _runs(problem)
        slowest = max(
            float((costs.forward_s + costs.backward_s.max(axis=1)).sum()) for costs in problem.costs
        )
        slowest += sum(slot.beside_s for slot in problem.slots)
        rounds = problem.num_microbatches
        longest = (rounds + 2) * slowest
        longest += float(max(tail.max() for tail in problem.tails_s)) + 4 * float(
            problem.send_forward_s.sum() + problem.send_backward_s.sum()
        )
        target = hint.step_time_s if hint is not None else longest
        self.unit_s = max(target, 1e-30) / _RESOLUTION
        self.ceiling = math.ceil(longest / self.unit_s) + 1
        n, p = problem.num_blocks, problem.num_stages
        self.error_s = self.unit_s * (4 * (rounds + 2) * (n + p) + 8 * p + 2)
        self._place()
        self._remember()
        self._time()
        if hint is not None:
            self._hint(hint)

    def _units(self, values: Array) -> Any:
        return np.floor(values / self.unit_s).astype(np.int64)

    def _place(self) -> None:
        """Counts, and that the runs are used up in order."""
        model, p, n = self.model, self.problem.num_stages, self.problem.num_blocks
        options = range(len(self.problem.strategies))
        self.count = [
            [
                [model.new_int_var(0, size, f"x{s}_{r}_{k}") for k in options]
                for r, (_, size) in enumerate(self.runs)
            ]
            for s in range(p)
        ]
        self.blocks = [[sum(kinds) for kinds in stage] for stage in self.count]
        self.edges: list[Any] = [0]
        through: list[Any] = [0] * len(self.runs)
        for s in range(p):
            model.add(sum(self.blocks[s]) >= 1)
            through = [done + more for done, more in zip(through, self.blocks[s], strict=True)]
            if s == p - 1:
                for done, (_, size) in zip(through, self.runs, strict=True):
                    model.add(done == size)
                self.edges.append(n)
                continue
            for r, (_, size) in enumerate(self.runs[:-1]):
                used_up = model.new_bool_var(f"used_up{s}_{r}")
                model.add(through[r] == size).only_enforce_if(used_up)
                model.add(through[r + 1] == 0).only_enforce_if(~used_up)
                model.add(through[r] <= size)
            model.add(through[-1] <= self.runs[-1][1])
            edge = model.new_int_var(s + 1, n - (p - 1 - s), f"edge{s}")
            model.add(edge == sum(through))
            self.edges.append(edge)

    def _remember(self) -> None:
        """Memory of every stage. Inside a run, strategies stand in the order of falling transient:
        swapping two neighbours so never raises the peak."""
        problem, model = self.problem, self.model
        for s, slot in enumerate(problem.slots):
            costs = problem.costs[slot.costs]
            ceiling = int(costs.saved_bytes.max(axis=1).sum() + costs.transient_bytes.max())
            peak = model.new_int_var(0, ceiling, f"peak{s}")
            saved: Any = 0
            for r, (block, size) in enumerate(self.runs):
                for k in self._order(block, slot.costs):
                    number = self.count[s][r][k]
                    saved = saved + int(costs.saved_bytes[block, k]) * number
                    used = model.new_bool_var(f"used{s}_{r}_{k}")
                    model.add(number <= size * used)
                    above = int(costs.transient_bytes[block, k])
                    model.add(peak >= saved + above).only_enforce_if(used)
            edges = self._of_range(problem.edge_bytes, 1.0, s)
            capacity = math.floor(min(slot.capacity_bytes, 2.0**60))
            for load in slot.loads:
                static = self._of_range(problem.static_bytes[load.static], 1.0, s)
                kept = load.in_flight * (edges + saved)
                rise = peak - saved if load.rises else 0
                model.add(static + kept + rise <= capacity)

    def _order(self, block: int, costs: int) -> list[int]:
        """Strategies of a block in the order in which they stand in a run."""
        above = self.problem.costs[costs].transient_bytes[block]
        return sorted(range(len(above)), key=lambda k: (-above[k], k))

    def _time(self) -> None:
        """The objective of planner/chain/problem.py, term by term."""
        problem, model, p = self.problem, self.model, self.problem.num_stages
        forward, backward, down, up = [], [], [], []
        for s, slot in enumerate(problem.slots):
            costs = problem.costs[slot.costs]
            f, b = self._units(costs.forward_s), self._units(costs.backward_s)
            blocks = [block for block, _ in self.runs]
            ahead = int(slot.forward_s / self.unit_s) + sum(
                int(f[block]) * number for block, number in zip(blocks, self.blocks[s], strict=True)
            )
            forward.append(ahead)
            back: Any = int(slot.backward_s / self.unit_s) + sum(
                int(b[block, k]) * number
                for block, numbers in zip(blocks, self.count[s], strict=True)
                for k, number in enumerate(numbers)
            )
            backward.append(back)
            down.append(self._at_start(self._units(problem.send_forward_s[s]), s))
            up.append(self._at_start(self._units(problem.send_backward_s[s]), s))
        tail = [self._of_range(problem.tail_of(s), self.unit_s, s) for s in range(p)]
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

    def _at_start(self, values: Any, stage: int) -> Any:
        """values[first block of the stage]; 0 for stage 0."""
        if stage == 0:
            return 0
        domain = values[1:].astype(np.int64)
        if np.all(domain == domain[0]):
            return int(domain[0])
        found = self.model.new_int_var(int(domain.min()), int(domain.max()), "")
        self.model.add_element(self.edges[stage], values.astype(np.int64).tolist(), found)
        return found

    def _of_range(self, values: Array, unit: float, stage: int) -> Any:
        """values[i, j] in units for the stage's blocks [i, j): linear in the counts where the
        values are a constant plus a sum over blocks, else looked up."""
        n = self.problem.num_blocks
        first, last = np.triu_indices(n)
        known = values[first, last + 1]
        single = np.diagonal(values, offset=1)
        fixed = float(single[0] + single[1] - values[0, 2]) if n > 1 else 0.0
        total = np.concatenate([[0.0], np.cumsum(single - fixed)])
        affine = fixed + total[last + 1] - total[first]
        if np.allclose(affine, known, rtol=1e-12, atol=1e-12 * float(np.abs(known).max())):
            parts = np.floor((single - fixed) / unit).astype(np.int64)
            return math.floor(fixed / unit) + sum(
                int(parts[block]) * number
                for (block, _), number in zip(self.runs, self.blocks[stage], strict=True)
            )
        low, high = math.floor(known.min() / unit), math.floor(known.max() / unit)
        if low == high:
            return low
        found = self.model.new_int_var(low, high, "")
        flat = np.clip(np.floor(values / unit), low, high).astype(np.int64).reshape(-1)
        index = self.edges[stage] * (n + 1) + self.edges[stage + 1]
        self.model.add_element(index, flat.tolist(), found)
        return found

    def _hint(self, hint: Partition) -> None:
        for s, (i, j) in enumerate(zip(hint.starts, hint.ends(), strict=True)):
            for r, (block, size) in enumerate(self.runs):
                inside = hint.strategies[max(i, block) : max(min(j, block + size), max(i, block))]
                for k, number in enumerate(self.count[s][r]):
                    self.model.add_hint(number, inside.count(k))

    def read(self, solver: cp_model.CpSolver) -> Partition:
        starts: list[int] = []
        strategies: list[int] = []
        for stage, slot in zip(self.count, self.problem.slots, strict=True):
            starts.append(len(strategies))
            for run, (block, _) in zip(stage, self.runs, strict=True):
                for k in self._order(block, slot.costs):
                    strategies.extend([k] * solver.value(run[k]))
        firsts, chosen = tuple(starts), tuple(strategies)
        time_s = step_time(self.problem, firsts, chosen)
        return Partition(starts=firsts, strategies=chosen, step_time_s=time_s)


def _runs(problem: PartitionProblem) -> list[tuple[int, int]]:
    """(first block, length) of each run of equal kinds."""
    runs: list[tuple[int, int]] = []
    for _, group in groupby(problem.kinds):
        first = sum(size for _, size in runs)
        runs.append((first, len(list(group))))
    return runs
