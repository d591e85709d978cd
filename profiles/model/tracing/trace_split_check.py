"""A split block as its ranks run it, against the whole block: outputs and every gradient.

The ranks are threads of this process, which meet in the collectives of tensor parallelism: the sum
of row-split layers' outputs, and of the gradients of column-split layers' inputs.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from profiles.model.building.tensor_parallel_rules import Rule, UnevenSizeError
from profiles.model.tracing.trace_local_sizes import use_local_sizes
from profiles.model.tracing.trace_split_blocks import FreshBlock, SmallBlock, ThinWeight
from profiles.model.tracing.trace_split_order import share_of
from profiles.model.tracing.trace_split_trial import NotSplit, Roles
from profiles.model.tracing.trace_split_watch import Watch, product, tensors

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
