"""Random generators that a model's code may use in addition to torch's device generators:
`random`, numpy's, and attributes of its modules."""

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
_OF_MODULES = frozenset(vars(nn.Module()))  # attributes of every module, none a generator
# The generators behind the functions of `random` and numpy.random.
_PYTHON: Any = random.getstate.__self__  # type: ignore[attr-defined] # a bound method
_NUMPY: Any = numpy.random.get_state.__self__  # type: ignore[attr-defined] # a bound method
_LOW, _HIGH = 0, 0x12DD9BB3
_WORDS, _EXTREME_WORDS = 624, 512  # in a Mersenne twister's state


class Generators:
    """Python's and numpy's generators and those of modules, by path."""

    def __init__(self, module: nn.Module | None = None) -> None:
        self._all: list[tuple[str, Kept]] = [("random", _PYTHON), ("numpy", _NUMPY)]
        if module is not None:
            self.add(module)

    def add(self, module: nn.Module) -> None:
        """Add the generators that are attributes of a model's modules."""
        for path, child in module.named_modules():
            for name, value in vars(child).items():
                if name in _OF_MODULES:
                    continue
                if isinstance(value, Kept) and not isinstance(value, random.SystemRandom):
                    self._all.append((f"{path}.{name}", value))

    def states(self) -> list[Any]:
        """The states of all generators, in order."""
        return [_state(x) for _, x in self._all]

    def restore(self, states: Iterable[Any]) -> None:
        """Set the states of the first generators, one per state."""
        for (_, x), state in zip(self._all, states, strict=False):
            _set_state(x, state)

    def seed(self, seed_of: Callable[[str], int]) -> None:
        """Set a new seed for each generator, by path."""
        for path, x in self._all:
            _seed(x, seed_of(path))

    def changed(self, states: Iterable[Any]) -> bool:
        """Whether a number was drawn since these states."""
        return [_comparable(x) for x in states] != [_comparable(x) for x in self.states()]

    @contextmanager
    def at(self, states: list[Any] | None) -> Iterator[None]:
        """Context that begins with these states and restores the previous ones; None: no effect."""
        before = self.states() if states is not None else []
        self.restore(states or [])
        try:
            yield
        finally:
            self.restore(before)

    @contextmanager
    def watched(self, draws: str = "") -> Iterator[list[bool]]:
        """Context with a fixed seed, which restores the previous states; the list then contains
        whether a number was drawn.

        draws  `low` or `high`: Mersenne twisters (`random`, numpy's functions) return their lowest
               or highest numbers first
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
    """Set the words of a Mersenne twister's state from which it computes its next words one by one:
    0 gives 0, `_HIGH` the highest. The last words stay random, for code that draws repeatedly until
    a condition is met."""
    if isinstance(x, random.Random):
        version, (*words, _), gauss = x.getstate()
        x.setstate((version, (*_extreme(words, word), 0), gauss))
    elif isinstance(x, numpy.random.RandomState):
        state: Any = x.get_state(legacy=False)
        words = numpy.array(_extreme(state["state"]["key"], word), "uint32")
        x.set_state(state | {"state": {"key": words, "pos": 0}})


def _extreme(words: Iterable[int], word: int) -> list[int]:
    return [word] * _EXTREME_WORDS + list(words)[_EXTREME_WORDS:_WORDS]


def _comparable(state: Any) -> Any:
    """A state with arrays as lists."""
    if isinstance(state, torch.Tensor):
        with _disable_current_modes():
            return state.tolist()
    if isinstance(state, numpy.ndarray):
        return state.tolist()
    if isinstance(state, dict):
        return {k: _comparable(v) for k, v in state.items()}
    return tuple(map(_comparable, state)) if isinstance(state, tuple) else state
