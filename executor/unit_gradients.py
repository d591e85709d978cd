"""Gradients of FSDP2 units in a pipeline: sums over micro-batches and over replicas.

Torch's runtime sums gradients over replicas after a stage's last backward
(`PipelineStage.perform_reduce_grad`). Here each unit's gradients are sent as soon as that backward
has computed them, as without a pipeline. A last B is an ordinary last backward of FSDP2; in a last
W, a unit's gradients are sent after the last product with one of its weights. Only this file and
torch_pipeline.py use private attributes of FSDP2 (torch 2.11 to 2.13).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from executor.split_backward import Pending, Watch
from executor.stages import StageModule


def has_sent_all(stage: Any) -> bool:
    """Whether a stage under FSDP2 has sent the gradients of its last backward: then FSDP2 has no
    record of the stage's forwards any more."""
    return not stage._get_fsdp_state()._comm_ctx.post_forward_order


@contextmanager
def sent_in_weight_half(stage: StageModule) -> Iterator[None]:
    """Context around the last W of a stage under FSDP2."""
    assert stage.split is not None
    send_in_next_backward(stage, last=True)
    stage.split.watch = _sent_by_product(stage)
    try:
        yield
    finally:
        stage.split.watch = None
    stage._get_fsdp_state()._root_post_backward_final_callback()  # type: ignore[operator] # FSDP2's


def send_in_next_backward(module: Any, *, last: bool) -> None:
    """Set whether the next backward of a stage under FSDP2 is the last of the step. The last
    reduces gradients over replicas and frees all weights; others free as much as forwards (ZeRO
    3)."""
    order = module._get_fsdp_state()._comm_ctx.post_forward_order
    for group in groups_of(module):
        # Weights to prefetch are those of the previous unit in a forward, not those of an earlier
        # forward's end.
        group._post_forward_indices[:] = [order.index(group)] if group in order else []
        group.reshard_after_backward = last or group._reshard_after_forward
        if last:
            _give_sums_one_type(group)
    module.set_is_last_backward(last)
    module.set_requires_gradient_sync(last)


def _give_sums_one_type(group: Any) -> None:
    """Use zeros as the gradient sum of a weight without gradients (an expert without rows) if other
    weights have sums: FSDP2 sends the gradients of a unit in one type."""
    weights = [held for held in group.fsdp_params if held.sharded_param.requires_grad]
    if any(held.unsharded_accumulated_grad is not None for held in weights):
        for held in weights:
            if held.unsharded_accumulated_grad is None and hasattr(held, "_unsharded_param"):
                held.unsharded_accumulated_grad = torch.zeros_like(
                    held._unsharded_param, dtype=held.reduce_dtype, requires_grad=False
                )


def _sent_by_product(stage: StageModule) -> Watch:
    """Send each unit's gradients when the products of a W have completed them."""
    groups = list(groups_of(stage))
    number_of = {
        id(held._unsharded_param): number
        for number, group in enumerate(groups)
        for held in group.fsdp_params
        if hasattr(held, "_unsharded_param")
    }

    def watch(pending: Sequence[Pending]) -> Callable[[Pending], None]:
        waiting = Counter(number for product in pending for number in product.numbers(number_of))
        for number, group in enumerate(groups):
            if not waiting[number]:
                group.post_backward()

        def done(product: Pending) -> None:
            for number in product.numbers(number_of):
                waiting[number] -= 1
                if not waiting[number]:
                    groups[number].post_backward()

        return done

    return watch


def keep_gradient_sums(stage: StageModule) -> None:
    """Under mixed precision, add gradients to their sums in fp32. FSDP2 does this after its own
    backwards, but not after a W: consecutive ones must not add up in bf16.

    FSDP2's method for this refuses currently sharded weights (ZeRO 3).
    """
    if stage.copies is not None:
        stage.copies.keep_gradients()
    for held in chain.from_iterable(group.fsdp_params for group in groups_of(stage)):
        weight = getattr(held, "_unsharded_param", None)
        if weight is None or weight.grad is None:
            continue
        if held.unsharded_accumulated_grad is not None:
            held.unsharded_accumulated_grad += weight.grad
            weight.grad = None
        elif held.reduce_dtype is not None and weight.grad.dtype != held.reduce_dtype:
            held.unsharded_accumulated_grad = weight.grad.to(held.reduce_dtype)
            weight.grad = None


def groups_of(stage: nn.Module) -> Iterator[Any]:
    """FSDP2's parameter group of each unit."""
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None)
            yield from groups if groups is not None else filter(None, [state._fsdp_param_group])
