"""Interleaved 1F1B: several stages per rank, and its form that hides all-to-alls of experts."""

from __future__ import annotations

import functools

from profiles.errors import InputError
from simulator.schedules.action import backward, forward
from simulator.schedules.schedule import Rows, ScheduleKind, ScheduleOptions, register


def _held(p: int, m: int, v: int, *, ahead: int = 0) -> tuple[tuple[int, ...], ...]:
    """Per rank: micro-batches of each stage when the rank keeps the most, after its last warm-up
    forward.

    Their sum is 1 + (p - 1) / (p v) times that of 1F1B (Korthikanti et al., arXiv 2205.05198,
    section 4.2.3). The rank's stages run p micro-batches each in turn. If the peak occurs several
    times, the last one counts.

    ahead  forwards before the first backward, in addition to those of interleaved 1F1B
    """
    peaks = []
    for rank in range(p):
        rounds, rest = divmod(min((v - 1) * p + 2 * (p - 1 - rank) + 1 + ahead, m * v), p * v)
        peaks.append(tuple(rounds * p + min(max(rest - t * p, 0), p) for t in range(v)))
    return tuple(peaks)


@register(ScheduleKind(name="interleaved", stages_per_rank=0, whole_rounds=True, held=_held))
def interleaved(num_ranks: int, num_microbatches: int, options: ScheduleOptions) -> Rows:
    """1F1B over several stages per rank (Narayanan et al., arXiv 2104.04473, section 2.2).

    Micro-batches run in rounds of m / max(1, m // ranks), as in torch's ScheduleInterleaved1F1B.
    The number of micro-batches must be a multiple of the number of rounds.
    """
    return _rows(num_ranks, num_microbatches, options.stages_per_rank)


@register(
    ScheduleKind(
        name="interleaved-overlap",
        stages_per_rank=0,
        pairs=True,
        for_experts=True,
        whole_rounds=True,
        held=functools.partial(_held, ahead=1),
    )
)
def interleaved_overlap(num_ranks: int, num_microbatches: int, options: ScheduleOptions) -> Rows:
    """Interleaved 1F1B with one forward more before the first backward, so that each backward runs
    together with the forward of another micro-batch (Megatron-Core core_v0.14,
    --overlap-moe-expert-parallel-comm: core/pipeline_parallel/schedules.py,
    get_pp_rank_microbatches)."""
    return _rows(num_ranks, num_microbatches, options.stages_per_rank, ahead=1)


def _rows(num_ranks: int, num_microbatches: int, stages_per_rank: int, ahead: int = 0) -> Rows:
    rounds = max(1, num_microbatches // num_ranks)
    if num_microbatches % rounds:
        raise InputError(
            f"interleaved runs {num_microbatches} micro-batches in {rounds} rounds, which does not "
            f"divide them; use a multiple of {num_ranks} micro-batches"
        )
    per_round = num_microbatches // rounds
    total = stages_per_rank * num_microbatches
    rows = []
    for rank in range(num_ranks):
        warm_up = (stages_per_rank - 1) * per_round + 2 * (num_ranks - 1 - rank)
        warm_up = min(warm_up + ahead, total)
        forwards = _turns(rank, num_ranks, stages_per_rank, per_round, total, reverse=False)
        backwards = _turns(rank, num_ranks, stages_per_rank, per_round, total, reverse=True)
        row = [forward(*turn) for turn in forwards[:warm_up]]
        for i in range(total - warm_up):
            row += [forward(*forwards[warm_up + i]), backward(*backwards[i])]
        row += [backward(*turn) for turn in backwards[total - warm_up :]]
        rows.append(tuple(row))
    return tuple(rows)


def _turns(
    rank: int, num_ranks: int, local_stages: int, per_round: int, total: int, *, reverse: bool
) -> list[tuple[int, int]]:
    """(stage, micro-batch) of a rank's forwards, or backwards if `reverse`, in order."""
    counts = [0] * local_stages
    order = []
    for step in range(total):
        local = step // per_round % local_stages
        if reverse:
            local = local_stages - 1 - local
        order.append((local * num_ranks + rank, counts[local]))
        counts[local] += 1
    return order
