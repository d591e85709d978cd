"""Expected values in a run on shapes, for models that read values of their tensors.

The rows of an expert depend on values: `nonzero`, a mask as an index, `.item()` of a count. A run
on shapes has no values, but evenly loaded experts give the expected shapes. So the indices that
`topk` and similar ops return are assigned round-robin, and everything computed from them is also
computed on real tensors (trace_known_values.py). A loop over experts, a mask or a split by counts
then has the shapes of evenly loaded experts.

Tensors computed from constants (a mask of ones) have their values. For a test of all or any values
of an unknown tensor, the usual case is assumed: `all` is True (no padding, a check succeeds), `any`
is False. On request, other unknown masks select half of their elements, and unknown truth values
are False. Other reads of values raise torch's errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from profiles.model.fake_tensors.trace_fakes import tensors_in
from profiles.model.fake_tensors.trace_known_values import KnownValues, Origin, on_real_tensors

# Ops whose second result is an index along a dimension.
_CHOOSING = {"topk", "sort", "max", "min", "kthvalue"}
_ONE_CHOICE = {"argmax", "argmin", "argsort"}
_WHOLE = {"topk", "sort", "argsort"}  # choose several places along the dimension
_ASSUMED = {"all": True, "_is_all_true": True, "any": False, "_is_any_true": False}
_INDEXING = ("index", "index_put", "_index_put_impl", "_unsafe_index")
_INFINITE = {"isnan", "isinf", "isposinf", "isneginf"}
_MOST_CHECKS = 16  # a loop that ends by a value would never end
_MOST_BYTES_BACKWARD = 1 << 24  # of the largest tensor that a recomputation computes with values
_USUAL_DRAW = 0.499  # a layer that runs with probability 1/2 runs


def _finite(name: str, args: Any) -> bool | None:
    """The result of a test for infinity or NaN: all numbers are finite. None for other ops."""
    if name in _INFINITE:
        return False
    if name not in ("eq", "ne") or len(args) < 2:
        return None
    if args[0] is args[1]:
        return name == "eq"
    infinite = isinstance(args[1], float) and math.isinf(args[1])
    return name == "ne" if infinite else None


class ExpectedShapes(TorchDispatchMode):
    """Within the context, fake and meta tensors have expected values; see the module.

    on_use    called whenever an expected value or shape was used
    on_choice called for a truth value that was assumed
    uneven    all rows choose the last experts, and masks select half as many elements
    opposite  number of an assumed truth value to invert, -1 for none
    draws     `low` or `high`: torch.rand gives its lowest or highest number
    unknown   unknown values are guessed before the loss, too
    """

    def __init__(
        self,
        on_use: Callable[[], None] = lambda: None,
        on_choice: Callable[[], None] = lambda: None,
        *,
        uneven: bool = False,
        opposite: int = -1,
        draws: str = "",
        unknown: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self._on_use, self._on_choice = on_use, on_choice
        self._uneven, self._opposite, self._draws = uneven, opposite, draws
        self._assumed = 0  # number of truth values so far
        self.values = KnownValues()
        self.guesses = False  # True in the loss, in which unknown values are guessed
        self._unknown = unknown
        self.guessed = False  # an unknown mask was used before the loss
        self.drawn = False  # a number of torch.rand was read
        self.checks: list[int] = []  # numbers of assumed truth values without any information

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name == "_local_scalar_dense" and (known := self._read(args[0])) is not None:
            return known
        if name in _SHAPES and (answer := _SHAPES[name](self, args, kwargs)) is not None:
            return answer
        if name.rstrip("_") in _INDEXING:
            put = args[2] if name.startswith(("index_put", "_index_put")) else None
            args = (args[0], self._by_position(args[0], args[1], put), *args[2:])
        elif torch.Tag.dynamic_output_shape in func.tags:
            mask = args[1] if name == "masked_select" else args[0]
            if name in ("nonzero", "masked_select"):
                self._guess_mask(mask)
            real = self.values.computed(func, args, kwargs) if mask in self.values else None
            if real is not None:
                self._use(mask)
                whole = all(x in self.values for x in args if isinstance(x, Tensor))

                def shaped(x: Tensor) -> Tensor:
                    made: Tensor = args[0].new_empty(x.shape, dtype=x.dtype)
                    return self.values.put(made, x, self.values.origin((mask,))) if whole else made

                return tree_map_only(Tensor, shaped, real)
        out = func(*args, **kwargs)
        self.values.note(func, args, kwargs, out)
        self._assume(name.rstrip("_"), args, kwargs, out)
        return out

    # --- assumed values -----------------------------------------------------------------------

    def _assume(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        """Set values for the unknown result of an op that chooses, draws or tests."""
        pair = name in _CHOOSING and isinstance(out, (tuple, list)) and len(out) == 2
        if pair or name in _ONE_CHOICE:
            self._deal(name, args, kwargs, out[1] if pair else out)
        elif not isinstance(out, Tensor) or out in self.values:
            return
        elif name in ("rand", "rand_like") and out.numel() * 4 <= self.values.most_bytes:
            with on_real_tensors():
                spread = (torch.arange(out.numel()) + _USUAL_DRAW) / max(1, out.numel())
                if self._draws:
                    spread.fill_(self._draws == "high").sub_(2**-24).clamp_(min=0)
                spread = spread.reshape(out.shape).to(out.dtype)
            self.values.put(out, spread, Origin.DRAWN)
        elif (answer := _finite(name, args)) is not None:
            self._put_all(out, answer, Origin.EXPECTED)
        elif name in _ASSUMED and out.numel() == 1 and not self.guesses:
            self._put_all(out, _ASSUMED[name], Origin.ASSUMED)

    def _put_all(self, x: Tensor, value: bool, origin: Origin) -> None:
        with on_real_tensors():
            self.values.put(x, torch.tensor(value).expand(x.shape), origin)

    def _deal(self, name: str, args: Any, kwargs: Any, index: Tensor) -> None:
        """Assign the positions along a dimension round-robin, or the last ones to all rows."""
        x, position = args[0], 2 if name in ("topk", "kthvalue") else 1
        dim = args[position] if len(args) > position else kwargs.get("dim", -1)
        whole = dim is None or isinstance(dim, bool) or not x.dim()
        places = max(1, int(x.numel() if whole else x.shape[dim]))
        if index in self.values or index.numel() * 8 > self.values.most_bytes:
            return
        several = name in _WHOLE and index.dim() > 0 and not whole
        with on_real_tensors():
            k = max(1, index.shape[dim]) if several else 1
            rows = torch.arange(index.numel() // k)
            first = (rows * 0 - k) if self._uneven else rows * k
            dealt = (first[:, None] + torch.arange(k)) % places
            if several:
                shape = [n for d, n in enumerate(index.shape) if d != dim % index.dim()]
                dealt = dealt.reshape(*shape, index.shape[dim]).movedim(-1, dim)
            self.values.put(index, dealt.reshape(index.shape), Origin.EXPECTED)

    def _guess_mask(self, mask: Tensor, rows: int | None = None) -> bool:
        """Whether a mask's values are known; an unknown one selects `rows` or half of its elements,
        if unknown values are guessed."""
        if rows is None and mask in self.values:
            return True
        if rows is None and not (self.guesses or self._unknown):
            return False
        if rows is None:
            self.guessed = self.guessed or not self.guesses
        with on_real_tensors():
            order = torch.arange(mask.numel()).reshape(mask.shape)
            chosen = order % (4 if self._uneven else 2) == 0 if rows is None else order < rows
            self.values.put(mask, chosen.to(mask.dtype), Origin.EXPECTED)
        return True

    # --- reads of values ----------------------------------------------------------------------

    def _use(self, x: Tensor) -> None:
        """Record that values of a tensor decide a shape or a number."""
        origin = self.values.origin((x,))
        self.drawn = self.drawn or origin is Origin.DRAWN
        if origin is not Origin.CONSTANT:
            self._on_use()

    def _read(self, x: Tensor) -> Any:
        """The number in a tensor, None if it stays unknown."""
        if x in self.values and self.values.origin((x,)) is not Origin.ASSUMED:
            self._use(x)
            with on_real_tensors():
                return self.values[x].item()
        if x not in self.values and self.guesses:
            self._on_use()
            return x.dtype == torch.bool or (0.0 if x.is_floating_point() else 0)
        if x not in self.values:
            if x.dtype != torch.bool or not self._unknown or len(self.checks) >= _MOST_CHECKS:
                return None
            self.checks.append(self._assumed)
        with on_real_tensors():
            value = bool(self.values[x]) if x in self.values else False
        self._on_choice()
        self._assumed += 1
        return value != (self._assumed - 1 == self._opposite)

    def _by_position(self, x: Tensor, indices: Any, put: Any = None) -> list[Any]:
        """The indices, with masks replaced by positions: as many as expected, or as many as the
        rows of `put`."""
        made: list[Any] = []
        for index in indices:
            is_mask = isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
            if not is_mask:
                made.append(index)
                continue
            fits = isinstance(put, Tensor) and put.dim() == x.dim() - index.dim() + 1
            if not self._guess_mask(index, put.shape[0] if fits else None):
                made.append(index)
                continue
            self._use(index)
            with on_real_tensors():
                places = self.values[index].nonzero(as_tuple=True)
            for place in places:
                fake = x.new_empty(place.shape, dtype=torch.long)
                made.append(self.values.put(fake, place, self.values.origin((index,))))
        return made

    def _aligned(self, args: Any, kwargs: Any) -> Any:
        """A CTC loss's arguments with all labels as long as the longest, since torch's shape
        function reads the lengths."""
        scores, labels = args[0], args[1]
        if not (self.guesses or self._unknown) or not isinstance(scores, Tensor):
            return None
        self._on_use()
        steps, batch = scores.shape[0], scores.shape[1]
        longest = labels.shape[1] if labels.dim() == 2 else -(-labels.shape[0] // batch)
        return scores.new_empty(batch), scores.new_empty(batch, steps, 2 * longest + 1)

    def _grouped(self, args: Any, kwargs: Any) -> Any:
        """A grouped matmul in fp32: torch 2.13's CPU kernel accepts it, but its shape function does
        not."""
        a, b = args[0], args[1]
        if a.dtype == torch.bfloat16:
            return None
        offsets = kwargs.get("offs", args[2] if len(args) > 2 else None)
        if a.dim() == 2 and b.dim() == 2:
            return a.new_empty(offsets.shape[0], a.shape[0], b.shape[1])
        if a.dim() == 3 and b.dim() == 3:
            return a.new_empty(a.shape[0], a.shape[1], b.shape[2])
        return a.new_empty(a.shape[0] if a.dim() == 2 else a.shape[1], b.shape[-1])


# Op -> its shapes, if they do not come from torch.
_SHAPES: dict[str, Callable[[ExpectedShapes, Any, Any], Any]] = {
    "_grouped_mm": ExpectedShapes._grouped,
    "_ctc_loss": ExpectedShapes._aligned,
    "_ctc_loss_backward": lambda shapes, args, kwargs: torch.empty_like(args[1]),
}


class _Lists(TorchFunctionMode):
    """Tensor.tolist() and numpy() of known values, or of zeros in the loss; numbers in f-strings;
    constants on meta."""

    def __init__(self, shapes: ExpectedShapes) -> None:
        super().__init__()
        self._shapes = shapes

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        shapes = self._shapes
        if func is Tensor.__format__ and args[0].dim() == 0:
            # The name of a module may contain a number (`expert_3`).
            return format(args[0].item(), args[1])
        if func in (Tensor.tolist, Tensor.numpy) and (args[0] in shapes.values or shapes.guesses):
            if args[0] in shapes.values:
                shapes._use(args[0])
                with on_real_tensors():
                    return func(shapes.values[args[0]])
            shapes._on_use()
            kind = str(args[0].dtype).removeprefix("torch.").replace("bfloat16", "float32")
            found = numpy.zeros(tuple(args[0].shape), dtype=kind)
            return found if func is Tensor.numpy else found.tolist()
        made = func(*args, **(kwargs or {}))
        if func is torch.tensor and made.is_meta and not tensors_in(args):
            # torch makes it without its numbers.
            with on_real_tensors():
                shapes.values.put(made, torch.tensor(args[0], dtype=made.dtype), Origin.CONSTANT)
        return made


@contextmanager
def expected_shapes(*args: Any, **settings: Any) -> Iterator[ExpectedShapes]:
    """Context for a run on shapes, with expected values; parameters as of ExpectedShapes.

    torch's transformer compares a mask with the causal one; a square mask counts as causal. torch's
    list of a fake tensor reads number by number, an op each: of a constant there is none.
    """
    shapes = ExpectedShapes(*args, **settings)
    listed: Any = FakeTensor.tolist

    def as_list(x: Tensor) -> Any:
        if x not in shapes.values or shapes.values.origin((x,)) is not Origin.CONSTANT:
            return listed(x)
        with on_real_tensors():
            return shapes.values[x].tolist()

    compared = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = _is_square
    FakeTensor.tolist = as_list  # type: ignore[method-assign, assignment] # as it was after
    try:
        with _Lists(shapes), shapes:
            yield shapes
    finally:
        transformer._detect_is_causal_mask = compared
        FakeTensor.tolist = listed  # type: ignore[method-assign] # restored


def loss_of(shapes: ExpectedShapes, loss_fn: Callable[[Any, Any], Any], out: Any, to: Any) -> Any:
    """`loss_fn(out, to)` inside `expected_shapes`; unknown values are guessed in it."""
    shapes.guesses = True
    try:
        return loss_fn(out, to)
    finally:
        shapes.guesses = False
        shapes.values.most_bytes = _MOST_BYTES_BACKWARD


def _is_square(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    if is_causal is not None or mask is None:
        return bool(is_causal)
    return mask.dim() >= 2 and mask.shape[-1] == mask.shape[-2]
