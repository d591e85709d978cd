"""What the code of a model may draw at random from, beside torch's own generators for a device:
`random`, numpy's, and generators that its modules keep."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

Kept = torch.Generator | random.Random | numpy.random.RandomState | numpy.random.Generator
# Those whose methods the functions of `random` and of numpy.random are.
_PYTHON: Any = random.getstate.__self__  # type: ignore[attr-defined] # a bound method
_NUMPY: Any = numpy.random.get_state.__self__  # type: ignore[attr-defined] # a bound method
_LOW, _HIGH = 0, 0x12DD9BB3
_WORDS, _EXTREME_WORDS = 624, 512  # of a Mersenne twister's state


class Generators:
    """Python's and numpy's generators and those that modules keep, by their path."""

    def __init__(self, module: nn.Module | None = None) -> None:
        self._all: list[tuple[str, Kept]] = [("random", _PYTHON), ("numpy", _NUMPY)]
        if module is not None:
            self.add(module)

    def add(self, module: nn.Module) -> None:
        """Those that the modules of a model keep as attributes, too."""
        for path, child in module.named_modules():
            for name, value in vars(child).items():
                if isinstance(value, Kept) and not isinstance(value, random.SystemRandom):
                    self._all.append((f"{path}.{name}", value))

    def states(self) -> list[Any]:
        """Of all, in their order: what `restore` takes."""
        return [_state(x) for _, x in self._all]

    def restore(self, states: Iterable[Any]) -> None:
        """As they were, the first as many as there are states."""
        for (_, x), state in zip(self._all, states, strict=False):
            _set_state(x, state)

    def seed(self, seed_of: Callable[[str], int]) -> None:
        """Seeded anew, each with the seed of its path."""
        for path, x in self._all:
            _seed(x, seed_of(path))

    def changed(self, states: Iterable[Any]) -> bool:
        """Whether anything was drawn since these were the states."""
        return [_told(x) for x in states] != [_told(x) for x in self.states()]

    @contextmanager
    def at(self, states: list[Any] | None) -> Iterator[None]:
        """Around a run that begins with these states, after which all is as before; with None
        nothing is done."""
        before = self.states() if states is not None else []
        self.restore(states or [])
        try:
            yield
        finally:
            self.restore(before)

    @contextmanager
    def watched(self, draws: str = "") -> Iterator[list[bool]]:
        """Around a run from a fixed seed; the list then says whether anything was drawn, and all
        is as before.

        draws  `low` or `high`: the first numbers that are drawn are the least or the greatest there
               are, where a generator is a Mersenne twister (`random`, numpy's functions)
        """
        drawn: list[bool] = []
        with self.at(self.states()):
            self.seed(lambda path: len(draws))
            if draws:
                for _, x in self._all:
                    _set_extreme(x, _LOW if draws == "low" else _HIGH)
            begun = self.states()
            try:
                yield drawn
            finally:
                drawn.append(self.changed(begun))


def _state(x: Kept) -> Any:
    if isinstance(x, random.Random):
        return x.getstate()
    if isinstance(x, numpy.random.Generator):
        return x.bit_generator.state
    with _disable_current_modes():  # torch's gives a tensor
        return x.get_state()


def _set_state(x: Kept, state: Any) -> None:
    if isinstance(x, random.Random):
        x.setstate(state)
    elif isinstance(x, numpy.random.Generator):
        x.bit_generator.state = state
    else:
        with _disable_current_modes():
            x.set_state(state)


def _seed(x: Kept, seed: int) -> None:
    if isinstance(x, torch.Generator):
        x.manual_seed(seed)
    elif isinstance(x, numpy.random.Generator):
        x.bit_generator.state = type(x.bit_generator)(seed).state
    else:
        x.seed(seed % 2**32)


def _set_extreme(x: Kept, word: int) -> None:
    """The words that a Mersenne twister gives next are made of those in its state, one by one: of
    0 it makes 0, of `_HIGH` the greatest. The last are left, for code that draws until it likes
    what it gets."""
    if isinstance(x, random.Random):
        version, (*words, _), gauss = x.getstate()
        x.setstate((version, (*_extreme(words, word), 0), gauss))
    elif isinstance(x, numpy.random.RandomState):
        state: Any = x.get_state(legacy=False)
        words = numpy.array(_extreme(state["state"]["key"], word), "uint32")
        x.set_state(state | {"state": {"key": words, "pos": 0}})


def _extreme(words: Iterable[int], word: int) -> list[int]:
    return [word] * _EXTREME_WORDS + list(words)[_EXTREME_WORDS:_WORDS]


def _told(state: Any) -> Any:
    """A state as text tells it whole: arrays as lists."""
    if isinstance(state, torch.Tensor):
        with _disable_current_modes():
            return state.tolist()
    if isinstance(state, numpy.ndarray):
        return state.tolist()
    if isinstance(state, dict):
        return {k: _told(v) for k, v in state.items()}
    return tuple(map(_told, state)) if isinstance(state, tuple) else state
