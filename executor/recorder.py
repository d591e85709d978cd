"""Recording what a rank does in a step: each action's wall and CPU time, and the step's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from profiles.hardware.probe.cpu_clock import (
    DELAY_LIMIT,
    Sample,
    between,
    delay_fraction,
    read_clock,
)


@dataclass(slots=True)
class StepRecord:
    """One step of one rank. Actions are (name, start, end, CPU seconds), from the step's start."""

    actions: list[tuple[str, float, float, float]] = field(default_factory=list)
    sample: Sample | None = None
    loss: float | None = None

    def seconds_of(self, *names: str) -> float:
        """Wall seconds of the actions of these names."""
        return sum(end - start for name, start, end, _ in self.actions if name in names)


class Recorder:
    """Times the actions of one rank; `steps` holds one record per finished step."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self._current: StepRecord | None = None
        self._begin = read_clock()

    @contextmanager
    def step(self) -> Iterator[StepRecord]:
        """Records what runs inside it as one step."""
        self._current = StepRecord()
        self._begin = read_clock()
        yield self._current
        self._current.sample = between(self._begin, read_clock())
        self.steps.append(self._current)
        self._current = None

    @contextmanager
    def action(self, name: str) -> Iterator[None]:
        """Inside it, the rank works on `name`; outside a step nothing is noted."""
        start = read_clock()
        yield
        if self._current is None:
            return
        passed = between(start, read_clock())
        offset = (start.wall_ns - self._begin.wall_ns) * 1e-9
        self._current.actions.append((name, offset, offset + passed.wall_s, passed.cpu_s))


def step_table(steps: list[StepRecord]) -> list[tuple[float, float, float]]:
    """(wall, CPU, delay fraction) of every step, as plain numbers to send to rank 0."""
    rows = []
    for step in steps:
        assert step.sample is not None
        rows.append((step.sample.wall_s, step.sample.cpu_s, delay_fraction(step.sample)))
    return rows


def quiet_steps(worst_delay: list[float]) -> list[int]:
    """Indices of the undisturbed steps; where none is, the least disturbed half."""
    quiet = [i for i, delay in enumerate(worst_delay) if delay <= DELAY_LIMIT]
    if quiet:
        return quiet
    order = sorted(range(len(worst_delay)), key=lambda i: worst_delay[i])
    return sorted(order[: (len(order) + 1) // 2])


def action_medians(
    steps: list[StepRecord], chosen: list[int]
) -> dict[tuple[int, str], tuple[float, float, int]]:
    """(stage, letter of the action) -> median wall, median CPU seconds per pass, sample count."""
    samples: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for i in chosen:
        for name, start, end, cpu_s in steps[i].actions:
            for kind in ("F", "B", "I", "W"):
                stage, _, micro_batch = name.partition(kind)
                if stage.isdigit() and micro_batch.isdigit():
                    samples.setdefault((int(stage), kind), []).append((end - start, cpu_s))
    return {
        key: (median(w for w, _ in rows), median(c for _, c in rows), len(rows))
        for key, rows in samples.items()
    }
