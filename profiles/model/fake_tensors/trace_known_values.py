"""`KnownValues`: values of fake tensors that are computed from constants, such as attention masks.

A mask is computed from positions: arange, comparisons, a triangle. Such ops depend on no weight and
no input, so they are also computed on real tensors during the trace, and a mask's values are known
when attention uses it. Other values, and those of large tensors, are unknown.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_map_only

from profiles.model.fake_tensors.trace_fakes import tensors_in

# Ops that create tensors from constants.
_MADE = {"arange", "ones", "zeros", "full", "scalar_tensor", "eye", "tril_indices", "triu_indices"}
_MADE |= {"linspace", "new_ones", "new_zeros", "new_full"}
_MADE |= {"ones_like", "zeros_like", "full_like"}
# Ops that mask scores: index of the mask among the arguments (-1: either of two), and whether the
# mask is true for hidden keys.
_MASKING = {"masked_fill": (1, True), "where": (0, False), "add": (-1, False)}
# Bytes of the largest tensor that is computed: positions of 4,096 x 4,096, or a mask of 16,384.
_MOST_BYTES = 1 << 28


class KnownValues:
    """Real values of fake tensors up to `most_bytes`, by tensor."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._values: dict[int, Tensor] = {}
        self._most_bytes = most_bytes

    def answer(self, x: Tensor, question: Callable[[Tensor], Any]) -> Any | None:
        """`question` of a tensor's values, None if they are unknown."""
        values = self._values.get(id(x))
        if values is None:
            return None
        with unset_fake_temporarily(), torch.utils._python_dispatch._disable_current_modes():
            return question(values)

    def note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Compute the op on real tensors if all inputs are known."""
        name = func._schema.name.removeprefix("aten::")
        if not self._values and name not in _MADE and name != "lift_fresh":
            return
        tensors = tensors_in((args, kwargs))
        made = name in _MADE or (name == "lift_fresh" and all(map(_is_real, tensors)))
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if not made and not tensors:
            return
        if not made and not all(id(x) in self._values for x in tensors):
            for x in tensors_in(out):  # written in place with something unknown
                self._values.pop(id(x), None)
            return
        leaves = tensors_in(out)
        if not leaves or any(x.numel() * x.element_size() > self._most_bytes for x in leaves):
            return
        with unset_fake_temporarily(), torch.utils._python_dispatch._disable_current_modes():
            try:
                given, named = self._real((args, kwargs))
                real = func(*given, **named)
            except Exception:  # not possible on this machine: the values stay unknown
                return
        for x, value in zip(leaves, tensors_in(real), strict=False):
            if id(x) not in self._values:
                weakref.finalize(x, self._values.pop, id(x), None)
            self._values[id(x)] = value

    def _real(self, tree: Any) -> Any:
        def of(x: Tensor) -> Tensor:
            found = x if _is_real(x) else self._values.get(id(x))
            return found if found is not None else torch.empty(x.shape, dtype=x.dtype)

        return tree_map_only(Tensor, of, tree)

    def of_scores(self, func: Any, args: Any) -> int | None:
        """`reach` of the mask of an element-wise op on attention scores; None for other ops and
        unknown masks."""
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        place, hides = _MASKING.get(name, (0, False))
        if name not in _MASKING or len(args) < 2:
            return None
        masks = [args[place]] if place >= 0 else list(args[:2])
        known = [x for x in masks if isinstance(x, Tensor) and id(x) in self._values]
        if len(known) != 1 or min(known[0].shape[-2:], default=0) < 2:
            return None
        return self.reach(known[0], hides=hides) or None

    def reach(self, mask: Tensor, *, hides: bool = False) -> int | None:
        """The largest number of consecutive keys, up to the query's position, that a mask shows:
        all keys for a causal mask, fewer for a window; 0 for another or an unknown mask, None for a
        mask without effect.

        hides  the mask is true for hidden keys
        """
        values = self._values.get(id(mask))
        if values is None or values.dim() < 2 or (hides and values.dtype != torch.bool):
            return 0
        with unset_fake_temporarily(), torch.utils._python_dispatch._disable_current_modes():
            # Only masks that are equal for all samples and heads.
            flat = values.reshape(-1, *values.shape[-2:])
            if flat.shape[0] > 1 and not bool((flat == flat[:1]).all()):
                return 0
            seen = flat[0] if flat.dtype == torch.bool else flat[0] > -1e4
            seen = ~seen if hides else seen
            if bool(seen.all()):
                return None
            queries, keys = seen.shape
            reach = int(seen.sum(1).max())
            ahead = torch.arange(queries)[:, None] + (keys - queries) - torch.arange(keys)
            band = (ahead >= 0) & (ahead < reach)
            return reach if bool((band == seen).all()) else 0


def _is_real(x: Tensor) -> bool:
    """Whether a tensor has values itself (a constant in the model's code)."""
    return not isinstance(x, FakeTensor) and not x.is_meta
