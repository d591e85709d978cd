"""What a small block calls: every torch function and linear layer of one run, in order.

Two runs of one block make the same calls in the same order, so that a run on a rank's share can be
held against the run of the whole, call by call.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from profiles.model.tracing.trace_cuts import Output
from profiles.model.tracing.trace_local_sizes import function_name, integers
from profiles.model.tracing.trace_split_blocks import FreshBlock, ThinWeight

_PRODUCTS = {"linear", "matmul", "__matmul__", "mm", "bmm", "einsum", "_grouped_mm", "grouped_mm"}


@dataclass(slots=True)
class Event:
    """A call of the whole block; `layer` is the path of a linear layer, else "".

    values  of the tensors that it makes or changes;  given  of a linear layer: its input
    inputs, outputs  the tensors, to follow the flow
    """

    name: str
    values: list[Tensor]
    layer: str = ""
    given: Tensor | None = None
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    @property
    def work_flop(self) -> float:
        """Of products with weights and of matrices; 0 for what else there is."""
        if self.layer or self.name in _PRODUCTS:
            return 2.0 * self.values[0].numel() * self.inputs[0].shape[-1]
        if self.name.startswith("conv") and len(self.inputs) > 1:
            weight = self.inputs[1]
            return 2.0 * self.values[0].numel() * weight.numel() / weight.shape[0]
        return 0.0


class Watch(TorchFunctionMode, ABC):
    """Around one run of a fresh block: `called` sees every torch function that is a module's own,
    `layered` every linear layer."""

    def __init__(self, block: FreshBlock) -> None:
        super().__init__()
        self.pauses = 0
        self._stack: list[tuple[str, Counter[str]]] = [("", Counter())]
        for path, child in block.module.named_modules():
            if path in block.thin:
                child.forward = self._layer(path, block.thin[path])
            if path in block.large:
                child.forward = self._large(path, block.large[path])
            child.register_forward_pre_hook(self._enter(path))
            child.register_forward_hook(self._leave, always_call=True)

    @contextmanager
    def paused(self) -> Any:
        """Inside it nothing is seen."""
        self.pauses += 1
        try:
            yield
        finally:
            self.pauses -= 1

    def called(
        self, func: Any, name: str, path: str, number: int, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Make the call, the `number`th of this function in this forward of the module."""
        return func(*args, **kwargs)

    def given_whole(self, path: str, inputs: list[Tensor]) -> None:
        """A module begins that stays whole."""

    @abstractmethod
    def layered(self, path: str, weight: ThinWeight, x: Tensor) -> Tensor:
        """Run a linear layer."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.pauses:
            return func(*args, **(kwargs or {}))
        path, counts = self._stack[-1]
        name = function_name(func)
        number = counts[name]
        counts[name] += 1
        kwargs = dict(kwargs or {})
        if name.rstrip("_").endswith("dropout"):  # another draw in every run
            return args[0] if args else kwargs["input"]
        if kwargs.get("dropout_p"):
            kwargs["dropout_p"] = 0.0
        with self.paused():
            return self.called(func, name, path, number, args, kwargs)

    def _layer(self, path: str, weight: ThinWeight) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            with self.paused():
                return self.layered(path, weight, x)

        return forward

    def _large(self, path: str, recipe: Output) -> Callable[..., Any]:
        """In the place of a module with too many weights: random numbers of the right shapes, times
        a number that depends on all of its inputs."""
        generator = torch.Generator().manual_seed(1)
        shapes = [leaf[1] for leaf in recipe.leaves if leaf[0] == "new"]
        drawn = [torch.randn(shape, generator=generator).to(dtype) for shape, dtype, _ in shapes]

        def forward(*args: Any, **kwargs: Any) -> Any:
            with self.paused():
                given = tensors((args, kwargs))
                self.given_whole(path, given)
                factor = torch.stack([x.double().mean() for x in given]).sum().tanh() + 2
                return recipe.filled(args, kwargs, (x * factor.float() for x in drawn))

        return forward

    def _enter(self, path: str) -> Callable[..., None]:
        return lambda *args: self._stack.append((path, Counter()))

    def _leave(self, *args: Any) -> None:
        self._stack.pop()


class Recording(Watch):
    """The run of the whole block: `events` in order."""

    def __init__(self, block: FreshBlock) -> None:
        super().__init__(block)
        self.events: list[Event] = []

    def called(
        self, func: Any, name: str, path: str, number: int, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        out = func(*args, **kwargs)
        made = made_by(name, args, out)
        if made:
            self.events.append(
                Event(
                    name,
                    [x.detach().clone() for x in made],
                    inputs=tensors((args, kwargs)),
                    outputs=made,
                    numbers=integers(args, kwargs),
                )
            )
        return out

    def layered(self, path: str, weight: ThinWeight, x: Tensor) -> Tensor:
        y = product(x, weight)
        event = Event("linear", [y.detach().clone()], path, x.detach().clone(), [x], [y])
        self.events.append(event)
        return y


def product(x: Tensor, weight: ThinWeight) -> Tensor:
    """What a linear layer gives."""
    y = x @ weight.inner @ weight.outer.T
    return y if weight.bias is None else y + weight.bias


_CHANGING = re.compile(
    r"__(setitem|iadd|isub|imul|itruediv|ifloordiv|imod|ipow|imatmul|iand|ior|ixor)__|.*[^_]_"
)


def in_place(name: str) -> bool:
    """Whether a call changes its first argument."""
    return _CHANGING.fullmatch(name) is not None


def made_by(name: str, args: Any, out: Any) -> list[Tensor]:
    """The tensors that a call makes or changes."""
    found = tensors(args[:1]) if in_place(name) else []
    return [*found, *(x for x in tensors(out) if all(x is not y for y in found))]


def tensors(tree: Any) -> list[Tensor]:
    """Those of a nest of values."""
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def recorded(block: FreshBlock) -> tuple[Recording, list[Tensor]]:
    """The run of a whole block, and its outputs."""
    watch = Recording(block)
    with torch.enable_grad(), watch:
        outputs = block.run()
    return watch, outputs
