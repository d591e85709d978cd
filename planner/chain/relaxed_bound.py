"""The linear program that assigns blocks to stages: a bound for models with too many orders.

x_bs is the fraction of block b in stage s, and every block is at its fastest. The step of
chain/problem.py is linear in the stages' times, so its minimum over fractions of blocks is a linear
program, and a lower bound for whole blocks. A block's inputs are made in its stage or an earlier
one, and the last block is in the last stage.

    minimise   sum_s T_s + (p - 1) send + L + E
    L >= sum_{j>s} (T_j + send) + (M - w_s) T_s    1f1b, each s with M > w_s
    L >= (M - 1) F_s                               gpipe
    E >= tail_s - sum_{j<s} (B_j + up)             gpipe: also + (M - 1) B_j, j >= s

`send` is the minimum time of a crossing forward and back, and `up` half of it, the way back. A
stage's tail is the minimum tail of any stage plus the minimum addition of each of its blocks.
Memory is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack

from planner.chain.problem import Array, PartitionProblem

_LOSS = 1e-6  # relative: HiGHS keeps constraints within 1e-7


def relaxed_bound(
    problem: PartitionProblem,
    flows: Sequence[tuple[int, int]],
    *,
    crossing_s: float,
    tail_s: float,
    tails_s: Array,
) -> float:
    """Lower bound in seconds on the step time of a cell, for every assignment of its blocks to
    stages; 0 if the program was not solved.

    flows       pairs (producing block, consuming block)
    crossing_s  minimum seconds of one crossing between stages, forward and back
    tail_s      minimum seconds of a stage after its last backward
    tails_s     [p, n] minimum seconds that a block adds to tail_s
    """
    p, n, micro = problem.num_stages, problem.num_blocks, problem.num_microbatches
    slots = problem.slots
    forward = np.asarray([problem.costs[slot.costs].forward_s for slot in slots])
    backward = np.asarray([problem.costs[slot.costs].backward_s.min(axis=1) for slot in slots])
    unit = float((forward + backward + tails_s).sum()) / (p * n) or 1.0
    rows: list[Array] = []  # rows @ x <= limits; x is [p, n] flat, then L, then E
    limits: list[float] = []

    def at_most(work: Array, *, longest: float = 0.0, end: float = 0.0, limit: float) -> None:
        rows.append(np.concatenate([work.ravel() / unit, [-longest, -end]]))
        limits.append(limit / unit)

    def of(stage: int, seconds: Array) -> Array:
        found = np.zeros((p, n))
        found[stage] = seconds[stage]
        return found

    whole = forward + backward
    gpipe = problem.schedule == "gpipe"
    for s, slot in enumerate(slots):
        behind = sum((of(j, whole) for j in range(s + 1, p)), np.zeros((p, n)))
        fixed = sum(other.outside_blocks_s for other in slots[s + 1 :]) + (p - 1 - s) * crossing_s
        if gpipe:
            at_most((micro - 1) * of(s, forward), longest=1, limit=-(micro - 1) * slot.forward_s)
        elif micro > slot.in_flight:
            rounds = micro - slot.in_flight
            at_most(
                behind + rounds * of(s, whole),
                longest=1,
                limit=-fixed - rounds * slot.outside_blocks_s,
            )
        before = sum((of(j, backward) for j in range(s)), np.zeros((p, n)))
        done = sum(other.backward_s for other in slots[:s]) + s * crossing_s / 2
        for j in range(s, p) if gpipe else (s,):
            more = (micro - 1) * of(j, backward) if gpipe else np.zeros((p, n))
            at_most(of(s, tails_s) - before + more, end=1, limit=done - tail_s)
    order, blocks = _order(flows, p, n), np.tile(np.arange(n), p)
    parts = [(0.0, 0.0 if b == n - 1 and s < p - 1 else 1.0) for s in range(p) for b in range(n)]
    answer = linprog(
        np.concatenate([whole.ravel() / unit, [1.0, 1.0]]),
        A_ub=vstack([csr_array(np.asarray(rows)), order]),
        b_ub=np.concatenate([limits, np.zeros(order.shape[0])]),
        A_eq=csr_array((np.ones(p * n), (blocks, np.arange(p * n))), (n, p * n + 2)),
        b_eq=np.ones(n),
        bounds=[*parts, (0, None), (None, None)],
        method="highs",
    )
    if not answer.success:
        return 0.0
    fixed = sum(slot.outside_blocks_s for slot in slots) + (p - 1) * crossing_s
    return (float(answer.fun) * unit + fixed) * (1 - _LOSS)


def _order(flows: Sequence[tuple[int, int]], p: int, n: int) -> csr_array:
    """Rows (stage, flow), each at most 0: the fraction of the consumer in stages up to this one is
    at most that of the producer."""
    stage, flow, part = np.nonzero(np.tri(p - 1, p)[:, None, :].repeat(len(flows), axis=1))
    earlier, later = np.asarray(flows, dtype=np.intp).reshape(-1, 2).T
    row = stage * len(flows) + flow
    column = np.concatenate([part * n + later[flow], part * n + earlier[flow]])
    signs = np.repeat([1.0, -1.0], row.size)
    return csr_array((signs, (np.tile(row, 2), column)), ((p - 1) * len(flows), p * n + 2))
