"""Whether a block can be split over tensor-parallel ranks, found by running it.

`local_sizes` runs the block on one rank's share of its features and compares every call with the
run of the whole block: its result must be the whole's, or the rank's share of it along one
dimension. Where a call names sizes of the whole (`view(batch, length, num_heads, head_dim)`), the
sizes to divide are found by trying. `check_split` then runs all ranks as threads of this process,
which meet in the collectives of tensor parallelism (the sum of row-split layers' outputs, and of
the gradients of column-split layers' inputs), and compares outputs and every gradient.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from profiles.model.building.tensor_parallel_rules import LocalSizes, Rule, UnevenSizeError
from profiles.model.tracing.trace_small_block import (
    Event,
    FreshBlock,
    SmallBlock,
    ThinWeight,
    Watch,
    in_place,
    made_by,
    product,
    tensors,
)
from profiles.model.tracing.trace_tensor_parallel import (
    divided,
    integers,
    share_of,
    use_local_sizes,
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


TOLERANCE = 1e-5
_SMALL_GRADIENT = 1e-2
"""Of the whole gradient's norm: what is below is compared with this, since one that is zero but for
rounding (the bias of an attention's keys) has no size of its own."""
_LONGEST_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Ran:
    """Outputs and gradients by name of one run."""

    outputs: list[Tensor]
    gradients: dict[str, Tensor | None]


def check_split(
    block: SmallBlock, roles: Roles, sizes: tuple[Rule, ...], tp: int
) -> frozenset[str]:
    """The parameters whose gradients the ranks must sum; raises NotSplit where outputs or gradients
    are not the whole block's within 1e-5.

    sizes  the `local_sizes` rules, paths in the block
    """
    whole = _run(block.fresh(), None, (), 0)
    ranks = _together(block, roles, sizes, tp)
    for ran in ranks:
        for x, y in zip(ran.outputs, whole.outputs, strict=True):
            if _error(x, y) > TOLERANCE:
                raise NotSplit(f"{block.call.path} gives another output when it is split", "")
    norm = sum(float(g.double().norm()) ** 2 for g in whole.gradients.values() if g is not None)
    summed = set()
    for name, wanted in whole.gradients.items():
        found = [ran.gradients[name] for ran in ranks]
        if wanted is None and all(g is None for g in found):
            continue
        like = wanted if wanted is not None else next(g for g in found if g is not None)
        least = _SMALL_GRADIENT * norm**0.5
        wanted = torch.zeros_like(like) if wanted is None else wanted
        given = [torch.zeros_like(like) if g is None else g for g in found]
        alike = all(_error(g, wanted, least) <= TOLERANCE for g in given)
        added = _error(torch.stack(given).sum(0), wanted, least) <= TOLERANCE
        kind, _, own = name.partition(":")
        if kind == "parameter" and not alike and added:
            summed.add(own)
        elif not (alike or (added and _is_summed(kind, own, roles))):
            raise NotSplit(f"the gradient of {own or 'an input'} is another when it is split", "")
    return frozenset(summed)


def _is_summed(kind: str, path: str, roles: Roles) -> bool:
    """Whether the ranks' gradients of a thin weight are parts of a sum: all of a split layer's but
    a row-split one's bias, which is added once."""
    return kind in ("outer", "inner", "bias") and (
        path in roles and (kind != "bias" or roles[path][0] == "column")
    )


def _error(x: Tensor, y: Tensor, least: float = 0.0) -> float:
    """Relative to the norm of y; infinite for NaN and other shapes."""
    if x.shape != y.shape:
        return float("inf")
    size = max(float(y.double().norm()), least, 1e-30)
    found = float((x.double() - y.double()).norm()) / size
    return found if found == found else float("inf")


def _together(block: SmallBlock, roles: Roles, sizes: tuple[Rule, ...], tp: int) -> list[Ran]:
    meeting = _Meeting(roles, tp)
    made: dict[int, Ran] = {}
    failed: dict[int, Exception] = {}

    def run(rank: int) -> None:
        try:
            made[rank] = _run(block.fresh(), meeting, sizes, rank)
        except Exception as error:
            failed[rank] = error
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(tp)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = {r: e for r, e in failed.items() if not isinstance(e, threading.BrokenBarrierError)}
    if failed or len(made) < tp:
        error = failed[min(failed)] if failed else RuntimeError("its ranks do not meet")
        line = next(iter(str(error).splitlines()), type(error).__name__)
        if isinstance(error, UnevenSizeError):
            raise NotSplit(f"{line} in {block.call.path}", "")
        raise NotSplit(f"{block.call.path} fails when it is split: {line}", "")
    return [made[rank] for rank in range(tp)]


class _Meeting:
    """Where the ranks' threads exchange tensors."""

    def __init__(self, roles: Roles, tp: int) -> None:
        self.roles, self.tp = roles, tp
        self.barrier = threading.Barrier(tp, timeout=_LONGEST_WAIT_S)
        self._given: dict[int, Tensor] = {}

    def total(self, x: Tensor, rank: int) -> Tensor:
        """The sum over all ranks."""
        self._given[rank] = x.detach()
        self.barrier.wait()
        made = torch.stack([self._given[r] for r in range(self.tp)]).sum(0)
        self.barrier.wait()
        return made


class _SumGradient(torch.autograd.Function):
    """Before column-split layers: nothing forward, the sum over ranks backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, meeting: _Meeting, rank: int) -> Tensor:
        ctx.meeting, ctx.rank = meeting, rank
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.meeting.total(gradients[0], ctx.rank), None, None


class _SumOutput(torch.autograd.Function):
    """Behind row-split layers: the sum over ranks forward, nothing backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, meeting: _Meeting, rank: int) -> Tensor:
        return meeting.total(x, rank)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None, None


