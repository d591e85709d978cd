"""Random small chains for every schedule, and what a plan of them takes and needs, from scratch:
memory by walking a rank's actions, time by the event timeline. Nothing of the planner's search."""

from __future__ import annotations

import functools
import itertools

import numpy as np

from planner.chain.problem import BlockCosts, Load, Partition, PartitionProblem, StageSlot
from planner.costs.split_problem import RankBytes, SplitProblem, ranges_of
from simulator.schedules.action import ActionKind
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import build_schedule
from simulator.schedules.timeline import simulate
from tests.executor.fake_accelerator.message_order import under_way, with_messages

V_SCHEDULES = ("zbv", "v-half", "v-min", "dualpipev")
TWICE = (*V_SCHEDULES, "interleaved")  # two stages per rank


def draw_chain(seed, schedule, *, ranks, blocks, micro, unlike, mixed, strategies):
    """A SplitProblem without limit on memory.

    unlike   every block its own kind; else an embedding, equal layers and a head
    mixed    ranks in turn on two types of device, on which blocks cost differently
    """
    rng = np.random.default_rng(seed)
    n, per_rank = blocks, 2 if schedule in TWICE else 1
    kinds = tuple(range(n)) if unlike else (0, *[1] * (n - 2), 2)
    at, count = np.asarray(kinds), max(kinds) + 1
    saved = np.sort(rng.random((count, strategies)) + 0.05, axis=1)[:, ::-1][at]
    half = saved * rng.random((count, strategies))[at]
    ahead, back = rng.random((count, strategies))[at], rng.random((count, strategies))[at]
    costs, weights = [], []
    for _ in range(2 if mixed else 1):
        forward = (0.3 + rng.random(count))[at]
        weight = forward * (0.3 + rng.random(count))[at]
        again = np.sort(rng.random((count, strategies)), axis=1)[at] * (strategies > 1)
        inputs = (forward * (0.5 + rng.random(count))[at])[:, None] + again
        costs.append(
            BlockCosts(
                forward_s=forward,
                backward_s=inputs + weight[:, None],
                saved_bytes=saved,
                transient_bytes=np.maximum(ahead, back),
            )
        )
        weights.append(weight)
    parameters = np.concatenate([[0.0], np.cumsum((0.1 + rng.random(count))[at])])
    size, send_s = 0.1 * rng.random(), 0.2 * rng.random()
    leaving = np.concatenate([[0.0], np.full(n - 1, size), [0.0]])
    apart = np.concatenate([[0.0], np.full(n - 1, size)]) * rng.integers(0, 2)
    made = build_schedule(
        schedule, num_ranks=ranks, num_microbatches=micro, stages_per_rank=per_rank
    )

    def held(ranges):
        return float(sum(parameters[j] - parameters[i] for i, j in ranges))

    stages = ranks * per_rank
    beside = 0.3 * rng.integers(0, 2) * rng.random((stages, 2))
    chain = PartitionProblem(
        kinds=kinds,
        strategies=tuple(f"strategy {k}" for k in range(strategies)),
        schedule="gpipe" if schedule == "gpipe" else "1f1b",
        num_microbatches=micro,
        costs=tuple(costs),
        slots=tuple(
            StageSlot(
                in_flight=1,
                capacity_bytes=np.inf,
                loads=(Load(in_flight=1),),
                costs=made.stage_to_rank[stage] % len(costs),
                forward_s=float(beside[stage, 0]),
                backward_s=float(beside[stage, 1]),
            )
            for stage in range(stages)
        ),
        static_bytes=(np.zeros((n, n + 1)),),
        tails_s=(np.zeros((n, n + 1)),),
        edge_bytes=leaving[None, :] - apart[:, None],
        send_forward_s=np.full((stages, n), send_s),
        send_backward_s=np.full((stages, n), send_s),
    )
    tail_s = 0.3 * rng.random(ranks)
    return SplitProblem(
        chain=chain,
        exchange=lambda ranges: 0.0,
        states=lambda ranges: (held(ranges), 0.5 * held(ranges)),
        tail_s=lambda rank, ranges: float(tail_s[rank]) * held(ranges),
        backward_transient_bytes=(back,) * len(costs),
        over_bytes=np.pad(np.full(n - 1, size), 1),
        schedule=made,
        weight_s=tuple(weights),
        weight_bytes=(half,) * len(costs),
        forward_transient_bytes=(ahead,) * len(costs),
        opening_forward_bytes=(ahead,) * len(costs),
        opening_backward_bytes=(back,) * len(costs),
    )


