"""A backward in two parts: gradients of inputs first (`I`), gradients of weights later (`W`).

In the forward of a stage, products with parameters go through our autograd function
(executor/weight_products.py). In I, its backward returns the gradient of the product's input and
saves the input and the output's gradient. In W, these two are multiplied and the result is added to
the parameter's gradient. Everything else (the weight of a norm, a parametrized weight, fused
kernels such as LSTM and nn.MultiheadAttention) is computed in I. An unrecognized product therefore
costs the schedule some of its gain, but never a gradient. The published zero-bubble schedules split
in the same way (Qi et al., arXiv 2401.10241, section 4: weight gradients of linear layers in a
queue).

Torch's own split (torch.distributed.pipelining._backward) is not used: it splits the graph by
reachability, drops weights that are reached from no input, counts shared ones twice (pytorch issue
180952) or mixes up outputs (170277) in some versions, keeps all saved tensors of a stage until W,
and reruns a checkpointed block for every group of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from executor.replay.torch_calls import InterceptTorchCalls
from executor.weight_products import Product, Target, outside_weights, recognise, target_of
from profiles.errors import RunError

Around = Callable[[Any], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Pending:
    """A product whose weight gradient is not computed yet.

    versions  of x and dy when they were saved: an in-place change before W spoils the gradient
    label     value of `SplitBackward.label` in the forward
    """

    product: Product
    x: Tensor
    dy: Tensor
    weight: Target | None
    bias: Target | None
    like: Tensor
    versions: tuple[int, int]
    label: Any

    def numbers(self, of: Mapping[int, int]) -> list[int]:
        """Numbers of the parameters whose gradients it computes; `of` maps a parameter's id to its
        number."""
        made = [id(target.parameter) for target in (self.weight, self.bias) if target is not None]
        return [of[key] for key in made if key in of]

    @torch.no_grad()
    def finish(self) -> None:
        """Compute the gradients and add them; raises RunError if an operand has changed."""
        if (self.x._version, self.dy._version) != self.versions:
            raise RunError(
                f"an operand of a weight of shape {tuple(self.like.shape)} was changed in place "
                "between the gradient of the inputs and that of the weights; the model cannot run "
                "under a schedule that splits the backward. Use --schedule 1f1b"
            )
        want = (self.weight is not None and not self._added(), self.bias is not None)
        dw, db = self.product.of_weight(self.x, self.dy, self.like, want=want)
        for target, gradient in ((self.weight, dw), (self.bias, db)):
            if target is not None and gradient is not None:
                target.add(gradient)

    def _added(self) -> bool:
        """Whether the weight's gradient could be added in place."""
        assert self.weight is not None
        place = self.weight.place()
        if type(place) is not Tensor or place.dtype != self.dy.dtype:
            return False
        return self.product.add_of_weight(self.x, self.dy, place)


Watch = Callable[[Sequence[Pending]], Callable[[Pending], None]]


class SplitBackward:
    """The pending weight gradients of one stage.

    label   label of the current forward, saved with each product for timing
    around  context for each product of a W, called with its label
    watch   called with the products of a W before the first; returns a function to call after each
    splits  whether an I is running
    waits   whether products wait for a W
    """

    def __init__(self) -> None:
        self.label: Any = None
        self.around: Around = lambda label: nullcontext()
        self.watch: Watch | None = None
        self.splits = False
        self.waits: list[Pending] = []
        self._hooks: list[Any] = []

    @contextmanager
    def under_these_hooks(self) -> Iterator[None]:
        """Context in which products are split under the current saved-tensor hooks only. A block
        that the model itself checkpoints reruns in the backward without `watching`, and must save
        the same tensors both times."""
        self._hooks.append(_saved_tensor_hooks())
        try:
            yield
        finally:
            self._hooks.pop()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Context around a forward, and around each recomputation of it."""
        with self.under_these_hooks(), InterceptTorchCalls(self._handle):
            yield

    @contextmanager
    def input_half(self) -> Iterator[None]:
        """Context around an I, the only backward in which weight gradients are deferred."""
        self.splits = True
        try:
            yield
        finally:
            self.splits = False

    def take(self) -> Callable[[], None]:
        """The W for all products deferred since the last call."""
        pending, self.waits = self.waits, []

        def run() -> None:
            # In the order of the backward, which frees memory in the same order. Each is freed as
            # soon as it is done.
            done = self.watch(pending) if self.watch is not None else None
            pending.reverse()
            while pending:
                product = pending.pop()
                with self.around(product.label):
                    product.finish()
                if done is not None:
                    done(product)
                del product

        return run

    def _handle(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a torch function; through `_Split` if its backward may be split."""
        found = recognise(func, args, kwargs) if torch.is_grad_enabled() else None
        if found is None or torch.is_autocast_enabled(found.x.device.type):
            return func(*args, **kwargs)
        weight, bias = target_of(found.weight), target_of(found.bias)
        other_hooks = bool(self._hooks) and self._hooks[-1] != _saved_tensor_hooks()
        if weight is None or other_hooks:
            return func(*args, **kwargs)
        return _Split.apply(self, found.product, (weight, bias), *found[1:])  # type: ignore[no-untyped-call] # torch's is


class _Split(torch.autograd.Function):
    """A product whose weight gradient may be deferred."""

    @staticmethod
    def forward(
        ctx: Any,
        split: SplitBackward,
        product: Product,
        targets: tuple[Target | None, Target | None],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.split, ctx.product, ctx.label, ctx.targets = split, product, split.label, targets
        y = product.forward(x, weight, bias)
        # A view that a function returns must not be written in place. This is the same storage as a
        # separate tensor, and no other tensor of that storage is left.
        return torch.ops.aten._unsafe_view(y, y.shape) if y._is_view() else y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        of_input, *want = ctx.needs_input_grad[3:]
        dx = ctx.product.of_input(x, weight, dy) if of_input else None
        later = ctx.targets if ctx.split.splits else (None, None)
        dw, db = None, None
        now = tuple(w and target is None for w, target in zip(want, later, strict=True))
        if any(now):
            dw, db = ctx.product.of_weight(x, dy, weight, want=now)
        if any(target is not None for target in later):
            # x is passed without its graph, dy as the tensor itself, so that autograd sees that it
            # is in use.
            x = outside_weights(x).detach()
            versions = x._version, dy._version
            product, (w, b), like = ctx.product, later, weight.detach()
            ctx.split.waits.append(Pending(product, x, dy, w, b, like, versions, ctx.label))
        return None, None, None, dx, dw, db


def _saved_tensor_hooks() -> Any:
    """The current hooks on saved tensors (a private name of torch 2.11 to 2.13)."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)
