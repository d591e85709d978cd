"""Products with a parameter, and the two parts of their backward.

Each product defines its forward, the gradient of its input (`I`), and the gradients of its weight
and bias (`W`). The formulas are torch's own (derivatives.yaml of torch 2.13: linear, addmm,
convolution_backward, embedding_dense_backward).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from executor.working_copies import KeepGradients

Gradients = tuple[Tensor | None, Tensor | None]
_aten = torch.ops.aten


class Product:
    """An operation on x, a weight and optionally a bias."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        raise NotImplementedError

    def of_input(self, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
        raise NotImplementedError

    def of_weight(
        self, x: Tensor, dy: Tensor, weight: Tensor, *, want: tuple[bool, bool]
    ) -> Gradients:
        """Gradients of weight and bias, as far as they are needed. Reads only the weight's shape,
        because its values may have been freed since the forward."""
        raise NotImplementedError

    def add_of_weight(self, x: Tensor, dy: Tensor, place: Tensor) -> bool:
        """Add the weight gradient to `place`, which has its shape, without a temporary tensor of
        that size; returns False, without a change, if that is not possible."""
        return False


@dataclass(frozen=True, slots=True)
class Linear(Product):
    """x [..., k] times weight [n, k] transposed, plus bias [n]; `transposed`: weight is [k, n]."""

    transposed: bool = False

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not self.transposed:
            return F.linear(x, weight, bias)
        return torch.matmul(x, weight) if bias is None else torch.addmm(bias, x, weight)

    def of_input(self, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
        return _rows(dy).mm(weight.t() if self.transposed else weight).reshape(x.shape)

    def of_weight(
        self, x: Tensor, dy: Tensor, weight: Tensor, *, want: tuple[bool, bool]
    ) -> Gradients:
        left, right = self._factors(x, dy)
        return left.mm(right) if want[0] else None, _rows(dy).sum(0) if want[1] else None

    def add_of_weight(self, x: Tensor, dy: Tensor, place: Tensor) -> bool:
        place.addmm_(*self._factors(x, dy))
        return True

    def _factors(self, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        rows, flat = _rows(x), _rows(dy)
        return (rows.t(), flat) if self.transposed else (flat.t(), rows)


@dataclass(frozen=True, slots=True)
class Convolution(Product):
    """A convolution of any number of dimensions, also transposed.

    settings  stride, padding, dilation, transposed, output padding and groups, as torch takes them
    """

    settings: tuple[Any, ...]

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.convolution(x, weight, bias, *self.settings)

    def of_input(self, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
        dx: Tensor = self._backward(x, dy, weight, [True, False, False])[0]
        return dx

    def of_weight(
        self, x: Tensor, dy: Tensor, weight: Tensor, *, want: tuple[bool, bool]
    ) -> Gradients:
        # A weight that is sharded after the forward has no storage by now; only its shape is read.
        like = weight if weight.untyped_storage().size() else torch.empty_like(weight)
        _, dw, db = self._backward(x, dy, like, [False, *want])
        return dw if want[0] else None, db if want[1] else None

    def _backward(self, x: Tensor, dy: Tensor, weight: Tensor, mask: list[bool]) -> Any:
        *_, transposed, _, groups = self.settings
        sizes = [weight.shape[1] * groups if transposed else weight.shape[0]]
        return _aten.convolution_backward(dy, x, weight, sizes, *self.settings, mask)


@dataclass(frozen=True, slots=True)
class Embedding(Product):
    """Rows of the weight by number; row `padding` gets no gradient (-1: every row gets one)."""

    padding: int

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.embedding(weight, x, self.padding)

    def of_weight(
        self, x: Tensor, dy: Tensor, weight: Tensor, *, want: tuple[bool, bool]
    ) -> Gradients:
        if not want[0]:
            return None, None
        return _aten.embedding_dense_backward(dy, x, weight.shape[0], self.padding, False), None

    def add_of_weight(self, x: Tensor, dy: Tensor, place: Tensor) -> bool:
        if x.device.type != "cpu":  # on other devices, index_add_ adds in a random order
            return False
        rows, numbers = _rows(dy), x.reshape(-1)
        if self.padding >= 0:
            rows = rows.masked_fill((numbers == self.padding)[:, None], 0.0)
        place.index_add_(0, numbers, rows)
        return True


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


class Recognised(NamedTuple):
    """A torch function call, recognized as a product."""

    product: Product
    x: Tensor
    weight: Tensor
    bias: Tensor | None = None


def recognise(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Recognised | None:
    """The product of a torch function call; None if it is not a product, or one whose backward is
    not split."""
    found = _READERS.get(function)
    try:
        return found(*args, **kwargs) if found is not None else None
    except TypeError:  # an unknown signature
        return None


def _linear(input: Any, weight: Any, bias: Any = None) -> Recognised | None:
    return Recognised(Linear(), input, weight, bias) if weight.dim() == 2 else None


def _addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Recognised | None:
    if beta != 1 or alpha != 1 or input.dim() != 1 or input.shape[0] != mat2.shape[1]:
        return None
    return Recognised(Linear(transposed=True), mat1, mat2, input)


def _matmul(input: Any, other: Any) -> Recognised | None:
    if other.dim() != 2 or input.dim() < 2:
        return None
    return Recognised(Linear(transposed=True), input, other)


def _embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Recognised | None:
    if max_norm is not None or scale_grad_by_freq or sparse:
        return None
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return Recognised(Embedding(padding), input, weight)


# Order of torch's arguments after the bias, for convolutions and transposed ones.
_STRAIGHT = ("stride", "padding", "dilation", "groups")
_TRANSPOSED = ("stride", "padding", "output_padding", "groups", "dilation")


def _convolution(dims: int, *, transposed: bool) -> Callable[..., Recognised | None]:
    names = _TRANSPOSED if transposed else _STRAIGHT

    def read(
        input: Any, weight: Any, bias: Any = None, *settings: Any, **named: Any
    ) -> Recognised | None:
        given = dict(zip(names, settings, strict=False)) | named
        # A text ("same") may pad both ends differently; an input without a batch is not split
        # either.
        if isinstance(given.get("padding"), str) or input.dim() != dims + 2:
            return None

        def many(name: str, default: int) -> list[int]:
            value = given.get(name, default)
            return [value] * dims if isinstance(value, int) else [*value] * (dims // len(value))

        first = many("stride", 1), many("padding", 0), many("dilation", 1)
        rest = transposed, many("output_padding", 0), given.get("groups", 1)
        return Recognised(Convolution((*first, *rest)), input, weight, bias)

    return read


_READERS: dict[Callable[..., Any], Callable[..., Recognised | None]] = {
    F.linear: _linear,
    F.embedding: _embedding,
    torch.addmm: _addmm,
    torch.mm: _matmul,
    torch.matmul: _matmul,
    Tensor.mm: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
}
for _dims in (1, 2, 3):
    _READERS[getattr(torch, f"conv{_dims}d")] = _convolution(_dims, transposed=False)
    _READERS[getattr(torch, f"conv_transpose{_dims}d")] = _convolution(_dims, transposed=True)


@dataclass(frozen=True, slots=True)
class Target:
    """Destination of a weight gradient: a parameter, or a view of a part of it.

    part  sizes, strides and offset of the view within the parameter's storage; None for all of it
    """

    parameter: nn.Parameter
    part: tuple[tuple[int, ...], tuple[int, ...], int] | None = None

    def add(self, gradient: Tensor) -> None:
        """Add to the parameter's gradient."""
        place = self.place()
        if place is None:
            # In autograd's layout, so that gradients summed over ranks have equal strides on each
            # rank.
            like = gradient.stride() == self.parameter.stride()
            made = gradient if like else torch.empty_like(self.parameter).copy_(gradient)
            self.parameter.grad = made
        else:
            place.add_(gradient)
        if self.part is None:  # a part would need zeros for the rest of the parameter
            for keep in _hooks_behind(self.parameter):
                keep(self.parameter)

    def place(self) -> Tensor | None:
        """The tensor inside the parameter's gradient to add to; None without a gradient so far."""
        p = self.parameter
        if self.part is None:
            return p.grad
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        elif p.grad.stride() != p.stride():
            p.grad = torch.empty_like(p).copy_(p.grad)
        sizes, strides, offset = self.part
        return p.grad.as_strided(sizes, strides, p.grad.storage_offset() + offset)


def target_of(tensor: Tensor | None) -> Target | None:
    """The parameter of a tensor or view, if its gradient may be computed later than the others: it
    requires a gradient, has no hook except that of a working copy, and the view contains no element
    twice."""
    if tensor is None or not tensor.requires_grad:
        return None
    base = tensor if tensor.is_leaf else tensor._base
    if base is None or not isinstance(base, nn.Parameter) or not base.is_leaf:
        return None
    others = any(not isinstance(hook, KeepGradients) for hook in _hooks_behind(base))
    if base._backward_hooks or others or base.layout is not torch.strided:
        return None
    if base is tensor:
        return Target(base)
    if type(tensor) is not Tensor or tensor.dtype != base.dtype or _overlaps(tensor):
        return None
    if torch.empty_like(base, device="meta").stride() != base.stride():
        return None  # it has gaps or overlaps
    offset = int(tensor.storage_offset() - base.storage_offset())
    return Target(base, (tuple(tensor.shape), tensor.stride(), offset))


def outside_weights(x: Tensor) -> Tensor:
    """x, or a copy of it if it is a weight or a view of one, because FSDP2 frees weights."""
    return x.clone() if isinstance(x if x._base is None else x._base, nn.Parameter) else x


def _hooks_behind(p: Tensor) -> tuple[Callable[[Tensor], None], ...]:
    """The hooks that run when the parameter's gradient is accumulated (a private name of torch 2.11
    to 2.13)."""
    return tuple((getattr(p, "_post_accumulate_grad_hooks", None) or {}).values())


def _overlaps(x: Tensor) -> bool:
    """Whether two elements of a view may share memory."""
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False
