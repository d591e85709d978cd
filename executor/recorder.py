"""Record a rank's step: wall and CPU time of the step, of each action, and of each block.

Blocks are timed inside a stage's actions, without changes to the model. Forward: a timestamp when
the first module of a block is called. Backward: an autograd hook takes a timestamp when the
gradient of the module's input is complete. The remaining time of an action is the replay and
torch's pipeline runtime. With a split backward, I is timed like a whole backward; in W, each
product counts for the block that ran its forward.

`Clock` reads host time on a CPU. On an accelerator, which runs asynchronously, host time around a
launch is meaningless, so it uses device events. They are recorded in the stream of the device and
read at the end of a step, so that no action waits for the device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_leaves

from executor.pipeline_times import BlockTime, StepLog
from executor.stages import StageModule
from profiles.hardware.probe.cpu_clock import (
    ClockReading,
    Sample,
    between,
    delay_fraction,
    read_clock,
)


@dataclass(frozen=True, slots=True)
class Moment:
    """A reading of the host's clocks and, on an accelerator, the event recorded at that point of
    the stream."""

    host: ClockReading
    event: Any = None


class Clock:
    """Marks moments during a step and measures the time between them afterwards. On an accelerator,
    wall seconds are device time, and CPU seconds are the host's launch time.

    event  creates a timing event (`torch.Event` of the device)
    """

    def __init__(self, device: torch.device, event: Callable[[], Any] | None = None) -> None:
        self._device, self._behind = device, device.type != "cpu"
        self._event = event or partial(torch.Event, device, enable_timing=True)

    def now(self) -> Moment:
        """The current moment."""
        event = None
        if self._behind:
            event = self._event()
            event.record()
        return Moment(read_clock(), event)

    def settle(self) -> None:
        """Wait until the device has reached all marked moments."""
        if self._behind:
            torch.accelerator.synchronize(self._device)

    def sample(self, begin: Moment, end: Moment) -> Sample:
        """The time between two moments, after `settle`."""
        passed = between(begin.host, end.host)
        if not self._behind:
            return passed
        return replace(passed, wall_s=1e-3 * begin.event.elapsed_time(end.event))


# An action of a stage: number of the stage, letter (I and W are the parts of a B), micro-batch.
ACTION = re.compile(r"(\d+)([FBIW])(\d+)")


class Recorder:
    """Times the actions of one rank; `steps` has one log per finished step, `running` is the action
    in progress or the one that failed."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.running = ""
        self.steps: list[StepLog] = []
        self._clock = clock or Clock(torch.device("cpu"))
        self._current: list[tuple[str, Moment, Moment]] | None = None

    @contextmanager
    def step(self) -> Iterator[StepLog]:
        """Context that records one step, until the device has finished its work."""
        log, self._current = StepLog(), []
        begin = self._clock.now()
        yield log
        end = self._clock.now()
        self._clock.settle()
        whole = self._clock.sample(begin, end)
        log.begin_s, log.wall_s, log.cpu_s = begin.host.wall_ns * 1e-9, whole.wall_s, whole.cpu_s
        log.delay_fraction = delay_fraction(whole)
        sample = self._clock.sample
        timed = ((name, sample(begin, a).wall_s, sample(a, b)) for name, a, b in self._current)
        log.actions = tuple((name, at, at + took.wall_s, took.cpu_s) for name, at, took in timed)
        self.steps.append(log)
        self._current = None

    @contextmanager
    def action(self, name: str) -> Iterator[None]:
        """Context in which the rank works on action `name`; not recorded outside of a step."""
        self.running = name
        start = self._clock.now()
        yield
        self.running = ""
        if self._current is not None:
            self._current.append((name, start, self._clock.now()))


@dataclass(slots=True)
class _Pass:
    """The timestamps of one micro-batch in one stage, by block."""

    begins: dict[int, ClockReading] = field(default_factory=dict)
    ends: dict[int, ClockReading] = field(default_factory=dict)
    backward: dict[int, ClockReading] = field(default_factory=dict)


