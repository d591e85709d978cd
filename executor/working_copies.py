"""Mixed precision without sharded parameters: copies of the weights in the compute type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# Gradients of copies are added to the weights' once this many bytes exist, so that no more are in
# both types at the same time. A hook takes 10 us of host time (torch 2.13, a CPU, 2026-11-22),
# casting 1 MiB ten times that.
_TOGETHER_BYTES = 2**20


class WorkingCopies:
    """Copies of a stage's parameters in the compute type; the weights keep their own type.

    Modules use the copies. The gradients of micro-batches must not add up in bf16, so gradients of
    copies are added to the weights' gradients in the weights' type. This is done in groups of
    neighboring copies, when the gradient of the first of a group is computed; after a backward in
    another order, by `keep_gradients`. `refresh` updates the copies after a step. A scalar (a
    tensor without dimensions) is used in its stored type, as under FSDP2, which does not accept
    such parameters (parallelize.apply_fully_sharded). Frozen weights exist only as copies.

    FSDP2 on a mesh of one process does the same, with passes over all parameters that one process
    does not need, and 45 us of host time per parameter and step (torch 2.13, a CPU, 2026-11-22: 80
    to 160 linear layers of width 8 and 64, with other work).

    weight_of  trained copy -> its weight
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._hooks: list[Any] = []
        made: dict[nn.Parameter, nn.Parameter] = {}
        for module in model.modules():
            for key, weight in module._parameters.items():
                if weight is None or not weight.dim() or not weight.is_floating_point():
                    continue
                if weight not in made:
                    value = weight.detach().to(dtype, copy=True)
                    made[weight] = nn.Parameter(value, requires_grad=weight.requires_grad)
                module._parameters[key] = made[weight]
        self.weight_of: dict[Tensor, nn.Parameter] = {
            copy: weight for weight, copy in made.items() if weight.requires_grad
        }
        # A backward runs from the model's end: the gradient of the first copy of a group comes
        # last.
        group: list[tuple[Tensor, nn.Parameter]] = []
        for copy, weight in reversed(self.weight_of.items()):
            group.append((copy, weight))
            if sum(x.nbytes for x, _ in group) >= _TOGETHER_BYTES:
                hook = KeepGradients(tuple(group))
                self._hooks.append(copy.register_post_accumulate_grad_hook(hook))
                group = []

    def let_go(self) -> None:
        """Remove the hooks: autograd refers to them and they to the weights, a cycle that the
        garbage collector does not see."""
        for hook in self._hooks:
            hook.remove()

    @torch.no_grad()
    def keep_gradients(self) -> None:
        """After a backward or a W: move the copies' gradients to the weights."""
        KeepGradients(tuple(self.weight_of.items()))()

    @torch.no_grad()
    def refresh(self) -> None:
        """Update the copies of trained weights."""
        if self.weight_of:
            torch._foreach_copy_([*self.weight_of], [*self.weight_of.values()])


@dataclass(frozen=True, slots=True)
class KeepGradients:
    """Moves gradients of copies to their weights; called with a copy whose gradient was just
    computed."""

    group: tuple[tuple[Tensor, nn.Parameter], ...]

    def __call__(self, of: Tensor | None = None) -> None:
        for copy, weight in self.group:
            gradient = copy.grad
            copy.grad = None
            if gradient is not None and weight.grad is not None:
                _add(gradient, to=weight.grad)
            elif gradient is not None:
                weight.grad = gradient.to(weight.dtype)


def _add(gradient: Tensor, *, to: Tensor) -> None:
    """Add in pieces on a CPU: torch first casts the whole summand (`TensorIterator`)."""
    if to.device.type != "cpu" or not to.numel():
        to += gradient
        return
    rows = max(1, _TOGETHER_BYTES * len(to) // to.nbytes)
    for total, part in zip(to.split(rows), gradient.split(rows), strict=True):
        total += part