class _Ranked(Watch):
    """Runs a rank's linear layers; without a meeting the whole block's."""

    def __init__(self, block: FreshBlock, meeting: _Meeting | None, rank: int) -> None:
        super().__init__(block)
        self._meeting, self._rank = meeting, rank

    def layered(self, path: str, weight: ThinWeight, x: Tensor) -> Tensor:
        meeting, rank = self._meeting, self._rank
        side, parts = meeting.roles.get(path, ("", (1,))) if meeting else ("", (1,))
        if meeting is None or not side:
            return product(x, weight)
        outer, inner, bias = weight.outer, weight.inner, weight.bias
        if side == "row":
            held = share_of(inner, parts, meeting.tp, rank, 0)
            y: Tensor = _SumOutput.apply(x @ held @ outer.T, meeting, rank)  # type: ignore[no-untyped-call] # torch's
            return y if bias is None else y + bias
        given: Tensor = _SumGradient.apply(x, meeting, rank)  # type: ignore[no-untyped-call] # torch's
        held = share_of(outer, parts, meeting.tp, rank, 0)
        part = None if bias is None else share_of(bias, parts, meeting.tp, rank, 0)
        return product(given, ThinWeight(held, inner, part))


def _run(block: FreshBlock, meeting: _Meeting | None, sizes: tuple[Rule, ...], rank: int) -> Ran:
    watch = _Ranked(block, meeting, rank)
    use_local_sizes(block.module, sizes, meeting.tp if meeting else 1)
    with torch.enable_grad(), watch:
        outputs = block.run()
        with watch.paused():
            generator = torch.Generator().manual_seed(1)
            roots = [x for x in outputs if x.requires_grad]
            seeds = [torch.randn(x.shape, generator=generator).to(x.dtype) for x in roots]
            if roots:
                torch.autograd.backward(roots, seeds)
    gradients: dict[str, Tensor | None] = {f"input:{i}": x.grad for i, x in enumerate(block.inputs)}
    gradients |= {f"parameter:{name}": p.grad for name, p in block.parameters.items()}
    for path, weight in block.thin.items():
        for kind in ("outer", "inner", "bias"):
            leaf = getattr(weight, kind)
            if leaf is not None:
                gradients[f"{kind}:{path}"] = leaf.grad
    return Ran([x.detach() for x in tensors(outputs)], gradients)