class BlockRecorder(Recorder):
    """A recorder that also times the blocks of stages.

    blocks    one entry per block, pass, micro-batch and step, as in RankLog
    stamping  (step, stage, CPU seconds): cost of the timestamps of every forward
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[BlockTime] = []
        self.stamping: list[tuple[int, int, float]] = []
        self._stages: Mapping[int, StageModule] = {}
        self._passes: dict[tuple[int, int], _Pass] = {}
        self._running: _Pass | None = None
        self._products: dict[int, list[Sample]] = {}
        self._behind = torch.cuda.is_available()

    def watch(self, stages: Mapping[int, StageModule], entries: tuple[str, ...]) -> None:
        """Time the blocks of these stages; `entries` are those of all blocks of the model."""
        self._stages = stages
        for stage in stages.values():
            if stage.split is not None:
                stage.split.around = self._product
            modules = dict(stage.model.named_modules())
            for index in range(max(1, stage.first), stage.last):
                # The stage's own hook, which inserts the received tensors, comes first.
                modules[entries[index]].register_forward_pre_hook(
                    self._hook(index, stage), with_kwargs=True, prepend=index > stage.first
                )

    @contextmanager
    def action(self, name: str) -> Iterator[None]:
        """As `Recorder.action`; also times the blocks."""
        found = ACTION.fullmatch(name)
        stage = self._stages.get(int(found[1])) if found is not None else None
        if found is None or stage is None:
            with super().action(name):
                yield
            return
        key, letter = (int(found[1]), int(found[3])), found[2]
        self._products = {}
        if letter == "F":
            self._passes[key] = self._running = _Pass()
            if stage.split is not None:
                stage.split.label = stage.first
        passed = _Pass() if letter == "W" else self._passes[key]
        with super().action(name):
            start = self._now()
            yield
            end = self._now()
        self._running = None
        if letter == "F":
            self._note_forward(key[0], passed, start, end)
        elif letter == "W":
            for block in range(stage.first, stage.last):
                self._note(block, "W", *self._products.get(block, ()))
        else:
            self._note_backward(stage, self._passes.pop(key), start, end, letter=letter)

    def _now(self) -> ClockReading:
        """The clocks; on an accelerator, after all launched kernels have ended."""
        if self._behind:
            torch.cuda.synchronize()
        return read_clock()

    @contextmanager
    def _product(self, block: int) -> Iterator[None]:
        start = self._now()
        yield
        self._products.setdefault(block, []).append(between(start, self._now()))

    def _hook(self, index: int, stage: StageModule) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            passed = self._running
            if passed is None or index in passed.begins:
                return  # another call of a module that is called several times
            if index > stage.first:
                passed.ends[index - 1] = self._now()

            def stamp(_: Tensor) -> None:
                passed.backward[index] = self._now()

            leaves = (x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor))
            # Parameters belong to both sides of a boundary.
            crossing = [x for x in leaves if x.requires_grad and not isinstance(x, nn.Parameter)]
            # A replay numbers the model's calls and must not count these. If later blocks use a
            # tensor too (an encoder's output), its gradient is complete after this block: the first
            # hook counts.
            with torch._C.DisableTorchFunction():
                register_multi_grad_hook(crossing, stamp, mode="any")
            if stage.split is not None:
                stage.split.label = index
            passed.begins[index] = self._now()

        return hook

    def _note_forward(
        self, index: int, passed: _Pass, start: ClockReading, end: ClockReading
    ) -> None:
        stage = self._stages[index]
        for block in range(stage.first, stage.last):
            begin = passed.begins.get(block, start)
            self._note(block, "F", between(begin, passed.ends.get(block, end)))
        cuts = [
            between(passed.ends[block - 1], begin).cpu_s
            for block, begin in passed.begins.items()
            if block - 1 in passed.ends
        ]
        if self._current is not None:
            self.stamping.append((len(self.steps), index, sum(cuts)))

    def _note_backward(
        self,
        stage: StageModule,
        passed: _Pass,
        start: ClockReading,
        end: ClockReading,
        *,
        letter: str,
    ) -> None:
        # From the last block to the first; if no gradient crosses a cut, nothing runs before it.
        reached = passed.backward.get(stage.last, start)
        for block in range(stage.last - 1, stage.first - 1, -1):
            # No input of a tower's first block has a gradient: the backward until the next
            # timestamp counts for that block.
            stamped = (b for b in range(block, stage.first - 1, -1) if b in passed.backward)
            ended = passed.backward.get(next(stamped, -1), end)
            self._note(block, letter, between(reached, ended))
            reached = ended

    def _note(self, block: int, letter: str, *samples: Sample) -> None:
        if self._current is not None:
            wall_s, cpu_s = sum(s.wall_s for s in samples), sum(s.cpu_s for s in samples)
            self.blocks.append((len(self.steps), block, letter, wall_s, cpu_s))
