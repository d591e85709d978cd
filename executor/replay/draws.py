"""Random draws of a model (dropout, noise, skipped layers), equal in stages and in the whole model.

Every draw has a separate seed, computed from the run's seed, the step, the micro-batch of the
global batch and the place in the model: for a unit (a module with weights that runs as a whole) its
path and the number of the call, for a function in the code between units its number among those
that draw. So a stage draws the same numbers as the unsplit model, and a checkpointed unit draws
them again, since torch restores the generator's state. `random`, numpy's functions and generators
in modules are seeded in the same way.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from executor.replay.torch_calls import TorchCallSwitch
from profiles.model.fake_tensors.trace_generators import Generators

# Names of functions in the code between units that may draw.
_DRAWING = {
    *("dropout", "dropout1d", "dropout2d", "dropout3d", "dropout_", "alpha_dropout"),
    *("feature_dropout", "feature_alpha_dropout", "native_dropout", "gumbel_softmax", "rrelu"),
    *("multi_head_attention_forward", "scaled_dot_product_attention", "lstm", "gru"),
    *("rnn_tanh", "rnn_relu", "fractional_max_pool2d", "fractional_max_pool3d"),
    *("rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm"),
    *("bernoulli", "bernoulli_", "multinomial", "normal", "normal_", "poisson", "random_"),
    *("uniform_", "exponential_", "geometric_", "cauchy_", "log_normal_"),
}
_CHANCES = ("p", "dropout", "dropout_p")


class DrawsSeen(TorchDispatchMode):
    """Context around a run on fake tensors: `any` is True once a random number has been drawn."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self.any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            told = func._schema.arguments
            named = {a.name: a.default_value for a in told}  # torch leaves these values out
            named |= dict(zip((a.name for a in told), args, strict=False)) | kwargs
            self.any = self.any or not any(named.get(name) == 0.0 for name in _CHANCES)
        return func(*args, **kwargs)


class Draws:
    """The draws of one model.

    step         of the run, from 0
    from_others  whether the model also draws from `random`, numpy's functions or its own
                 generators. Seeding them takes nine tenths of the 80 us around a unit (two cores,
                 torch 2.13, 2026-11-23)
    """

    def __init__(self, seed: int, *, from_others: bool = True) -> None:
        self.step = 0
        self._seed = seed
        self._others = Generators() if from_others else None
        self._scope = ""
        self._inside = 0
        self._calls: Counter[str] = Counter()
        self._looking = TorchCallSwitch(self._between)

    def watch(self, module: nn.Module, units: Iterable[str]) -> None:
        """Seed every call of these units; in a model that is one unit (""), every function that
        draws."""
        if self._others is not None:
            self._others.add(module)
        found = dict(module.named_modules())
        for path in filter(None, units):
            saved: list[tuple[bool, Any]] = []
            began = partial(self._began, path, saved)
            found[path].register_forward_pre_hook(began, prepend=True)
            found[path].register_forward_hook(partial(self._ended, saved), always_call=True)

    @contextmanager
    def forward(self, micro_batch: int) -> Iterator[None]:
        """Context around the forward of a micro-batch, given its number in the global batch."""
        self._scope = f"{self._seed}:{self.step}:{micro_batch}"
        self._inside = 0
        self._calls.clear()
        before = self._states()
        try:
            self._set("")
            self._looking.turn(True)
            yield
        finally:
            self._looking.turn(False)
            self._restore(before)

    def _between(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a torch function, with its seed set if it draws random numbers."""
        if self._inside or getattr(func, "__name__", "") not in _DRAWING:
            return func(*args, **kwargs)
        before = self._states()
        try:
            self._set("between units")
            return func(*args, **kwargs)
        finally:
            self._restore(before)

    def _set(self, place: str) -> None:
        number = self._calls[place]
        self._calls[place] += 1
        text = f"{self._scope}:{place}:{number}"
        _seed(_number(text))
        if self._others is not None:
            self._others.seed(lambda path: _number(f"{text}:{path}"))

    def _states(self) -> tuple[Any, Any, list[Any]]:
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        on_cuda = torch.cuda.get_rng_state() if cuda else None
        from_others = [] if self._others is None else self._others.states()
        return torch.get_rng_state(), on_cuda, from_others

    def _restore(self, states: tuple[Any, Any, list[Any]]) -> None:
        torch.set_rng_state(states[0])
        if states[1] is not None:
            torch.cuda.set_rng_state(states[1])
        if self._others is not None:
            self._others.restore(states[2])

    def _began(self, path: str, saved: list[tuple[bool, Any]], *_: Any) -> None:
        saved.append((self._looking.on, self._states()))
        self._looking.turn(False)
        self._inside += 1
        self._set(path)

    def _ended(self, saved: list[tuple[bool, Any]], *_: Any) -> None:
        if saved:
            self._inside -= 1
            looked, before = saved.pop()
            self._restore(before)
            self._looking.turn(looked)


def _seed(seed: int) -> None:
    """Seed torch's generator. On a machine without CUDA, torch.manual_seed would record the stack
    of every call for later: a third of a millisecond per unit, half of the forward of a small
    vision transformer (torch 2.13, 2026-11-22)."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
