"""The event timeline beside simpy on the same schedule."""

from __future__ import annotations

from collections.abc import Generator

import simpy

from bench.best_of import best_of
from simulator.schedules.action import Action, ActionKind
from simulator.schedules.schedule import Schedule, build_schedule
from simulator.schedules.timeline import Durations, simulate

RANKS, MICRO_BATCHES = 16, 256
# The timeline must be at least this many times faster than simpy on the same schedule.
LEAST_TIMELINE_RATIO = 5.0


def by_simpy(schedule: Schedule, forward_s: float, backward_s: float) -> float:
    """The makespan of the schedule as a simpy simulation."""
    environment = simpy.Environment()
    done = {action: environment.event() for row in schedule.ranks for action in row}

    def rank(row: tuple[Action, ...]) -> Generator[simpy.Event, None, None]:
        for action in row:
            goes = action.kind is ActionKind.FORWARD
            stage = action.stage + (-1 if goes else 1)
            if 0 <= stage < schedule.num_stages:
                yield done[Action(stage, action.kind, action.microbatch)]
            yield environment.timeout(forward_s if goes else backward_s)
            done[action].succeed()

    for row in schedule.ranks:
        environment.process(rank(row))
    environment.run()
    return float(environment.now)


def run() -> int:
    """Prints the table; 1 where the ratio does not hold."""
    schedule = build_schedule("1f1b", num_ranks=RANKS, num_microbatches=MICRO_BATCHES)
    stages = schedule.num_stages
    durations = Durations(
        forward_s=(1.0,) * stages,
        backward_s=(2.0,) * stages,
        send_forward_s=(0.0,) * stages,
        send_backward_s=(0.0,) * stages,
    )
    simulate(schedule, durations)
    ours_s, ours = best_of(lambda: max(simulate(schedule, durations).end_s))
    simpy_s, theirs = best_of(lambda: by_simpy(schedule, 1.0, 2.0))
    actions = 2 * stages * MICRO_BATCHES
    ratio = simpy_s / ours_s
    print(f"timeline, 1F1B of {RANKS} ranks x {MICRO_BATCHES} micro-batches ({actions} actions)")
    print(f"  ours  {ours_s * 1e3:8.2f} ms  {actions / ours_s / 1e6:.2f} M actions/s")
    print(f"  simpy {simpy_s * 1e3:8.2f} ms  ratio {ratio:.1f} (must hold {LEAST_TIMELINE_RATIO})")
    print(f"  makespans {ours} and {theirs}")
    return int(ratio < LEAST_TIMELINE_RATIO or abs(ours - theirs) > 1e-9)
