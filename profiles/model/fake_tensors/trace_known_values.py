"""`KnownValues`: values of fake tensors that are computed from constants, such as attention masks.

A mask is computed from positions: arange, comparisons, a triangle. Such ops depend on no weight and
no input, so they are also computed on real tensors during the trace, and a mask's values are known
when attention uses it. The same holds for values that a caller assumes (`put`). Other values, and
those of large tensors, are unknown.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from profiles.model.fake_tensors.trace_fakes import tensors_in

# Ops that create tensors from constants.
_MADE = {"arange", "ones", "zeros", "full", "scalar_tensor", "eye", "tril_indices", "triu_indices"}
_MADE |= {"linspace", "new_ones", "new_zeros", "new_full"}
_MADE |= {"ones_like", "zeros_like", "full_like"}
# Ops that mask scores: index of the mask among the arguments (-1: either of two), and whether the
# mask is true for hidden keys.
_MASKING = {"masked_fill": (1, True), "where": (0, False), "add": (-1, False)}
# Ops that restrict known codes by further conditions (room for a token at its expert), or write
# unknown scores at known places; unknown operands count as true.
_CONDITIONS = {"mul", "logical_and", "bitwise_and", "scatter"}
# Bytes of the largest tensor that is computed: positions of 4,096 x 4,096, or a mask of 16,384.
_MOST_BYTES = 1 << 28


class Origin(IntEnum):
    """Why a value is known; a result has the largest of its inputs' origins.

    CONSTANT  computed from numbers in the model's code
    EXPECTED  of evenly loaded experts
    DRAWN     of `torch.rand`
    ASSUMED   a truth value that may be wrong
    """

    CONSTANT = 0
    EXPECTED = 1
    DRAWN = 2
    ASSUMED = 3


class KnownValues:
    """Real values of fake and meta tensors up to `most_bytes`, by tensor."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[Tensor, Origin]] = {}
        self.most_bytes = _MOST_BYTES

    def __getitem__(self, x: Tensor) -> Tensor:
        return self._values[id(x)][0]

    def __contains__(self, x: object) -> bool:
        return id(x) in self._values

    def origin(self, tensors: Iterable[Tensor]) -> Origin:
        """The largest origin of these tensors."""
        found = (self._values[id(x)][1] for x in tensors if id(x) in self._values)
        return max(found, default=Origin.CONSTANT)

    def put(self, x: Tensor, value: Tensor, origin: Origin) -> Tensor:
        """Set the value of a tensor, and return the tensor."""
        if id(x) not in self._values:
            weakref.finalize(x, self._values.pop, id(x), None)
        self._values[id(x)] = value, origin
        return x

    def computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The op's result on the known values; other tensors count as ones. None if it fails."""
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        with on_real_tensors():
            try:
                given, named = tree_map_only(Tensor, self._real, (args, kwargs))
                return func(*given, **named)
            except Exception:  # not possible on this machine: the values stay unknown
                return None

    def note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Compute the op on real tensors if all inputs are known."""
        name = func._schema.name.removeprefix("aten::")
        if not self._values and name not in _MADE and name != "lift_fresh":
            return
        tensors = tensors_in((args, kwargs))
        made = name in _MADE or (name == "lift_fresh" and all(map(_is_real, tensors)))
        if not made and not tensors:
            return
        leaves = tensors_in(out)
        origin = self.origin(tensors)
        known = all(x in self for x in tensors) or (
            origin is not Origin.CONSTANT and name.rstrip("_") in _CONDITIONS
        )
        if not made and (not known or torch.Tag.nondeterministic_seeded in func.tags):
            for x in leaves:  # written in place with something unknown
                self._values.pop(id(x), None)
            return
        if not leaves or any(x.numel() * x.element_size() > self.most_bytes for x in leaves):
            return
        real = self.computed(func, args, kwargs)
        for x, value in zip(leaves, tensors_in(real), strict=False):
            self.put(x, value, origin)

    def _real(self, x: Tensor) -> Tensor:
        if id(x) in self._values:
            return self[x]
        return x if _is_real(x) else torch.ones(x.shape, dtype=x.dtype)

    def of_scores(self, func: Any, args: Any) -> int | None:
        """`reach` of the mask of an element-wise op on attention scores; None for other ops and
        unknown masks."""
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        place, hides = _MASKING.get(name, (0, False))
        if name not in _MASKING or len(args) < 2:
            return None
        if place < 0 and not all(isinstance(x, Tensor) for x in args[:2]):
            return None  # a mask and a number
        masks = [args[place]] if place >= 0 else list(args[:2])
        known = [x for x in masks if isinstance(x, Tensor) and x in self]
        if len(known) != 1 or min(known[0].shape[-2:], default=0) < 2:
            return None
        return self.reach(known[0], hides=hides) or None

    def reach(self, mask: Tensor, *, hides: bool = False) -> int | None:
        """The largest number of consecutive keys, up to the query's position, that a mask shows:
        all keys for a causal mask, fewer for a window; 0 for another or an unknown mask, None for a
        mask without effect.

        hides  the mask is true for hidden keys
        """
        values = self._values[id(mask)][0] if mask in self else None
        if values is None or values.dim() < 2 or (hides and values.dtype != torch.bool):
            return 0
        with on_real_tensors():
            # Only masks that are equal for all samples and heads.
            flat = values.reshape(-1, *values.shape[-2:])
            if not all(torch.equal(other, flat[0]) for other in flat[1:]):
                return 0
            seen = flat[0] if flat.dtype == torch.bool else flat[0] > -1e4
            seen = ~seen if hides else seen
            if bool(seen.all()):
                return None
            queries, keys = seen.shape
            reach = int(seen[-1].sum())  # the last query is at the last key
            band = torch.ones_like(seen).tril_(keys - queries).triu_(keys - queries - reach + 1)
            return reach if torch.equal(band, seen) else 0


@contextmanager
def on_real_tensors() -> Iterator[None]:
    """Context within a run on shapes for computations on real tensors."""
    with unset_fake_temporarily(), _disable_current_modes(), torch.device("cpu"):
        yield


def _is_real(x: Tensor) -> bool:
    """Whether a tensor has values itself (a constant in the model's code)."""
    return not isinstance(x, FakeTensor) and not x.is_meta
