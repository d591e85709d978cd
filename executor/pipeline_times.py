"""Seconds per block, and of the gaps between actions, from the logs of timed steps."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from profiles.errors import RunError
from profiles.hardware.catalogue.device import ActionOverhead, BlockPoint, StepOverhead
from profiles.hardware.probe.cpu_clock import DELAY_LIMIT
from profiles.model.graph import ModelGraph
from simulator.schedules.schedule import action_graph
from simulator.values.plan import Plan

BlockTime = tuple[int, int, str, float, float]
"""Step, block, letter of the action, wall and CPU seconds of one pass of a block."""


@dataclass(slots=True, kw_only=True)
class StepLog:
    """One step of one rank.

    begin_s  on a clock shared by all processes of the machine
    actions  (name, start, end, CPU seconds), relative to begin_s
    loss     on ranks that compute it
    """

    begin_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    delay_fraction: float = 0.0
    actions: tuple[tuple[str, float, float, float], ...] = ()
    loss: float | None = None

    def seconds_of(self, *prefixes: str) -> float:
        """Wall seconds of the actions with this prefix."""
        return sum(end - start for name, start, end, _ in self.actions if name.startswith(prefixes))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLog:
    """All steps of one rank.

    stamping  (step, stage, CPU seconds): cost of the timestamps of a forward
    warm_up   number of steps at the beginning that do not count
    """

    steps: tuple[StepLog, ...]
    blocks: tuple[BlockTime, ...]
    stamping: tuple[tuple[int, int, float], ...]
    warm_up: int


def quiet_steps(logs: Sequence[RankLog]) -> tuple[int, ...]:
    """The middle half, by duration, of the counted steps in which no rank waited for a core.

    A run's step time is a median over undisturbed steps. Here it is a mean over several, because
    the parts of a step must add up. If every step is disturbed: the middle half of all steps.
    """
    counted = range(logs[0].warm_up, len(logs[0].steps))
    worst = {i: max(log.steps[i].delay_fraction for log in logs) for i in counted}
    quiet = [i for i in counted if worst[i] <= DELAY_LIMIT] or list(counted)
    quiet.sort(key=lambda i: max(log.steps[i].wall_s for log in logs))
    outer = len(quiet) // 4
    return tuple(sorted(quiet[outer : len(quiet) - outer]))


def has_quiet_step(logs: Sequence[RankLog]) -> bool:
    """Whether no rank waited for a core in some counted step."""
    counted = range(logs[0].warm_up, len(logs[0].steps))
    return any(all(log.steps[i].delay_fraction <= DELAY_LIMIT for log in logs) for i in counted)


def gaps_of(plan: Plan, logs: Sequence[RankLog], step: int) -> Iterator[tuple[int, str, float]]:
    """Stage, letter and seconds of the gap before each action of a step, except before the first
    action and gaps in which the rank waited for a message."""
    graph = action_graph(plan.actions)
    spans = {
        name: (log.steps[step].begin_s + start, log.steps[step].begin_s + end)
        for log in logs
        for name, start, end, _ in log.steps[step].actions
    }
    starts = [spans[str(action)][0] for action in graph.actions]
    ends = [spans[str(action)][1] for action in graph.actions]
    for action, start, before, source in zip(
        graph.actions, starts, graph.before, graph.source, strict=True
    ):
        if before < 0:
            continue
        free = ends[before]
        if source < 0 or ends[source] <= free:
            yield action.stage, str(action.kind.value), start - free


def block_points(plan: Plan, graph: ModelGraph, logs: Sequence[RankLog]) -> tuple[BlockPoint, ...]:
    """One point per kind of block of the chain.

    The CPU seconds of an action are distributed over its blocks in proportion to the blocks' own
    CPU seconds. So are `*_runtime_s`: the time in which the action waits for a core, and the gap
    before it unless the rank waited for a message. The cost of timestamps is subtracted.
    """
    chosen = quiet_steps(logs)
    own = _block_samples(logs, chosen)
    actions = {
        (stage, letter): _action(plan, logs, chosen, stage, letter)
        for stage in range(len(plan.stages))
        for letter in "FB"
    }
    # Kind and letter -> CPU seconds and additional seconds of each of its blocks.
    found: defaultdict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    samples: defaultdict[int, list[float]] = defaultdict(list)
    extra: dict[str, list[float]] = {"F": [], "B": []}
    for (stage, letter), (cpu_s, outside_s) in actions.items():
        cut = plan.stages[stage]
        means = {b: fmean(own[b, letter]) for b in range(cut.first_block, cut.last_block)}
        total = sum(means.values())
        if total <= 0:
            raise RunError(f"stage {stage} of the measured pipeline took no CPU time")
        extra[letter].append(max(0.0, cpu_s - total))
        for b, mean in means.items():
            kind = graph.chain[b].kind
            found[kind, letter].append((mean * cpu_s / total, mean * outside_s / total))
            samples[kind] += [x / mean for x in own[b, letter]]
    overhead = ActionOverhead(
        forward_cpu_s=fmean(extra["F"]),
        forward_outside_s=fmean(v[1] for k, v in actions.items() if k[1] == "F"),
        backward_cpu_s=fmean(extra["B"]),
        backward_outside_s=fmean(v[1] for k, v in actions.items() if k[1] == "B"),
    )
    points = []
    for kind in sorted(samples):
        (forward, forward_runtime), (backward, backward_runtime) = (
            map(fmean, zip(*found[kind, letter], strict=True)) for letter in "FB"
        )
        low, high = map(float, np.quantile(samples[kind], (0.05, 0.95)))
        points.append(
            BlockPoint(
                kind=graph.kinds[kind].kind,
                label=graph.kinds[kind].label,
                forward_s=forward + forward_runtime,
                backward_s=backward + backward_runtime,
                sample_count=len(samples[kind]) // 2,
                spread=(high - low) / 2,
                forward_runtime_s=forward_runtime,
                backward_runtime_s=backward_runtime,
                action=overhead,
            )
        )
    return tuple(points)


def whole_points(
    graph: ModelGraph, logs: Sequence[RankLog], *, wall: bool
) -> tuple[BlockPoint, ...]:
    """One point per kind of block, from ranks that each trained the whole model: medians over the
    micro-batches of `quiet_steps`.

    wall  wall seconds instead of CPU seconds
    """
    own = _block_samples(logs, quiet_steps(logs), wall=wall)
    points = []
    for kind, block in enumerate(graph.kinds):
        places = [b for b, ref in enumerate(graph.chain) if ref.kind == kind]
        times = {letter: [x for b in places for x in own[b, letter]] for letter in "FB"}
        found = {x: [*map(float, np.quantile(times[x], (0.05, 0.5, 0.95)))] for x in "FB"}
        points.append(
            BlockPoint(
                kind=block.kind,
                label=block.label,
                forward_s=found["F"][1],
                backward_s=found["B"][1],
                sample_count=len(times["F"]),
                spread=max((c - a) / 2 / b if b > 0 else 0.0 for a, b, c in found.values()),
            )
        )
    return tuple(sorted(points, key=lambda point: point.kind))


def step_overhead(plan: Plan, logs: Sequence[RankLog]) -> StepOverhead:
    """Overhead of steps without a pipeline, in which each rank has one or more micro-batches."""
    chosen = quiet_steps(logs)
    own = _block_samples(logs, chosen)
    gaps: dict[str, list[float]] = {"F": [], "B": [], "": []}
    longest, mean, busy, met = [], [], [], []
    for index in chosen:
        steps = [log.steps[index] for log in logs]
        walls = [step.seconds_of("0F", "0B") for step in steps]
        longest.append(max(walls))
        mean.append(fmean(walls))
        busy.append(fmean(sum(a[3] for a in step.actions if _letter(a[0])) for step in steps))
        for step in steps:
            free = 0.0
            for name, start, end, _ in step.actions:
                gaps[_letter(name)].append(start - free)
                free = end
            gaps[""].append(step.wall_s - free)
        between = fmean(step.wall_s - step.seconds_of("") for step in steps)
        exchange = min(step.seconds_of("data_parallel", "tied") for step in steps)
        optimizer = fmean(step.seconds_of("optimizer") for step in steps)
        whole = max(step.wall_s for step in steps)
        met.append(whole - max(walls) - between - exchange - optimizer)
    stamped = plan.num_microbatches * _stamping(logs, chosen, 0)
    around = {}
    for letter in "FB":
        cpu_s, _ = _action(plan, logs, chosen, 0, letter)
        blocks = sum(fmean(own[b, letter]) for b in range(len(plan.block_entries)))
        around[letter] = max(0.0, cpu_s - blocks) + fmean(gaps[letter])
    work_s = fmean(busy) - stamped
    return StepOverhead(
        forward_s=around["F"],
        backward_s=around["B"],
        step_s=sum(gaps[""]) / (len(chosen) * len(logs)),
        slowest=max(1.0, (fmean(longest) - stamped) / work_s),
        outside=max(0.0, (fmean(mean) - stamped) / work_s - 1),
        work_s=work_s,
        meeting_s=max(0.0, fmean(met)),
    )


def _letter(action: str) -> str:
    """F or B for a forward or backward action; "" for any other action."""
    return next((letter for letter in "FB" if action.startswith(f"0{letter}")), "")


def weight_shares(graph: ModelGraph, logs: Sequence[RankLog]) -> dict[str, float]:
    """Kind of block -> share of W in the CPU seconds of its backward (I and W), from a pipeline
    that splits the backward; means over the same steps."""
    own = _block_samples(logs, quiet_steps(logs))
    seconds: defaultdict[tuple[int, str], float] = defaultdict(float)
    for block, ref in enumerate(graph.chain):
        for letter in "IW":
            seconds[ref.kind, letter] += fmean(own[block, letter])
    return {
        kind.kind: seconds[n, "W"] / (seconds[n, "I"] + seconds[n, "W"]) if seconds[n, "W"] else 0.0
        for n, kind in enumerate(graph.kinds)
    }


def _action(
    plan: Plan, logs: Sequence[RankLog], chosen: Sequence[int], stage: int, letter: str
) -> tuple[float, float]:
    """Mean CPU seconds of a stage's forwards or backwards without the timestamps, and their runtime
    overhead: waiting for a core, and the gap before the action unless it waited for a message."""
    name = re.compile(rf"{stage}{letter}\d+")
    rows = [
        (action[3], action[2] - action[1])
        for log in logs
        for step in chosen
        for action in log.steps[step].actions
        if name.fullmatch(action[0])
    ]
    gaps = [
        max(0.0, time_s)
        for step in chosen
        for *of, time_s in gaps_of(plan, logs, step)
        if of == [stage, letter]
    ]
    cpu_s, wall_s = map(fmean, zip(*rows, strict=True))
    outside_s = max(0.0, wall_s - cpu_s) + fmean(gaps or [0.0])
    return cpu_s - (_stamping(logs, chosen, stage) if letter == "F" else 0.0), outside_s


def _stamping(logs: Sequence[RankLog], chosen: Sequence[int], stage: int) -> float:
    """Mean CPU seconds for the timestamps of a stage's forward."""
    times = [s for log in logs for step, of, s in log.stamping if step in chosen and of == stage]
    return fmean(times or [0.0])


def _block_samples(
    logs: Sequence[RankLog], chosen: Sequence[int], *, wall: bool = False
) -> dict[tuple[int, str], list[float]]:
    """(block, letter) -> CPU or wall seconds of each micro-batch."""
    found: defaultdict[tuple[int, str], list[float]] = defaultdict(list)
    for log in logs:
        for step, block, letter, wall_s, cpu_s in log.blocks:
            if step in chosen:
                found[block, letter].append(wall_s if wall else cpu_s)
    return dict(found)
