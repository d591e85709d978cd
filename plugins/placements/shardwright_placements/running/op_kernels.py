"""Run an op on a rank's parts: the op itself, and special cases that need more.

Most calls run unchanged on local tensors, because the planner cuts them only along dims over which
they are independent or linear. KERNELS has the others: ops with shapes in their arguments, biases
that must count once, means, lookups in a part of a table, losses over a part of the classes,
attention with a part of the heads or rows, normalization over a cut batch, experts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from profiles.errors import InputError
from profiles.model.building.build_split_loss import split_cross_entropy
from shardwright_placements.running.cut_sums import once, synchronised_norm
from shardwright_placements.running.row_exchange import (
    balanced_product,
    exchanged_rows,
    grouped_product,
)
from shardwright_placements.running.shard_position import PARTIAL, REPLICATED, Position
from shardwright_placements.sharding_file import PlacedTensor, split_dim

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCall:
    """A call with the rank's parts in place of tensors.

    tensors          the parts in the order of the arguments
    inputs, outputs  placements of the inputs and outputs
    shapes, made     shapes of the whole inputs and outputs
    unplanned        a context in which collectives are counted separately from the plan's
    """

    name: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: tuple[Tensor, ...]
    inputs: tuple[PlacedTensor, ...]
    outputs: tuple[PlacedTensor, ...]
    shapes: tuple[Shape, ...]
    made: tuple[Shape, ...]
    position: Position
    unplanned: Callable[[str], AbstractContextManager[None]]

    def local_made(self) -> Shape:
        """Shape of the rank's part of the first output."""
        return self.position.local_shape(self.outputs[0].forward, self.made[0])

    def split_axes(self, index: int, dim: int) -> tuple[int, ...]:
        """Axes that split a dim of an input."""
        placements = self.inputs[index].forward
        return tuple(a for a, p in enumerate(placements) if split_dim(p) == dim)

    def summed_axes(self) -> tuple[int, ...]:
        """Axes over which the work is cut and the output is a sum."""
        partial = self.position.axes(self.outputs[0].forward, PARTIAL)
        return tuple(
            a for a in partial if any(split_dim(x.forward[a]) is not None for x in self.inputs)
        )


def run_local(call: LocalCall) -> Any:
    """The outputs on this rank."""
    kernel = KERNELS.get(call.name)
    return kernel(call) if kernel is not None else call.function(*call.args, **call.kwargs)


def _argument(call: LocalCall, index: int, name: str, default: Any = None) -> Any:
    if len(call.args) > index:
        return call.args[index]
    return call.kwargs.get(name, default)


# --- shapes and means ---------------------------------------------------------------------------


def _reshaped(call: LocalCall) -> Tensor:
    return call.tensors[0].reshape(call.local_made())


def _expanded(call: LocalCall) -> Tensor:
    return call.tensors[0].expand(call.local_made())


def _mean(call: LocalCall) -> Tensor:
    mean: Tensor = call.function(*call.args, **call.kwargs)
    return mean / call.position.ranks(call.summed_axes())


def _counted(call: LocalCall) -> Tensor:
    """A histogram; torch has none for integers on CPUs."""
    x = call.tensors[0]
    made: Tensor = call.function(x.float(), *call.args[1:], **call.kwargs)
    return made.to(x.dtype)


# --- products with a bias -----------------------------------------------------------------------


def _bias(call: LocalCall, index: int) -> Tensor:
    """The bias; if the output is a sum over ranks, only on the first rank, otherwise zeros."""
    axes = tuple(a for a in call.summed_axes() if call.inputs[index].forward[a] == REPLICATED)
    if not axes:
        return call.tensors[index]
    return once(call.tensors[index], all(call.position.coordinates[a] == 0 for a in axes))


def _linear(call: LocalCall) -> Tensor:
    made = F.linear(call.tensors[0], call.tensors[1])
    return made + _bias(call, 2) if len(call.tensors) > 2 else made


def _biased_product(call: LocalCall) -> Tensor:
    if call.kwargs.get("alpha", 1) != 1 or call.kwargs.get("beta", 1) != 1:
        raise InputError("`run` cannot split addmm with alpha or beta other than 1 over ranks")
    return torch.mm(call.tensors[1], call.tensors[2]) + _bias(call, 0)


def _convolution(call: LocalCall) -> Tensor:
    groups = int(_argument(call, 6, "groups", 1))
    if groups > 1:
        groups //= call.position.ranks(call.split_axes(0, 1))
    made: Tensor = call.function(
        call.tensors[0],
        call.tensors[1],
        None,
        _argument(call, 3, "stride", 1),
        _argument(call, 4, "padding", 0),
        _argument(call, 5, "dilation", 1),
        groups,
    )
    if len(call.tensors) < 3:
        return made
    return made + _bias(call, 2).view(1, -1, *(1,) * (made.dim() - 2))


# --- tables and losses --------------------------------------------------------------------------


