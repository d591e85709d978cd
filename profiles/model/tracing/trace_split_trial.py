"""A block on one rank's share of its features: whether the model's own code runs on it.

The rank's run is held against the run of the whole block call by call. What a call makes must be
the whole's, or the rank's share of it along one dimension. Where a call names sizes of the whole
(`view(batch, length, num_heads, head_dim)`), the sizes to be divided are found by trying them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from profiles.model.building.tensor_parallel_rules import LocalSizes, UnevenSizeError
from profiles.model.tracing.trace_local_sizes import divided, integers
from profiles.model.tracing.trace_split_blocks import SmallBlock, ThinWeight
from profiles.model.tracing.trace_split_order import share_of
from profiles.model.tracing.trace_split_watch import (
    Event,
    Watch,
    in_place,
    made_by,
    product,
    tensors,
)

Roles = Mapping[str, tuple[str, tuple[int, ...]]]
"""Path of a linear layer in the block -> (`column` or `row`, parts side by side in its weight)."""
_MOST_NUMBERS = 8


class NotSplit(Exception):
    """Why a split does not work, a layer of the group of layers that it is about ("" where that is
    not known), and how many calls worked."""

    def __init__(self, reason: str, layer: str) -> None:
        super().__init__(reason)
        self.layer = layer
        self.calls = 0


def local_sizes(
    block: SmallBlock, events: list[Event], outputs: list[Tensor], roles: Roles, tp: int
) -> dict[str, LocalSizes]:
    """The sizes that the block's modules name of the whole, by module; raises NotSplit."""
    fresh = block.fresh()
    trial = _Trial(fresh, events, roles, tp)
    try:
        with torch.no_grad(), trial:
            found = fresh.run()
    except NotSplit as error:
        error.calls = trial.position
        raise
    except Exception as error:  # the model's own code refuses a share
        line = next(iter(str(error).splitlines()), type(error).__name__)
        layer = trial.latest or next(iter(roles))
        raise NotSplit(
            f"{block.call.path or 'the model'} fails on a share of its features: {line}", layer
        ) from error
    for x, whole in zip(found, outputs, strict=True):
        if trial.layer_of(x) or not _same(x, whole):
            layer = trial.layer_of(x) or next(iter(roles))
            raise NotSplit(f"the output of {block.call.path} would be a share", layer)
    return trial.sizes


class _Trial(Watch):
    """The run of the last of `tp` ranks; the others' shares are taken from the whole run."""

    def __init__(self, block: Any, events: list[Event], roles: Roles, tp: int) -> None:
        super().__init__(block)
        self.sizes: dict[str, LocalSizes] = {}
        self._events, self._roles, self._tp, self._rank = events, roles, tp, tp - 1
        self.position = 0
        self._parts = sorted({parts for _, parts in roles.values()}, key=len)
        self._split: dict[int, tuple[Tensor, str]] = {}
        self.latest = ""

    def layer_of(self, x: Tensor) -> str:
        """Of a share: a layer of the group that made it; else ""."""
        return self._split.get(id(x), (x, ""))[1]

    def _next(self, name: str) -> Event:
        """What the whole block calls here."""
        here = self.position
        if here == len(self._events) or self._events[here].name != name:
            raise NotSplit(f"other functions run on a share ({name})", next(iter(self._roles)))
        self.position += 1
        return self._events[here]

    def given_whole(self, path: str, inputs: list[Tensor]) -> None:
        source = next((layer for x in inputs if (layer := self.layer_of(x))), "")
        if source:
            raise NotSplit(f"{path} reads a share of {source}'s features", source)

    def layered(self, path: str, weight: ThinWeight, x: Tensor) -> Tensor:
        event = self._next("linear")
        side, parts = self._roles.get(path, ("", (1,)))
        source = self.layer_of(x)
        whole = event.values[0].clone()
        if side == "row":
            assert event.given is not None  # a linear layer's
            share = self._share(event.given, parts, path)
            if not source or not _same(x, share):
                raise NotSplit(f"the input of {path} is not its share of the features", path)
            return whole
        if source:
            raise NotSplit(f"{path} reads a share of {source}'s features", source)
        if side == "column":
            share = self._share(whole, parts, path)
            self._split[id(share)] = (share, path)
            self.latest = path
            return share
        return product(x, weight)

    def _share(self, x: Tensor, parts: tuple[int, ...], path: str) -> Tensor:
        try:
            return share_of(x, parts, self._tp, self._rank, -1)
        except UnevenSizeError as error:
            raise NotSplit(f"{path}: {error} features", path) from error

    def called(
        self, func: Any, name: str, path: str, number: int, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        given = tensors((args, kwargs))
        source = next((layer for x in given if (layer := self.layer_of(x))), "")
        if not source:
            out = func(*args, **kwargs)
            made = made_by(name, args, out)
            if made:
                event = self._next(name)
                if [x.shape for x in made] != [x.shape for x in event.values]:
                    raise NotSplit(
                        f"`{name}` of {path} makes another shape", next(iter(self._roles))
                    )
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
            shares = [self._kept(x, y, name) for x, y in zip(made, event.values, strict=False)]
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
        raise NotSplit(f"`{name}`{place} on a share of {source}'s features {failure}", source)

    def _choices(self, name: str, args: Any, kwargs: Any) -> Iterator[tuple[int, ...]]:
        """Sizes to divide, none first; calls that change a tensor are made once."""
        yield ()
        if in_place(name):
            return
        numbers = integers(args, kwargs)
        able = [i for i, n in enumerate(numbers) if n >= self._tp and n % self._tp == 0]
        if len(able) > _MOST_NUMBERS:
            return
        for count in range(1, len(able) + 1):
            yield from combinations(able, count)

    def _kept(self, x: Tensor, whole: Tensor, name: str) -> bool | None:
        """True for a share of the whole, False for the whole itself, None for anything else."""
        if x.shape == whole.shape:
            return False if _same(x, whole) else None
        if x.dim() != whole.dim():
            return None
        dims = [d for d in range(x.dim()) if x.shape[d] != whole.shape[d]]
        if len(dims) != 1 or x.shape[dims[0]] * self._tp != whole.shape[dims[0]]:
            return None
        if "empty" in name:  # its values are whatever was there
            return True
        for parts in self._parts or [(1,)]:
            try:
                share = share_of(whole, parts, self._tp, self._rank, dims[0])
            except UnevenSizeError:
                continue
            if _same(x, share):
                return True
        plain = share_of(whole, (1,), self._tp, self._rank, dims[0])
        return True if _same(x, plain) else None


def _same(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if not x.is_floating_point() and not x.is_complex():
        return bool(torch.equal(x, y))
    return bool(torch.allclose(x, y, rtol=1e-4, atol=1e-5, equal_nan=True))