def walked_peak(problem, rank, ranges, strategies):
    """Highest bytes of a rank, action by action; `strategies` of its blocks, stage by stage."""
    chain = problem.chain
    stages = problem.schedule.stages_of(rank)
    fixed, gradients = problem.states(ranges)
    kept, half, ahead, back, first = {}, {}, {}, {}, {}
    left = list(strategies)
    sizes, last_sends = [], 0.0
    for stage, (i, j) in zip(stages, ranges, strict=True):
        index = chain.slots[stage].costs
        mine = [left.pop(0) for _ in range(i, j)]
        saved = [
            float(chain.costs[index].saved_bytes[b, k])
            for b, k in zip(range(i, j), mine, strict=True)
        ]
        received, sent = problem.over_bytes[[i, j]].tolist()
        edge = float(chain.edge_bytes[i, j])
        where = problem.schedule.stage_to_rank
        if stage and where[stage - 1] == rank:
            edge -= received  # one tensor with the output that the stage before keeps
        else:
            last_sends += received
        sizes.append((received, sent))
        kept[stage] = sum(saved) + edge
        aside = [
            float(problem.weight_bytes[index][b, k]) for b, k in zip(range(i, j), mine, strict=True)
        ]
        half[stage] = sum(aside)
        levels = list(itertools.accumulate(saved))
        up = [
            level + float(problem.forward_transient_bytes[index][b, k])
            for level, b, k in zip(levels, range(i, j), mine, strict=True)
        ]
        # What W needs of the blocks behind is set aside by then.
        down = [
            level + float(problem.backward_transient_bytes[index][b, k]) + sum(aside[at + 1 :])
            for at, (level, b, k) in enumerate(zip(levels, range(i, j), mine, strict=True))
        ]
        # Of its micro-batch, with what the stage hands on less an input in a buffer of its own.
        ahead[stage] = max(max(up) + edge - sent, kept[stage])
        back[stage] = max(max(down) + edge, kept[stage])
        first[stage] = down[0] + edge - sent
    share = gradients / len(ranges)
    level, begun, peak = 0.0, set(), 0.0
    messages = _messages(problem.schedule, rank)
    for action, counted in zip(problem.schedule.ranks[rank], messages, strict=True):
        stage, kind = action.stage, action.kind
        arrived, returned, leaving = counted
        passing = sum(
            (a + c) * received + b * sent
            for a, b, c, (received, sent) in zip(arrived, returned, leaving, sizes, strict=True)
        )
        now = fixed + share * len(begun) + level + passing
        if kind is ActionKind.BACKWARD_WEIGHT:
            peak = max(peak, now)
        if kind is ActionKind.FORWARD:
            peak = max(peak, now + ahead[stage])
            level += kept[stage]
            continue
        own = half[stage] if kind is ActionKind.BACKWARD_WEIGHT else kept[stage]
        if kind is not ActionKind.BACKWARD_WEIGHT:
            peak = max(peak, now + back[stage] - kept[stage])
        if kind is not ActionKind.BACKWARD_WEIGHT and stage not in begun:
            peak = max(peak, now - own + share + first[stage])
            begun.add(stage)
        if kind is ActionKind.BACKWARD_INPUT:
            level += half[stage] - kept[stage]
        else:
            level -= own
    return max(peak, fixed + gradients + last_sends)


