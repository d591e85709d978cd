"""Mean gradients over replicas with whole weights (ZeRO 0), sent during the last backward.

As in DDP, gradients are sent in buckets, from the end of the model to its beginning: a bucket is
sent as soon as the last backward of the step has made its gradients, and received when the next one
is sent, so that one bucket is in memory at a time. All ranks send the buckets in the same order,
whatever the order of their gradients.

Torch has two alternatives, and neither works here: with schedules that split the backward, the
gradients of DDP are silently wrong (pytorch issue 144530), and `replicate` on FSDP2 holds the
weights twice (`FSDPParamGroup.wait_for_unshard` copies them, in fp32 too).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from executor.mesh import local
from executor.split_backward import Pending, SplitBackward
from executor.working_copies import WorkingCopies
from simulator.memory.held import GRADIENT_BUCKET_BYTES


class ReplicaGradients:
    """The gradients of one stage's weights over the `size` replicas of a group.

    If a weight has a gradient on some ranks only (an expert without rows), it counts as zero on the
    others. If no rank has one, it stays without. Flags for this are sent in the last bucket, after
    the backward.

    copies  working copies of the stage, if any
    """

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        group: Any,
        size: int,
        copies: WorkingCopies | None = None,
    ) -> None:
        self._group, self._size, self._copies = group, size, copies
        self._weights = list(reversed(weights)) if size > 1 else []
        copy_of = {weight: copy for copy, weight in copies.weight_of.items()} if copies else {}
        self._leaves: list[Tensor] = [copy_of.get(p, p) for p in self._weights]
        self._buckets = _buckets(self._weights)
        self._bucket_of = {
            id(self._leaves[i]): number
            for number, bucket in enumerate(self._buckets)
            for i in bucket
        }
        self._restart()

    def _restart(self) -> None:
        self._sent = 0
        self._waiting: Counter[int] = Counter()
        self._under_way: tuple[Any, Tensor, list[Tensor]] | None = None
        self._held = [True] * len(self._weights)
        self._shares_held = torch.empty(0)

    @contextmanager
    def sent_as_made(self, split: SplitBackward | None = None) -> Iterator[None]:
        """Context in which each gradient is sent as soon as it is complete: around the last
        backward of a step, or around the last W of `split`."""
        hooks: list[Any] = []
        if split is not None:
            split.watch = self._watch
        else:
            self._wait_for(self._bucket_of.values())
            hooks = [
                leaf.register_post_accumulate_grad_hook(
                    lambda made: self._count([self._bucket_of[id(made)]])
                )
                for leaf in self._leaves
            ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            if split is not None:
                split.watch = None
        self._send_rest()

    @torch.no_grad()
    def finish(self) -> None:
        """Wait until every gradient is the mean over the replicas."""
        self._send_rest()
        self._receive()
        if not all(self._held):
            for p, share in zip(self._weights, self._shares_held.tolist(), strict=True):
                if not share:
                    p.grad = None
        self._restart()

    def _watch(self, pending: Sequence[Pending]) -> Callable[[Pending], None]:
        self._wait_for(number for each in pending for number in each.numbers(self._bucket_of))
        return lambda product: self._count(product.numbers(self._bucket_of))

    def _wait_for(self, buckets: Iterable[int]) -> None:
        """Expect gradients of these buckets, and the end of the backward for the last bucket."""
        self._waiting = Counter([*buckets, len(self._buckets) - 1])

    def _count(self, buckets: list[int]) -> None:
        self._waiting.subtract(buckets)
        while self._sent < len(self._buckets) and not self._waiting[self._sent]:
            self._send()

    def _send_rest(self) -> None:
        while self._sent < len(self._buckets):
            self._send()

    @torch.no_grad()
    def _send(self) -> None:
        self._receive()
        if self._copies is not None:
            self._copies.keep_gradients()
        bucket = []
        for number in self._buckets[self._sent]:
            p = self._weights[number]
            self._held[number] = p.grad is not None
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            bucket.append(local(p.grad))
        self._sent += 1
        if self._sent == len(self._buckets):
            flags = _as_tensor(tuple(self._held), self._weights[0].device)
            self._shares_held = flags.to(bucket[0].dtype if bucket else flags.dtype, copy=True)
            bucket.append(self._shares_held)
        alone = len(bucket) == 1 and bucket[0].is_contiguous()
        flat = bucket[0] if alone else torch.cat([x.reshape(-1) for x in bucket])
        work = dist.all_reduce(flat, group=self._group, async_op=True)
        self._under_way = (work, flat, [] if alone else bucket)

    def _receive(self) -> None:
        if self._under_way is None:
            return
        work, flat, bucket = self._under_way
        self._under_way = None
        work.wait()
        flat /= self._size
        if bucket:
            for x, part in zip(bucket, flat.split([x.numel() for x in bucket]), strict=True):
                x.copy_(part.view_as(x))


@lru_cache(maxsize=16)
def _as_tensor(held: tuple[bool, ...], device: torch.device) -> Tensor:
    """Flags as a tensor; cached, since the host would wait for the device in every step."""
    return torch.tensor(held, dtype=torch.float32, device=device)


def _buckets(weights: Sequence[nn.Parameter]) -> list[list[int]]:
    """Numbers of the weights of each bucket: one type, and little more than the bucket size; larger
    weights have a bucket each. The last bucket is smaller, or empty. Equal on every rank."""
    found: list[list[int]] = []
    filling: dict[torch.dtype, list[int]] = {}
    held: Counter[torch.dtype] = Counter()
    for number, p in enumerate(weights):
        size = local(p.detach()).nbytes
        if size >= GRADIENT_BUCKET_BYTES:
            found.append([number])
            continue
        filling.setdefault(p.dtype, []).append(number)
        held[p.dtype] += size
        if held[p.dtype] >= GRADIENT_BUCKET_BYTES:
            found.append(filling.pop(p.dtype))
            del held[p.dtype]
    rest = list(filling.values()) or [[]]
    return [*found, *rest] if weights else []