def _embedding(call: LocalCall) -> Tensor:
    tokens, table = call.tensors
    first, count = call.position.span(call.inputs[1].forward, 0, call.shapes[1][0])
    padding = _argument(call, 2, "padding_idx")
    if _argument(call, 3, "max_norm") is not None:
        raise InputError("`run` cannot split an embedding with max_norm over ranks")
    if count == call.shapes[1][0]:
        return F.embedding(tokens, table, padding)
    inside = (tokens >= first) & (tokens < first + count)
    rows = F.embedding(torch.where(inside, tokens - first, 0), table)
    if padding is not None:
        rows = torch.where(
            (tokens == padding % call.shapes[1][0]).unsqueeze(-1), rows.detach(), rows
        )
    return rows * inside.unsqueeze(-1)


def _cross_entropy(call: LocalCall) -> Tensor:
    logits, targets = call.tensors
    ignored = -100
    plain = {"weight": None, "label_smoothing": 0.0, "reduction": "mean", "ignore_index": ignored}
    for key, value in plain.items():
        if call.kwargs.get(key, value) != value:
            raise InputError(f"`run` cannot split cross_entropy with {key} over ranks")
    if bool((targets == ignored).any()):
        raise InputError("`run` cannot split cross_entropy with ignored targets over ranks")
    axes = call.split_axes(0, 1)
    if axes:
        first, _ = call.position.span(call.inputs[0].forward, 1, call.shapes[0][1])

        def reduce(x: Tensor, kind: str) -> Tensor:
            for axis in axes:
                op = dist.ReduceOp.MAX if kind == "max" else dist.ReduceOp.SUM
                dist.all_reduce(x, op=op, group=call.position.mesh.get_group(axis))
            return x

        loss = split_cross_entropy(logits, targets, first=first, reduce=reduce)
    else:
        loss = F.cross_entropy(logits, targets)
    return loss / call.position.ranks(call.summed_axes())


# --- attention ----------------------------------------------------------------------------------


def _attention(call: LocalCall) -> Tensor:
    q, k, v = call.tensors[:3]
    mask = call.tensors[3] if len(call.tensors) > 3 else None
    causal = bool(_argument(call, 5, "is_causal", False))
    if _argument(call, 4, "dropout_p", 0.0):
        raise InputError("attention with dropout cannot be compared; set it to 0")
    place = call.position.span
    row, rows = place(call.inputs[0].forward, 2, call.shapes[0][2])
    if rows != call.shapes[0][2] and causal:
        columns = torch.arange(k.shape[2], device=q.device)
        mask, causal = columns <= (row + torch.arange(rows, device=q.device)).unsqueeze(1), False
    head, heads = place(call.inputs[0].forward, 1, call.shapes[0][1])
    own, _ = place(call.inputs[1].forward, 1, call.shapes[1][1])
    group = call.shapes[0][1] // call.shapes[1][1]
    wanted = (head + torch.arange(heads, device=q.device)) // group - own
    if k.shape[1] != heads or heads != call.shapes[0][1]:
        # Each of the rank's heads with its keys and values.
        k, v = k.index_select(1, wanted), v.index_select(1, wanted)
    scale = call.kwargs.get("scale")
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)


# --- normalisation over the batch ---------------------------------------------------------------


def _batch_norm(call: LocalCall) -> Tensor:
    axes = call.split_axes(0, 0)
    momentum, epsilon = _argument(call, 6, "momentum", 0.1), _argument(call, 7, "eps", 1e-5)
    training = bool(_argument(call, 5, "training", False))
    x, mean, variance = call.tensors[:3]
    weight, bias = call.tensors[3:5] if len(call.tensors) > 4 else (None, None)
    if not axes or not training:
        # Copies: running statistics are those of the whole layer.
        copies = (mean.clone(), variance.clone())
        return F.batch_norm(x, *copies, weight, bias, training, momentum, epsilon)
    groups = [call.position.mesh.get_group(axis) for axis in axes]
    made = synchronised_norm(x, groups, call.position.ranks(axes), float(epsilon))
    if weight is not None and bias is not None:
        shape = (1, -1, *(1,) * (x.dim() - 2))
        made = made * weight.view(shape) + bias.view(shape)
    return made


# --- experts ------------------------------------------------------------------------------------


def _rows_taken(call: LocalCall) -> Any:
    exchanging = tuple(
        a
        for a in call.split_axes(0, 0)
        if len(call.inputs) == 2
        and split_dim(call.outputs[0].forward[a]) == 0
        and call.inputs[1].forward[a] == REPLICATED
    )
    if not exchanging:
        return call.function(*call.args, **call.kwargs)
    (axis,) = exchanging
    x, index = call.tensors
    return exchanged_rows(x, index, call.position, axis)


def _grouped(call: LocalCall) -> Tensor:
    x, weight, ends = call.tensors
    axes = call.split_axes(1, 0)
    if not axes:
        return grouped_product(x, weight, ends)
    with call.unplanned("rebalancing"):
        return balanced_product(x, weight, ends, call.position, axes, call.unplanned)


KERNELS: dict[str, Callable[[LocalCall], Any]] = {
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "squeeze", "view_as"), _reshaped),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), _expanded),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(("_grouped_mm", "grouped_mm"), _grouped),
    "mean": _mean,
    "histc": _counted,
    "linear": _linear,
    "addmm": _biased_product,
    "embedding": _embedding,
    "cross_entropy": _cross_entropy,
    "scaled_dot_product_attention": _attention,
    "batch_norm": _batch_norm,
    "__getitem__": _rows_taken,
}
"""Calls that need more than the model's own call on local tensors; a new one is one line here."""
