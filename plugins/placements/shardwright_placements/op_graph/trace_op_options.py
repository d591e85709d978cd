"""Properties of a call that determine how tensor dims correspond: name, dims, strides of views."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from shardwright_placements.op_graph.op_graph import Option

_VIEW_TRIAL = ("view", "reshape", "flatten", "unflatten", "contiguous")


def call_name(func: Any) -> str:
    """The name of a torch function, the same for operators and reflected operators."""
    name = str(getattr(func, "__name__", func))
    plain = {"__rmul__": "mul", "__radd__": "add", "__matmul__": "matmul", "__rsub__": "rsub"}
    return plain.get(name, name)


def attribute_name(func: Any) -> str:
    """The name of a tensor property (`T`, `shape`), otherwise ""."""
    return str(getattr(getattr(func, "__self__", None), "__name__", ""))


def view_strides(
    func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Tensor]
) -> tuple[tuple[int, ...], ...]:
    """Strides of the outputs over a contiguous input if the call is a view, otherwise ()."""
    first = next((x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)), None)
    if first is None:
        return ()
    shares = all(x.untyped_storage()._cdata == first.untyped_storage()._cdata for x in outputs)
    if not shares and name not in _VIEW_TRIAL:
        return ()
    fresh = torch.empty(first.shape, dtype=first.dtype, device="meta")

    def swap(x: Tensor) -> Tensor:
        return fresh if x is first else x

    try:
        with torch.no_grad():
            again = func(*tree_map_only(Tensor, swap, args), **tree_map_only(Tensor, swap, kwargs))
    except RuntimeError:
        return ()
    leaves = [x for x in tree_leaves(again) if isinstance(x, Tensor)]
    if any(x.untyped_storage()._cdata != fresh.untyped_storage()._cdata for x in leaves):
        return ()
    return tuple(tuple(x.stride()) for x in leaves)


# Calls whose `dim` argument determines how dims correspond.
_JOINS = ("cat", "concat", "stack")
_REDUCTIONS = ("mean", "sum", "amax", "amin", "max", "min", "var", "std", "norm", "logsumexp")
_SCANS = ("softmax", "log_softmax", "cumsum", "argmax", "topk", "sort", "index_select", "gather")
_OVER_DIMS = frozenset((*_JOINS, *_REDUCTIONS, *_SCANS))


def call_options(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Tensor]
) -> tuple[tuple[str, Option], ...]:
    """The non-tensor arguments that determine how dims correspond."""
    found: dict[str, Option] = {}
    rank = inputs[0].dim() if inputs else 0
    dims = kwargs.get("dim")
    plain = [x for x in args[1:] if not isinstance(x, Tensor)]
    if name in _JOINS:
        dims = kwargs.get("dim", plain[0] if plain else 0)
        rank += name == "stack"
    elif dims is None:
        dims = next((x for x in plain if isinstance(x, (int, list, tuple))), None)
    listed = [dims] if isinstance(dims, int) else dims
    if name not in _OVER_DIMS:
        listed = None
    if isinstance(listed, (list, tuple)) and all(isinstance(d, int) for d in listed):
        found["dim"] = tuple(d % rank if rank and -rank <= d < rank else d for d in listed)
    if name in ("conv1d", "conv2d", "conv3d"):
        found["groups"] = (int(kwargs.get("groups", args[6] if len(args) > 6 else 1)),)
    if name in ("layer_norm", "rms_norm"):
        shape = kwargs.get("normalized_shape", args[1] if len(args) > 1 else ())
        found["normalized"] = (len(shape),)
    if name == "einsum" and args and isinstance(args[0], str):
        found["equation"] = args[0].replace(" ", "")
    if name == "scaled_dot_product_attention":
        found["tensors"] = (len(inputs),)
    return tuple(sorted(found.items()))
