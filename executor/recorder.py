"""Recording a rank's step: wall and CPU time of the step, of each action, and of each block.

Blocks are timed inside a stage's actions; the model is not changed. Forward: a stamp at the call of
the module that opens a block. Backward: the tensors that cross a cut pass through an identity whose
backward stamps. The time between the stamps and the ends of the action is the replay and torch's
pipeline runtime. If the backward is split, I is stamped like a whole backward, and in W every
product is timed for the block that ran it forward.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from executor.block_cuts import through_cut
from executor.clocks import Clock, HostClock
from executor.stages import StageModule
from profiles.hardware.probe.cpu_clock import (
    DELAY_LIMIT,
    ClockReading,
    Sample,
    ThreadClock,
    between,
    delay_fraction,
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
    """Times the actions of one rank; `steps` holds one record per finished step, `running` is the
    action that runs, or that failed."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.running = ""
        self.steps: list[StepRecord] = []
        self._clock: Clock = clock or HostClock()
        self._current: list[tuple[str, Any, Any]] | None = None
        self._begin: Any = None

    @contextmanager
    def step(self) -> Iterator[StepRecord]:
        """Records what runs inside it as one step, to the end of what it launched."""
        record, self._current = StepRecord(), []
        self._begin = self._clock.now()
        yield record
        end = self._clock.now()
        self._clock.settle()
        record.sample = self._clock.sample(self._begin, end)
        for name, start, stop in self._current:
            offset = self._clock.sample(self._begin, start).wall_s
            passed = self._clock.sample(start, stop)
            record.actions.append((name, offset, offset + passed.wall_s, passed.cpu_s))
        self.steps.append(record)
        self._current = None

    @contextmanager
    def action(self, name: str) -> Iterator[None]:
        """Inside it, the rank works on `name`; outside a step nothing is noted."""
        self.running = name
        start = self._clock.now()
        yield
        self.running = ""
        if self._current is not None:
            self._current.append((name, start, self._clock.now()))


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


_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTime:
    """What one pass of one block took. letter  of the action; step  counted from the first step"""

    step: int
    block: int
    letter: str
    sample: Sample


@dataclass(slots=True)
class _Pass:
    """The stamps of one micro-batch in one stage, by block."""

    begins: dict[int, ClockReading] = field(default_factory=dict)
    ends: dict[int, ClockReading] = field(default_factory=dict)
    backward: dict[int, ClockReading] = field(default_factory=dict)