@functools.cache
def _messages(schedule, rank):
    """The messages under way at each action, as torch's runtime orders them."""
    return under_way(schedule, rank, with_messages(schedule)[rank])


def seconds_of(problem, starts, strategies):
    """The step of a plan by the event timeline, with each rank's tail."""
    chain = problem.chain
    ends = (*starts[1:], chain.num_blocks)
    forward, inputs, weight = [], [], []
    for stage, (i, j) in enumerate(zip(starts, ends, strict=True)):
        slot = chain.slots[stage]
        costs, weights = chain.costs[slot.costs], problem.weight_s[slot.costs]
        forward.append(slot.forward_s + sum(float(costs.forward_s[b]) for b in range(i, j)))
        weight.append(sum(float(weights[b]) for b in range(i, j)))
        whole = sum(float(costs.backward_s[b, strategies[b]]) for b in range(i, j))
        inputs.append(slot.backward_s + whole - weight[-1])
    sends = [float(chain.send_forward_s[s, i]) for s, i in enumerate(starts)]
    back = [float(chain.send_backward_s[s, i]) for s, i in enumerate(starts)]
    durations = Durations(
        forward_s=tuple(forward),
        backward_s=tuple(i + w for i, w in zip(inputs, weight, strict=True)),
        send_forward_s=tuple(sends),
        send_backward_s=tuple(back),
        backward_input_s=tuple(inputs),
        backward_weight_s=tuple(weight),
    )
    timeline = simulate(problem.schedule, durations)
    return max(
        timeline.rank_end_s(rank)
        + problem.tail_s(
            rank, tuple((starts[s], ends[s]) for s in problem.schedule.stages_of(rank))
        )
        for rank in range(problem.num_ranks)
    )


def all_starts(problem):
    """Every split into stages; of interleaved ones those whose sizes differ by one at most."""
    n, stages = problem.chain.num_blocks, problem.chain.num_stages
    found = [(0, *cuts) for cuts in itertools.combinations(range(1, n), stages - 1)]
    if problem.schedule.name != "interleaved":
        return found
    near = {n // stages, n // stages + 1}
    return [s for s in found if {b - a for a, b in itertools.pairwise((*s, n))} <= near]


def rank_ranges(problem, rank, starts):
    ends = (*starts[1:], problem.chain.num_blocks)
    return tuple((starts[s], ends[s]) for s in problem.schedule.stages_of(rank))


def enumerated(problem):
    """The least seconds of any plan that fits; infinite where none does."""
    best, peaks = np.inf, {}
    options = range(len(problem.chain.strategies))
    for starts in all_starts(problem):
        fitting = []
        for rank in range(problem.num_ranks):
            ranges = rank_ranges(problem, rank, starts)
            blocks = [b for i, j in ranges for b in range(i, j)]
            capacity = problem.chain.slots[problem.schedule.stages_of(rank)[0]].capacity_bytes
            if (rank, ranges) not in peaks:
                peaks[rank, ranges] = [
                    dict(zip(blocks, chosen, strict=True))
                    for chosen in itertools.product(options, repeat=len(blocks))
                    if walked_peak(problem, rank, ranges, chosen) <= capacity
                ]
            fitting.append(peaks[rank, ranges])
        for parts in itertools.product(*fitting):
            chosen = {block: k for part in parts for block, k in part.items()}
            strategies = tuple(chosen[b] for b in range(problem.chain.num_blocks))
            best = min(best, seconds_of(problem, starts, strategies))
    return best


def split_fits(problem: SplitProblem, found: Partition) -> bool:
    """True where every rank's memory is within its capacity."""
    ranges = ranges_of(found.starts, problem.chain.num_blocks)
    for rank in range(problem.num_ranks):
        stages = problem.schedule.stages_of(rank)
        chosen = tuple(k for s in stages for k in found.strategies[slice(*ranges[s])])
        peak = RankBytes(problem, rank, tuple(ranges[s] for s in stages)).peak(chosen)
        if peak > problem.chain.slots[stages[0]].capacity_bytes:
            return False
    return True
