"""Timing every block of a model in place, forward and backward, while the whole model trains.

Forward: a stamp when the module that opens a block is called. Backward: the tensors that cross the
cut pass through an identity whose backward stamps when the gradients of all of them have arrived,
which is when the backward of the block behind the cut has ended. Nothing of the model is rewritten.

Micro-batches run as on the first of two pipeline ranks: the forward of the next one comes before
the backward of the last one, so that two graphs are alive, and gradients accumulate in `.grad`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from profiles.errors import ModelError
from profiles.hardware.probe.cpu_clock import ClockReading, Sample, ThreadClock, between


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSample:
    """One micro-batch: per block of the chain what its forward and its backward took."""

    forward: tuple[Sample, ...]
    backward: tuple[Sample, ...]


class _Stamps:
    """Where the running micro-batch is in the chain, and the times of its cuts.

    starts, ends  of the blocks in forward: making a cut costs some 20 us, which belong to neither
                  the block before it nor the one behind
    backward      per cut, when the gradients passed
    """

    def __init__(self, entries: Sequence[str], clock: ThreadClock) -> None:
        self.entries = tuple(entries)
        self.clock = clock
        self.reset()

    def reset(self) -> None:
        """Begin the forward of the next micro-batch."""
        self.starts = [self.now()]
        self.ends: list[ClockReading] = []
        self.backward: dict[int, ClockReading] = {}

    def now(self) -> ClockReading:
        """The clocks; on an accelerator, when the kernels that were launched have ended."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return self.clock.read()


class _Cut(torch.autograd.Function):
    """Identity; its backward stamps cut number `index` of the micro-batch that made it."""

    @staticmethod
    def forward(
        ctx: Any,
        index: int,
        readings: dict[int, ClockReading],
        now: Callable[[], ClockReading],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.index, ctx.readings, ctx.now = index, readings, now
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.readings[ctx.index] = ctx.now()
        return (None, None, None, *gradients)


def sample_chain(
    forward: Callable[[], Tensor], module: nn.Module, entries: Sequence[str]
) -> Generator[ChainSample, None, None]:
    """Endless samples of one micro-batch each; the caller decides how many it takes.

    forward  runs the whole model and returns the scalar loss
    entries  per block the path of the module whose call opens it, "" for the first

    Raises ModelError where the forward pass does not call the entries in their order.
    """
    with ThreadClock() as clock:
        stamps = _Stamps(entries, clock)
        with _cuts(module, stamps):
            waiting = _run_forward(forward, stamps)
            while True:
                following = _run_forward(forward, stamps)
                yield _run_backward(*waiting, stamps)
                waiting = following


_Forward = tuple[Tensor, tuple[Sample, ...], dict[int, ClockReading]]
"""The loss of a micro-batch, its forwards, and where the cuts' backwards are stamped."""


def _run_forward(forward: Callable[[], Tensor], stamps: _Stamps) -> _Forward:
    stamps.reset()
    loss = forward()
    stamps.ends.append(stamps.now())
    reached = len(stamps.ends)
    if reached != len(stamps.entries):
        raise ModelError(
            f"the forward pass never called {stamps.entries[reached]!r}, which opens block "
            f"{reached} of the traced chain: the model runs differently from when it was traced"
        )
    passed = tuple(between(a, b) for a, b in zip(stamps.starts, stamps.ends, strict=True))
    return loss, passed, stamps.backward


def _run_backward(
    loss: Tensor,
    forward: tuple[Sample, ...],
    readings: Mapping[int, ClockReading],
    stamps: _Stamps,
) -> ChainSample:
    first = stamps.now()
    loss.backward()
    ends = [stamps.now()]
    # Ends of the blocks' backwards, first block first. Where no gradient crosses the cut before a
    # block nothing runs backward before it either: its own backward lasts until the next end.
    for index in range(1, len(forward)):
        ends.append(readings.get(index, ends[-1]))
    passed = tuple(between(a, b) for a, b in zip([*ends[1:], first], ends, strict=True))
    return ChainSample(forward=forward, backward=passed)


@contextmanager
def _cuts(module: nn.Module, stamps: _Stamps) -> Iterator[None]:
    """Hooks on every module that opens a block."""
    modules = dict(module.named_modules())
    handles = []
    try:
        for entry in sorted(set(stamps.entries[1:])):
            if entry not in modules:
                raise ModelError(f"the model has no module {entry!r}, which opens a traced block")
            hook = _entry_hook(entry, stamps)
            handles.append(
                modules[entry].register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
            )
        yield
    finally:
        for handle in handles:
            handle.remove()


def _entry_hook(entry: str, stamps: _Stamps) -> Callable[..., Any]:
    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        index = len(stamps.starts)
        if index >= len(stamps.entries) or stamps.entries[index] != entry:
            return None  # another call of a module that is used more than once
        stamps.ends.append(stamps.now())
        passed = through_cut((args, kwargs), index, stamps.backward, stamps.now)
        stamps.starts.append(stamps.now())
        return passed

    return hook


def through_cut(
    arguments: Any,
    index: int,
    readings: dict[int, ClockReading],
    now: Callable[[], ClockReading],
) -> Any:
    """The arguments with every tensor that has a gradient passed through one identity.

    readings  where its backward stamps `now()` under `index`, once all those gradients are there
    """
    leaves, structure = pytree.tree_flatten(arguments)
    positions = [i for i, leaf in enumerate(leaves) if _carries_gradient(leaf)]
    if positions:
        passed = _Cut.apply(index, readings, now, *(leaves[i] for i in positions))  # type: ignore[no-untyped-call] # torch's
        for position, tensor in zip(positions, passed, strict=True):
            leaves[position] = tensor
    return pytree.tree_unflatten(leaves, structure)


def _carries_gradient(leaf: object) -> bool:
    """True for a tensor that crosses the cut with a gradient; a parameter stands on both sides."""
    return isinstance(leaf, Tensor) and leaf.requires_grad and not isinstance(leaf, nn.Parameter)