class BlockRecorder(Recorder):
    """A recorder that also times the blocks of the stages it watches.

    blocks     one entry per block, pass, micro-batch and step
    stamping   (step, stage, CPU seconds) of every forward that making the cuts took
    begins_ns  when each step began, on the clock that all processes of a machine share
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[BlockTime] = []
        self.stamping: list[tuple[int, int, float]] = []
        self.begins_ns: list[int] = []
        self._stages: Mapping[int, StageModule] = {}
        self._entries: tuple[str, ...] = ()
        self._passes: dict[tuple[int, int], _Pass] = {}
        self._running: _Pass | None = None
        self._products: dict[int, list[Sample]] = {}
        self._stamps = ThreadClock()
        self._behind = torch.cuda.is_available()

    def watch(self, stages: Mapping[int, StageModule], entries: tuple[str, ...]) -> None:
        """Stamp the blocks of these stages; entries are those of the whole model's blocks."""
        self._stages, self._entries = stages, entries
        for stage in stages.values():
            if stage.split is not None:
                stage.split.around = self._product
            modules = dict(stage.model.named_modules())
            for index in range(max(1, stage.first), stage.last):
                # The stage's own hook comes first where it puts the received tensors in.
                modules[entries[index]].register_forward_pre_hook(
                    self._hook(index, stage), with_kwargs=True, prepend=index > stage.first
                )

    @contextmanager
    def action(self, name: str) -> Iterator[None]:
        """As Recorder.action, with the blocks of the stages that are watched."""
        found = _ACTION.fullmatch(name)
        if found is None or int(found[1]) not in self._stages:
            with super().action(name):
                yield
            return
        key = (int(found[1]), int(found[3]))
        if found[2] == "W":
            self._products = {}
            with super().action(name):
                yield
            self._note_products(self._stages[key[0]])
            return
        forward = found[2] == "F"
        split = self._stages[key[0]].split
        if forward and split is not None:
            split.label = self._stages[key[0]].first
        passed = _Pass() if forward else self._passes.pop(key)
        if forward:
            self._passes[key] = self._running = passed
        with super().action(name):
            start = self._now()
            yield
            end = self._now()
        self._running = None
        stage = self._stages[key[0]]
        if forward:
            self._note_forward(stage, passed, start, end)
            self._note_stamping(key[0], passed)
        else:
            self._note_backward(stage, passed, start, end, letter=found[2])

    def _now(self) -> ClockReading:
        """The clocks; on an accelerator, after the end of all launched kernels."""
        if self._behind:
            torch.cuda.synchronize()
        return self._stamps.read()

    @contextmanager
    def _product(self, block: int) -> Iterator[None]:
        start = self._now()
        yield
        self._products.setdefault(block, []).append(between(start, self._now()))

    def _note_products(self, stage: StageModule) -> None:
        if self._current is None:
            return
        for block in range(stage.first, stage.last):
            samples = self._products.get(block, [])
            whole = Sample(
                wall_s=sum(s.wall_s for s in samples), cpu_s=sum(s.cpu_s for s in samples)
            )
            self.blocks.append(
                BlockTime(step=len(self.steps), block=block, letter="W", sample=whole)
            )

    @contextmanager
    def step(self) -> Iterator[Any]:
        """As Recorder.step; when it began is kept."""
        with super().step() as record:
            self.begins_ns.append(self._begin.wall_ns)
            yield record

    def _hook(self, index: int, stage: StageModule) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            passed = self._running
            if passed is None or index in passed.begins:
                return None  # another call of a module that is used more than once
            if index > stage.first:
                passed.ends[index - 1] = self._now()
            # A replay that knows the model's calls by their number must not meet these.
            with torch._C.DisableTorchFunction():
                cut = through_cut((args, kwargs), index, passed.backward, self._now)
                stage.same(tree_leaves((args, kwargs)), tree_leaves(cut))
            if stage.split is not None:
                stage.split.label = index
            passed.begins[index] = self._now()
            return cut

        return hook

    def _note_forward(
        self, stage: StageModule, passed: _Pass, start: ClockReading, end: ClockReading
    ) -> None:
        for block in range(stage.first, stage.last):
            begin = passed.begins.get(block, start)
            self._note(block, "F", begin, passed.ends.get(block, end))

    def _note_stamping(self, stage: int, passed: _Pass) -> None:
        cuts = [
            between(passed.ends[block - 1], begin).cpu_s
            for block, begin in passed.begins.items()
            if block - 1 in passed.ends
        ]
        if self._current is not None:
            self.stamping.append((len(self.steps), stage, sum(cuts)))

    def _note_backward(
        self,
        stage: StageModule,
        passed: _Pass,
        start: ClockReading,
        end: ClockReading,
        *,
        letter: str,
    ) -> None:
        # From the last block to the first; where no gradient crosses a cut nothing runs before it.
        reached = passed.backward.get(stage.last, start)
        for block in range(stage.last - 1, stage.first - 1, -1):
            # A tower's first block is given nothing that has a gradient: what runs backward until
            # the next stamp is counted as its own.
            stamped = (b for b in range(block, stage.first - 1, -1) if b in passed.backward)
            ended = passed.backward.get(next(stamped, -1), end)
            self._note(block, letter, reached, ended)
            reached = ended

    def _note(self, block: int, letter: str, begin: ClockReading, end: ClockReading) -> None:
        if self._current is not None:
            self.blocks.append(
                BlockTime(
                    step=len(self.steps), block=block, letter=letter, sample=between(begin, end)
                )
            )
