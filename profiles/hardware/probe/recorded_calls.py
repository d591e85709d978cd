"""Calls of torch's ops as autograd makes them in a forward and its backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

Call = tuple[Any, tuple[Any, ...]]


class RecordedCalls(TorchDispatchMode):
    """Records all calls of ops in the context: the op, its arguments and its keyword arguments."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own is untyped
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def recorded_call(name: str, forward: Callable[[], Any]) -> Call:
    """The first call of the op `name` in a forward, or in its backward for the name of a backward.

    The arguments are detached, so that the call can be repeated.
    """
    with RecordedCalls() as seen:
        out = forward()
        if "backward" in name:
            torch.autograd.backward(out, torch.ones_like(out))
    found = (call[:2] for call in seen.calls if call[0]._schema.name.split("::")[1] == name)
    func, args = next(found)
    return func, tree_map_only(Tensor, Tensor.detach, args)
