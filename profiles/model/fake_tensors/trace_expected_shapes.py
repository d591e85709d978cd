"""Expected values in a run on shapes, for models that read values of their tensors.

The rows of an expert depend on values: `nonzero`, a mask as an index, `.item()` of a count. A run
on shapes has no values, but their expectation under even load can be computed: each of `n` top-k
indices is equally likely, a comparison with one of them is true with probability 1/n, the sum of
this mask over m elements is m/n. So a loop over experts, a mask or a split by counts gets the
shapes of evenly loaded experts.

Tensors computed from constants (a mask of ones) have their values. For a test of all or any values
of an unknown tensor, the usual case is assumed: `all` is True (no padding, a check succeeds), `any`
is False. On request, other unknown masks select half of their elements, and unknown truth values
are False. Other reads of values remain torch's errors.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from profiles.model.fake_tensors.trace_known_values import KnownValues


@dataclass(frozen=True, slots=True)
class Expected:
    """The distribution of the values of a tensor and of its views.

    kind     `choice`: one of `classes` integers with equal probability; `position`: any valid
             index; `share`: non-zero with probability `mean`; `count`: `mean` on average;
             `uniform`: from 0 to 1, as of `torch.rand`; `assumed`: an unknown truth value, taken to
             be `mean`
    classes  number of choices
    """

    kind: str
    mean: float = 0.0
    classes: int = 0


NEVER = Expected("share", 0.0)
ALWAYS = Expected("share", 1.0)


def of_finite(name: str, args: Any) -> Expected | None:
    """The result of a test for infinity or NaN: all numbers are finite."""
    if name in ("isnan", "isinf", "isposinf", "isneginf"):
        return NEVER
    if name not in ("eq", "ne") or len(args) < 2:
        return None
    if args[0] is args[1]:
        return ALWAYS if name == "eq" else NEVER
    if isinstance(args[1], float) and math.isinf(args[1]):
        return NEVER if name == "eq" else ALWAYS
    return None


def extent(name: str, args: Any, kwargs: Any) -> int:
    """The size of the dimension along which an op chooses."""
    x = args[0]
    position = 2 if name in ("topk", "kthvalue") else 1
    dim = args[position] if len(args) > position else kwargs.get("dim", -1)
    if dim is None or isinstance(dim, bool) or not x.dim():
        return max(1, int(x.numel()))
    return max(1, int(x.shape[dim]))


aten = torch.ops.aten


_POSITION = Expected("position")
_HALF = Expected("share", 0.5)  # of an unknown mask
# Ops whose second result is an index along a dimension.
_CHOOSING = {"topk", "sort", "max", "min", "kthvalue"}
_ONE_CHOICE = {"argmax", "argmin", "argsort"}
_DRAWING = {"rand", "rand_like"}
_ASSUMED = {"all": 1.0, "any": 0.0}  # test -> its assumed result
_SAME_TEST = {"_is_all_true": "all", "_is_any_true": "any"}
_MOST_KNOWN_BYTES = 1 << 20  # of the largest tensor with computed values
_BOTH = {"logical_and", "bitwise_and", "mul"}
_OF_VALUES = {"gather", "cat", "repeat", "index", "index_select"}
_MOST_CHECKS = 16  # a loop that ends by a value would never end
_UNCHANGED = {"_to_copy", "clone", "contiguous", "detach", "alias", "ne_zero", "abs"}


class ExpectedShapes(TorchDispatchMode):
    """Within the context, fake and meta tensors have expected values; see the module.

    on_use     called whenever an expected value or shape was used
    on_choice  called for a truth value that may differ in a real run, with whether it was assumed
    share      factor on the expected number of elements that a mask selects
    opposite   number of an assumed truth value to invert, -1 for none
    unknown    unknown values are guessed before the loss, too
    """

    def __init__(
        self,
        on_use: Callable[[], None] | None = None,
        share: float = 1.0,
        on_choice: Callable[[bool], None] | None = None,
        opposite: int = -1,
        unknown: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self._share = share
        self._on_use = on_use or (lambda: None)
        self._on_choice = on_choice or (lambda assumed: None)
        self._opposite = opposite
        self._assumed = 0  # number of truth values so far
        self._constants = KnownValues(_MOST_KNOWN_BYTES)
        self._known: dict[int, tuple[Any, Expected]] = {}
        self.guesses = False  # True in the loss, in which unknown values are guessed
        self._unknown = unknown
        self.guessed = False  # an unknown mask was used before the loss
        self.checks: list[int] = []  # numbers of assumed truth values without any information

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        answer = _ANSWERS.get(name)
        if answer is not None:
            found = answer(self, args, kwargs)
            if found is not None:
                return found[0]
        if name.rstrip("_") in ("index", "index_put", "_index_put_impl", "_unsafe_index"):
            put = args[2] if name.startswith(("index_put", "_index_put")) else None
            args = (args[0], self._by_position(args[0], args[1], put), *args[2:])
        out = func(*args, **kwargs)
        self._constants.note(func, args, kwargs, out)
        watched = self.guesses or name in _WATCHED
        if self._known or watched:
            self._follow(name.rstrip("_"), args, kwargs, out)
        return out

    # --- expectations -------------------------------------------------------------------------

    def of(self, x: Any) -> Expected | None:
        """The expectation of a tensor, if there is one."""
        if not isinstance(x, Tensor):
            return None
        found = self._known.get(x.untyped_storage()._cdata)
        return found[1] if found is not None else None

    def _note(self, x: Tensor, expected: Expected) -> Tensor:
        storage = x.untyped_storage()
        key = storage._cdata
        kept = weakref.ref(storage, lambda _: self._known.pop(key, None))
        self._known[key] = (kept, expected)
        return x

    def _follow(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        pair = name in _CHOOSING and isinstance(out, (tuple, list)) and len(out) == 2
        if pair or name in _ONE_CHOICE:
            chosen = Expected("choice", classes=extent(name, args, kwargs))
            self._note(out[1] if pair else out, chosen)
        elif name in _DRAWING:
            self._note(out, Expected("uniform"))
        elif isinstance(out, Tensor):
            expected = self._derived(name, args, out)
            if expected is not None and self.of(out) is None:
                self._note(out, expected)

    def _derived(self, name: str, args: Any, out: Tensor) -> Expected | None:
        """The expectation of an op's result, or None."""
        if (finite := of_finite(name, args)) is not None:
            return finite
        name = _SAME_TEST.get(name, name)
        first = self.of(args[0]) if args else None
        if name in _ASSUMED and out.numel() == 1 and not self.guesses and first is None:
            return Expected("assumed", _ASSUMED[name])
        if first is not None and first.kind == "assumed":
            opposite = replace(first, mean=1 - first.mean)
            inverted = name in ("logical_not", "bitwise_not")
            return opposite if inverted else first if name in _UNCHANGED else None
        second = self.of(args[1]) if len(args) > 1 else None
        if name in ("eq", "ne"):
            choice = next((x for x in (first, second) if x and x.kind == "choice"), None)
            if choice is not None:
                mean = 1 / choice.classes if name == "eq" else 1 - 1 / choice.classes
                return Expected("share", mean, choice.classes)
        codes = not out.is_floating_point()  # one-hot, on zeros
        if name == "scatter" and len(args) > 2 and (codes or self.of(args[2]) is not None):
            return Expected("share", min(1.0, args[2].numel() / max(1, out.numel())))
        if name in _BOTH and isinstance(args[1], Tensor) and (first is None) != (second is None):
            # Further conditions (capacity of the token's expert) are true.
            known = first or second
            return known if known is not None and known.kind == "share" else None
        if first is None:
            return None
        if first.kind == "uniform":
            # As in skipped layers: `torch.rand([]) < self.layerdrop`.
            drawn = name in ("lt", "le") and isinstance(args[1], (int, float))
            return Expected("share", min(1.0, max(0.0, args[1]))) if drawn else None
        if name in _UNCHANGED | _OF_VALUES:
            return first
        if name == "all":
            return Expected("share", float(first.mean >= 1)) if first.kind == "share" else None
        if name in ("sum", "any"):
            rows = args[0].numel() / max(1, out.numel())
            if first.kind == "share" and name == "sum":
                return Expected("count", first.mean * rows, first.classes)
            return Expected("share", min(1.0, first.mean * rows), first.classes)
        if name in ("gt", "ge", "ne") and not isinstance(args[1], Tensor):
            least = args[1] + (name != "ge")
            share = first.mean if least == 1 else float(least <= 0 or first.mean >= least)
            return Expected("share", min(1.0, share), first.classes)
        if name in ("logical_not", "bitwise_not") and first.kind == "share":
            return Expected("share", 1 - first.mean, first.classes)
        if second is not None and first.kind == second.kind == "share":
            if name in _BOTH:
                return Expected("share", first.mean * second.mean)
            if name in ("logical_or", "bitwise_or"):
                return Expected("share", 1 - (1 - first.mean) * (1 - second.mean))
        return None

    # --- ops that read values -----------------------------------------------------------------

    def rows(self, mask: Tensor) -> int | None:
        """The expected number of selected elements of a mask, or None."""
        known = self._constants.answer(mask, lambda x: int(x.count_nonzero()))
        if known is not None:
            return int(known)
        expected = self.of(mask)
        if expected is None and (self.guesses or self._unknown):
            expected = _HALF
            self.guessed = self.guessed or not self.guesses
        if expected is None or expected.kind not in ("share", "count"):
            return None
        found = round(min(1.0, expected.mean) * mask.numel() * self._share)
        if mask.dim() == 1 and mask.numel() == expected.classes + 1:
            # One-hot codes with an additional class that is always empty.
            found = min(found, expected.classes)
        return found

    def _by_position(self, x: Tensor, indices: Any, put: Any = None) -> list[Any]:
        """The indices, with masks as positions: as many as expected, or as there are rows to
        put."""
        made: list[Any] = []
        for index in indices:
            is_mask = isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
            rows = self.rows(index) if is_mask else None
            if rows is None:
                made.append(index)
                continue
            if isinstance(put, Tensor) and put.dim() == x.dim() - index.dim() + 1:
                rows = put.shape[0]
                self._note(index, Expected("share", rows / max(1, index.numel())))
            self._on_use()
            made += [x.new_empty(rows, dtype=torch.long) for _ in range(index.dim())]
        return made

    def _nonzero(self, args: Any, kwargs: Any) -> Any:
        rows = self.rows(args[0])
        if rows is None:
            return None
        self._on_use()
        made = args[0].new_empty((rows, args[0].dim()), dtype=torch.long)
        return (self._note(made, _POSITION),)

    def _masked_select(self, args: Any, kwargs: Any) -> Any:
        rows = self.rows(args[1])
        if rows is None:
            return None
        self._on_use()
        return (args[0].new_empty(rows),)

    def _bincount(self, args: Any, kwargs: Any) -> Any:
        expected = self.of(args[0])
        if expected is None or expected.kind != "choice":
            return None
        least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
        made = args[0].new_empty(max(least, expected.classes), dtype=torch.long)
        self._on_use()
        mean = args[0].numel() / expected.classes
        return (self._note(made, Expected("count", mean, expected.classes)),)

    def _value(self, args: Any, kwargs: Any) -> Any:
        known = self._constants.answer(args[0], Tensor.item)
        if known is not None:
            return (known,)
        expected = self.of(args[0]) or (_HALF if self.guesses else None)
        if expected is None and args[0].dtype == torch.bool and self._unknown:
            expected = Expected("assumed", 0.0)
            self.checks.append(self._assumed)
        if expected is None or expected.kind == "uniform" or len(self.checks) > _MOST_CHECKS:
            return None
        if expected.kind == "assumed":
            self._on_choice(True)
            self._assumed += 1
            return ((expected.mean >= 0.5) != (self._assumed - 1 == self._opposite),)
        self._on_use()
        value = round(expected.mean) if expected.kind == "count" else 0
        if args[0].dtype == torch.bool:
            if 0 < expected.mean < 1 and not self.guesses:
                self._on_choice(False)
            return (expected.mean >= 0.5,)
        return (value,)

    def _aligned(self, args: Any, kwargs: Any) -> Any:
        """CTC loss: torch's shape function reads the lengths of the labels; all get the longest."""
        scores, labels = args[0], args[1]
        if not (self.guesses or self._unknown) or not isinstance(scores, Tensor):
            return None
        self._on_use()
        steps, batch = scores.shape[0], scores.shape[1]
        longest = labels.shape[1] if labels.dim() == 2 else -(-labels.shape[0] // batch)
        return ((scores.new_empty(batch), scores.new_empty(batch, steps, 2 * longest + 1)),)

    def _grouped(self, args: Any, kwargs: Any) -> Any:
        """torch's kernel takes fp32 on a CPU too, its shape function bf16 alone (torch 2.13)."""
        a, b = args[0], args[1]
        if a.dtype == torch.bfloat16:
            return None
        offsets = kwargs.get("offs", args[2] if len(args) > 2 else None)
        if a.dim() == 2 and b.dim() == 2:
            return (a.new_empty(offsets.shape[0], a.shape[0], b.shape[1]),)
        if a.dim() == 3 and b.dim() == 3:
            return (a.new_empty(a.shape[0], a.shape[1], b.shape[2]),)
        rows = a.shape[0] if a.dim() == 2 else a.shape[1]
        return (a.new_empty(rows, b.shape[-1]),)


_WATCHED = _CHOOSING | _ONE_CHOICE | _DRAWING | set(_ASSUMED) | set(_SAME_TEST)
_ANSWERS: dict[str, Callable[[ExpectedShapes, Any, Any], Any]] = {
    "nonzero": ExpectedShapes._nonzero,
    "masked_select": ExpectedShapes._masked_select,
    "bincount": ExpectedShapes._bincount,
    "_local_scalar_dense": ExpectedShapes._value,
    "_grouped_mm": ExpectedShapes._grouped,
    "_ctc_loss": ExpectedShapes._aligned,
    "_ctc_loss_backward": lambda shapes, args, kwargs: (torch.empty_like(args[1]),),
}


class _Lists(TorchFunctionMode):
    """Tensor.tolist() of expected counts, rounded with the right sum; numbers in f-strings."""

    def __init__(self, shapes: ExpectedShapes) -> None:
        super().__init__()
        self._shapes = shapes

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.tolist:
            expected = self._shapes.of(args[0])
            if expected is not None and args[0].dim() == 1:
                self._shapes._on_use()
                n, mean = args[0].shape[0], expected.mean
                edges = [round(mean * i) for i in range(n + 1)]
                return [b - a for a, b in pairwise(edges)]
        if func is Tensor.__format__ and args[0].dim() == 0:
            # The name of a module may contain a number (`expert_3`).
            return format(args[0].item(), args[1])
        if self._shapes.guesses and func in (Tensor.tolist, Tensor.numpy):
            self._shapes._on_use()
            kind = str(args[0].dtype).removeprefix("torch.").replace("bfloat16", "float32")
            found = numpy.zeros(tuple(args[0].shape), dtype=kind)
            return found if func is Tensor.numpy else found.tolist()
        return func(*args, **(kwargs or {}))


@contextmanager
def expected_shapes(
    on_use: Callable[[], None] | None = None,
    share: float = 1.0,
    on_choice: Callable[[bool], None] | None = None,
    opposite: int = -1,
    unknown: bool = False,
) -> Iterator[ExpectedShapes]:
    """Context for a run on shapes, with expected values; parameters as of ExpectedShapes.

    torch's transformer compares a mask with the causal one; a square mask counts as causal.
    """
    shapes = ExpectedShapes(on_use, share, on_choice, opposite, unknown)
    compared = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = _is_square
    try:
        with _Lists(shapes), shapes:
            yield shapes
    finally:
        transformer._detect_is_causal_mask = compared


def loss_of(shapes: ExpectedShapes, loss_fn: Callable[[Any, Any], Any], out: Any, to: Any) -> Any:
    """`loss_fn(out, to)` inside `expected_shapes`; unknown values are guessed in it."""
    shapes.guesses = True
    try:
        return loss_fn(out, to)
    finally:
        shapes.guesses = False


def _is_square(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    if is_causal is not None or mask is None:
        return bool(is_causal)
    return mask.dim() >= 2 and mask.shape[-1] == mask.shape[-2]
