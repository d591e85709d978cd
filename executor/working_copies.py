"""Mixed precision without sharded parameters: copies that a stage computes with; its weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

# The gradient of a copy of so many bytes goes to its weight as soon as autograd has made it: those
# of large copies are never held in both types at once. A hook takes 10 us of host time (torch 2.13,
# a CPU, 2026-11-22), the cast of 1 MiB ten times that. Gradients of smaller copies, however many
# there are, wait for the end of the backward; without hooks all wait, for the end of the I or W.
_LARGE_BYTES = 2**20


class WorkingCopies:
    """Every parameter of a stage in the type that it computes in; the weights stay in their own.

    Modules hold the copies from here on. `keep_gradients` adds what a backward gave the copies to
    the weights' gradients, in the weights' type: gradients of micro-batches must not add up in
    bf16. `refresh` makes the copies anew from weights that have changed. A single number (a tensor
    without dimensions) is computed with as it is stored, as under FSDP2, to which such parameters
    are not given (parallelize.apply_fully_sharded).

    FSDP2 on a mesh of one process does the same with passes over all parameters that one process
    does not need, and with 45 us of host time per parameter and step (torch 2.13, a CPU,
    2026-11-22: 80 to 160 linear layers of width 8 and 64, beside other work).

    hooks  False where the backward is split: a parameter with a hook has no gradient that could
           wait for a W (weight_products.target_of)
    weight_of  the weight behind each copy
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, *, hooks: bool = True) -> None:
        self._hooks = hooks
        self.weight_of: dict[Tensor, nn.Parameter] = {}
        made: dict[nn.Parameter, nn.Parameter] = {}
        for module in model.modules():
            for key, weight in module._parameters.items():
                if weight is None or not weight.dim() or not weight.is_floating_point():
                    continue
                if weight not in made:
                    made[weight] = self._copy(weight, dtype)
                module._parameters[key] = made[weight]
        self._trained = [(c, w) for c, w in self.weight_of.items() if w.requires_grad]

    def _copy(self, weight: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
        value = weight.detach().to(dtype, copy=True)
        copy = nn.Parameter(value, requires_grad=weight.requires_grad)
        self.weight_of[copy] = weight
        if self._hooks and weight.requires_grad and copy.nbytes >= _LARGE_BYTES:
            copy.register_post_accumulate_grad_hook(lambda made: _keep(made, weight))
        return copy

    @torch.no_grad()
    def keep_gradients(self) -> None:
        """After a backward or a W: the copies' gradients go to the weights."""
        for copy, weight in self._trained:
            if copy.grad is not None:
                _keep(copy, weight)

    @torch.no_grad()
    def refresh(self) -> None:
        """Make the copies of trained weights anew."""
        for copy, weight in self._trained:
            _own(copy).copy_(_own(weight))


def _keep(copy: Tensor, weight: nn.Parameter) -> None:
    gradient, copy.grad = copy.grad, None
    assert gradient is not None
    if weight.grad is None:
        weight.grad = gradient.to(weight.dtype)
    else:
        weight.grad += gradient


def _own(x: Tensor) -> Tensor:
    part: Tensor = x.to_local() if isinstance(x, DTensor) else x
    return part
