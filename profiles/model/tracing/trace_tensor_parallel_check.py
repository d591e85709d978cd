"""Verify by running it that a block can be split over tensor-parallel ranks.

`local_sizes` runs the block on one rank's share of its features and compares every call with the
run of the whole block: the results must be equal, or the rank's share along one dimension. If a
call uses sizes of the whole block (`view(batch, length, num_heads, head_dim)`), combinations of
sizes to divide are tried. `check_split` then runs the ranks one after the other, each with the
whole block's values in place of sums over ranks (the outputs of row-split layers, the gradients of
column-split layers' inputs), and compares these sums, outputs and gradients.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from profiles.model.building.tensor_parallel_rules import (
    LocalSizes,
    Rule,
    UnevenSizeError,
    local_sizes_kinds,
)
from profiles.model.tracing.trace_random_block import SmallBlock, Watch, product, tensors
from profiles.model.tracing.trace_tensor_parallel import (
    divided,
    integers,
    share_of,
    use_local_sizes,
)

Roles = Mapping[str, tuple[str, tuple[int, ...]]]
"""Path of a linear layer in the block -> (`column` or `row`, parts side by side in its weight)."""
_MOST_NUMBERS = 8
_TOLERANCE = 1e-5
_SMALL = 1e-2
"""Share of the norm of all gradients: smaller tensors are compared relative to it, since some are
zero except for rounding (the bias of an attention's keys)."""
_PRODUCTS = {"linear", "matmul", "__matmul__", "mm", "bmm", "einsum", "_grouped_mm", "grouped_mm"}
_CHANGING = re.compile(
    r"__(setitem|iadd|isub|imul|itruediv|ifloordiv|imod|ipow|imatmul|iand|ior|ixor)__|.*[^_]_"
)


class NotSplit(Exception):
    """The reason why a split is invalid, and the number of calls that succeeded before."""

    def __init__(self, reason: str, calls: int = 0) -> None:
        super().__init__(reason)
        self.calls = calls


@dataclass(slots=True)
class Event:
    """A call of the whole block; `layer` is the path of a linear layer, otherwise "".

    values    of the tensors that the call creates or changes
    given     a linear layer's input
    inputs, outputs  the tensors, for the data flow
    gradient  the part of the gradient of a linear layer's input that comes from this call
    """

    name: str
    values: list[Tensor]
    inputs: list[Tensor]
    outputs: list[Tensor]
    numbers: list[int] = field(default_factory=list)
    layer: str = ""
    given: Tensor | None = None
    gradient: Tensor | None = None

    @property
    def work_flop(self) -> float:
        """FLOPs of linear layers, matrix products and convolutions; 0 for other calls."""
        if self.layer or self.name in _PRODUCTS:
            return 2.0 * self.values[0].numel() * self.inputs[0].shape[-1]
        if self.name.startswith("conv") and len(self.inputs) > 1:
            weight = self.inputs[1]
            return 2.0 * self.values[0].numel() * weight.numel() / weight.shape[0]
        return 0.0


class Recording(Watch):
    """The run of the whole block: `events` in order, `outputs` and their values."""

    def __init__(self, block: SmallBlock) -> None:
        super().__init__(block)
        self.events: list[Event] = []
        self.calls: dict[str, list[Event]] = defaultdict(list)  # of linear layers
        with torch.enable_grad():
            self.outputs = self.run()
        self.output_values = [x.detach().clone() for x in self.outputs]

    @cached_property
    def gradients(self) -> dict[str, Tensor | None]:
        """The gradients by name; also sets the `gradient` of the events."""
        return self.backward(self.outputs)

    def called(
        self, func: Any, name: str, path: str, number: int, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        out = func(*args, **kwargs)
        made = made_by(name, args, out)
        if made:
            values = [x.detach().clone() for x in made]
            given = tensors((args, kwargs))
            self.events.append(Event(name, values, given, made, integers(args, kwargs)))
        return out

    def layered(self, path: str, layer: Any, x: Tensor) -> Tensor:
        seen = x.view_as(x)
        # Recorded first: a checkpoint ends its second run once the backward's inputs exist.
        event = Event("linear", [], [x], [], layer=path, given=x.detach().clone())
        self.events.append(event)
        self.calls[path].append(event)
        if seen.requires_grad:
            seen.register_hook(lambda g: setattr(event, "gradient", g))
        y = product(seen, layer)
        event.values.append(y.detach().clone())
        event.outputs.append(y)
        return y


def _in_place(name: str) -> bool:
    """Whether a call changes its first argument."""
    return _CHANGING.fullmatch(name) is not None


def made_by(name: str, args: Any, out: Any) -> list[Tensor]:
    """The tensors that a call creates or changes."""
    found = tensors(args[:1]) if _in_place(name) else []
    return [*found, *(x for x in tensors(out) if all(x is not y for y in found))]


# --- the sizes to divide --------------------------------------------------------------------------


def local_sizes(whole: Recording, roles: Roles, tp: int) -> tuple[Rule, ...]:
    """The `local_sizes` rules of the block: sizes of the whole block in its modules' code. Raises
    NotSplit."""
    trial = _Trial(whole, roles, tp)
    place = whole.block.call.path
    try:
        with torch.no_grad():
            found = trial.run()
    except NotSplit as error:
        raise NotSplit(str(error), trial.position) from error
    except Exception as error:  # the model's code does not accept a share
        raise NotSplit(
            f"{place or 'the model'} fails on a share of its features: {first_line(error)}"
        ) from error
    for x, value in zip(found, whole.output_values, strict=True):
        if trial.layer_of(x) or not same(x, value):
            raise NotSplit(f"the output of {place} would be a share")
    return tuple(
        (path, kind) for path, sizes in trial.sizes.items() for kind in local_sizes_kinds(sizes)
    )


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type."""
    return next(iter(str(error).splitlines()), type(error).__name__)


class _Trial(Watch):
    """The run of the last of `tp` ranks; shares of other ranks are from the whole run."""

    def __init__(self, whole: Recording, roles: Roles, tp: int) -> None:
        super().__init__(whole.original)
        self.sizes: dict[str, LocalSizes] = {}
        self.position = 0
        self._events, self._roles, self._tp = whole.events, roles, tp
        self._parts = sorted({(1,), *(parts for _, parts in roles.values())}, key=len)
        self._split: dict[int, tuple[Tensor, str]] = {}

    def layer_of(self, x: Tensor) -> str:
        """The layer from which a share comes; "" for a whole tensor."""
        return self._split.get(id(x), (x, ""))[1]

    def _source(self, given: list[Tensor]) -> str:
        return next((layer for x in given if (layer := self.layer_of(x))), "")

    def _next(self, name: str) -> Event:
        """The whole block's call at this position."""
        here = self.position
        if here == len(self._events) or self._events[here].name != name:
            raise NotSplit(f"on a share of the features, another function is called ({name})")
        self.position += 1
        return self._events[here]

    def given_whole(self, path: str, inputs: list[Tensor]) -> None:
        source = self._source(inputs)
        if source:
            raise NotSplit(f"{path} reads a share of {source}'s features")

    def layered(self, path: str, layer: Any, x: Tensor) -> Tensor:
        event = self._next("linear")
        side, parts = self._roles.get(path, ("", (1,)))
        whole = event.values[0].clone()
        if side == "row":
            assert event.given is not None  # a linear layer's
            if not self.layer_of(x) or not same(x, self._share(event.given, parts, path)):
                raise NotSplit(f"the input of {path} is not its share of the features")
            return whole
        self.given_whole(path, [x])
        if side == "column":
            share = self._share(whole, parts, path)
            self._split[id(share)] = (share, path)
            return share
        return product(x, layer)

    def _share(self, x: Tensor, parts: tuple[int, ...], path: str) -> Tensor:
        try:
            return share_of(x, parts, self._tp, self._tp - 1, -1)
        except UnevenSizeError as error:
            raise NotSplit(f"{path}: {error} features") from error

    def called(
        self, func: Any, name: str, path: str, number: int, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        source = self._source(tensors((args, kwargs)))
        if not source:
            out = func(*args, **kwargs)
            made = made_by(name, args, out)
            if made and [x.shape for x in made] != [x.shape for x in self._next(name).values]:
                raise NotSplit(f"`{name}` of {path} returns another shape when it is split")
            return out
        failure = ""
        here = self.position
        for positions in self._choices(name, args, kwargs):
            own, named = divided(args, kwargs, positions, self._tp)
            try:
                out = func(*own, **named)
            except Exception as error:
                failure = failure or f"fails: {next(iter(str(error).splitlines()), '')}"
                continue
            made = made_by(name, args, out)
            if not made:
                return out
            self.position = here
            event = self._next(name)
            shares = [self._is_share(x, y, name) for x, y in zip(made, event.values, strict=False)]
            if len(made) == len(event.values) and None not in shares:
                for x, is_share in zip(made, shares, strict=True):
                    self._split.pop(id(x), None)
                    if is_share:
                        self._split[id(x)] = (x, source)
                if positions:
                    self.sizes.setdefault(path, {})[name, number] = positions
                return out
            failure = failure or "gives something else than on all of them"
        place = f" of {path}" if path else ""
        raise NotSplit(f"`{name}`{place} on a share of {source}'s features {failure}")

    def _choices(self, name: str, args: Any, kwargs: Any) -> Iterator[tuple[int, ...]]:
        """Which integers of the arguments to divide by tp, fewest first, beginning with none. A
        call that writes in place has no other choice: it cannot be repeated."""
        numbers = [] if _in_place(name) else integers(args, kwargs)
        able = [i for i, n in enumerate(numbers) if n >= self._tp and n % self._tp == 0]
        for count in range(len(able) + 1 if len(able) <= _MOST_NUMBERS else 1):
            yield from combinations(able, count)

    def _is_share(self, x: Tensor, whole: Tensor, name: str) -> bool | None:
        """True for a share of the whole, False for the whole itself, otherwise None."""
        if x.shape == whole.shape:
            return False if same(x, whole) else None
        if x.dim() != whole.dim():
            return None
        dims = [d for d in range(x.dim()) if x.shape[d] != whole.shape[d]]
        if len(dims) != 1 or x.shape[dims[0]] * self._tp != whole.shape[dims[0]]:
            return None
        if "empty" in name:  # its values are undefined
            return True
        for parts in self._parts:
            try:
                share = share_of(whole, parts, self._tp, self._tp - 1, dims[0])
            except UnevenSizeError:
                continue
            if same(x, share):
                return True
        return None


def same(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors agree, except for rounding."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if not x.is_floating_point() and not x.is_complex():
        return bool(torch.equal(x, y))
    return bool(torch.allclose(x, y, rtol=1e-4, atol=1e-5, equal_nan=True))


# --- the check ------------------------------------------------------------------------------------


def check_split(
    whole: Recording, roles: Roles, sizes: tuple[Rule, ...], tp: int
) -> tuple[str, ...]:
    """The parameters whose gradients must be summed over the ranks; raises NotSplit if outputs or
    gradients differ from the whole block's by more than 1e-5.

    sizes  the `local_sizes` rules, with paths relative to the block
    """
    place = whole.block.call.path or "the model"
    wanted = whole.gradients
    ranks = [_Rank(whole, roles, tp, rank) for rank in range(tp)]
    found = []
    for rank in ranks:
        use_local_sizes(rank.module, sizes, tp)
        try:
            with torch.enable_grad():
                outputs = rank.run()
            found.append(rank.backward(outputs))
        except UnevenSizeError as error:
            raise NotSplit(f"{error} in {place}") from error
        except Exception as error:  # the model's code does not accept a share
            raise NotSplit(f"{place} fails when it is split: {first_line(error)}") from error
        if any(
            _error(x.detach(), y) > _TOLERANCE
            for x, y in zip(outputs, whole.output_values, strict=True)
        ):
            raise NotSplit(f"{place} gives another output when it is split")
    norm = sum(float(g.double().norm()) ** 2 for g in wanted.values() if g is not None) ** 0.5
    for event in (event for path in roles for event in whole.calls[path] if event.values):
        side = roles[event.layer][0]
        parts = [rank.shares.get(id(event)) for rank in ranks]
        total, size = event.gradient, norm
        if side == "row":
            added = whole.layers[event.layer].offset
            total = event.values[0] if added is None else event.values[0] - added.detach()
            size = float(total.norm())
        if not _compared(total, parts, _SMALL * size)[1]:
            raise NotSplit(f"{place} gives another output when it is split")
    summed = []
    for name, gradient in wanted.items():
        alike, added = _compared(gradient, [given[name] for given in found], _SMALL * norm)
        path, _, last = name.rpartition(".")
        is_layer = path in whole.layers
        once = name in whole.inputs or (is_layer and path not in roles)
        once = once or (is_layer and last == "offset" and roles[path][0] == "row")
        if not alike and (once or not added):
            raise NotSplit(f"the gradient of {path if is_layer else name} changes when it is split")
        if not alike and not is_layer:
            summed.append(name)
    return tuple(summed)


class _Rank(Watch):
    """The run of one rank.

    shares  call of the whole block -> this rank's term of the sum over ranks: of the output of a
            row-split layer, or of the gradient of a column-split layer's input
    """

    def __init__(self, whole: Recording, roles: Roles, tp: int, rank: int) -> None:
        super().__init__(whole.original)
        self.shares: dict[int, Tensor] = {}
        self._calls = {path: iter(events) for path, events in whole.calls.items()}
        self._roles, self._tp, self._rank = roles, tp, rank

    def layered(self, path: str, layer: Any, x: Tensor) -> Tensor:
        event = next(self._calls[path])
        side, parts = self._roles.get(path, ("", (1,)))
        if side == "row":
            part = x @ self._share(layer.inner, parts, path) @ layer.outer.T
            self.shares[id(event)] = part.detach()
            y: Tensor = event.values[0] + (part - part.detach())
            return y if layer.offset is None else y + (layer.offset - layer.offset.detach())
        if not side:
            return product(x, layer)

        def total(gradient: Tensor) -> Tensor | None:
            self.shares[id(event)] = gradient
            return event.gradient

        seen = x.view_as(x)
        if seen.requires_grad:
            seen.register_hook(total)
        y = seen @ layer.inner @ self._share(layer.outer, parts, path).T
        return y if layer.offset is None else y + self._share(layer.offset, parts, path)

    def _share(self, x: Tensor, parts: tuple[int, ...], path: str) -> Tensor:
        try:
            return share_of(x, parts, self._tp, self._rank, 0)
        except UnevenSizeError as error:
            raise UnevenSizeError(f"{error}, the features of {path},") from error


def _compared(
    whole: Tensor | None, parts: Sequence[Tensor | None], least: float
) -> tuple[bool, bool]:
    """Whether each rank's part equals the whole, and whether their sum does."""
    known = next((x for x in (whole, *parts) if x is not None), None)
    if known is None:
        return True, True
    target, *given = (torch.zeros_like(known) if x is None else x for x in (whole, *parts))
    size = max(float(target.double().norm()), least)
    alike = all(_error(x, target, size) <= _TOLERANCE for x in given)
    return alike, _error(torch.stack(given).sum(0), target, size) <= _TOLERANCE


def _error(x: Tensor, y: Tensor, size: float = 0.0) -> float:
    """Difference relative to `size`, or to the norm of y; infinite for NaN and different shapes."""
    if x.shape != y.shape:
        return float("inf")
    size = max(size or float(y.double().norm()), 1e-30)
    found = float((x.double() - y.double()).norm()) / size
    return found if found == found else float("inf")
