"""Calls that name sizes of the whole model, on a rank that holds a share of its heads or features.

`q.view(batch, length, self.num_heads, self.head_dim)` names all heads; a rank of a tensor-parallel
group has some of them. Inside a module with `local_sizes` rules such numbers are divided by tp, so
that the model's own code runs on local shapes wherever its sizes come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from profiles.model.building.tensor_parallel_rules import (
    LocalSizes,
    Rule,
    UnevenSizeError,
    local_sizes_of,
)


def use_local_sizes(model: nn.Module, rules: tuple[Rule, ...], tp: int) -> None:
    """Let every module that has such rules run on one rank's sizes."""
    for path, module in list(model.named_modules()):
        sizes = local_sizes_of(path, rules)
        if sizes:
            _wrap(path, module, sizes, tp)


def _wrap(path: str, module: nn.Module, sizes: LocalSizes, tp: int) -> None:
    original = module.forward
    mode: _Divided | None = None

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal mode
        mode = _Divided(path, sizes, tp)
        with mode:
            return original(*args, **kwargs)

    def enter(*args: Any) -> None:
        if mode is not None:
            mode.depth += 1

    def leave(*args: Any) -> None:
        if mode is not None:
            mode.depth -= 1

    for child in module.modules():
        if child is not module:  # what its children call is theirs
            child.register_forward_pre_hook(enter)
            child.register_forward_hook(leave, always_call=True)
    module.forward = forward


class _Divided(TorchFunctionMode):
    """Around one forward of a module; `depth` is how many of its children are running."""

    def __init__(self, path: str, sizes: LocalSizes, tp: int) -> None:
        super().__init__()
        self.depth = 0
        self._path = path
        self._sizes, self._tp = sizes, tp
        self._counts: Counter[str] = Counter()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if not self.depth:
            name = function_name(func)
            number = self._counts[name]
            self._counts[name] += 1
            positions = self._sizes.get((name, number))
            if positions is not None:
                try:
                    args, kwargs = divided(args, kwargs or {}, positions, self._tp)
                except UnevenSizeError as error:
                    place = self._path or "the model"
                    raise UnevenSizeError(f"{error}, a size in `{name}` of {place}") from error
        return func(*args, **(kwargs or {}))


def function_name(func: Any) -> str:
    """The name of a torch function, in one word."""
    return str(getattr(func, "__name__", func)).replace(" ", "_")


def integers(args: Any, kwargs: Any) -> list[int]:
    """The whole numbers of a call's arguments in order, those in lists and slices among them."""
    found: list[int] = []

    def note(value: int) -> int:
        found.append(value)
        return value

    _mapped((args, kwargs), note)
    return found


def divided(args: Any, kwargs: Any, positions: tuple[int, ...], tp: int) -> tuple[Any, Any]:
    """The arguments with the whole numbers at these positions divided by tp; raises
    UnevenSizeError     where that is uneven."""
    position = -1

    def divide(value: int) -> int:
        nonlocal position
        position += 1
        if position not in positions:
            return value
        if value % tp:
            raise UnevenSizeError(f"tp={tp} does not divide {value}")
        return value // tp

    made: tuple[Any, Any] = _mapped((args, kwargs), divide)
    return made


def _mapped(value: Any, change: Callable[[int], int]) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, Tensor):
        return value
    if isinstance(value, int):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(x, change) for key, x in value.items()}
    if isinstance(value, slice):
        return slice(*(_mapped(x, change) for x in (value.start, value.stop, value.step)))
    if type(value) in (tuple, list, torch.Size):
        made = [_mapped(x, change) for x in value]
        return made if isinstance(value, list) else tuple(made)
    return value
