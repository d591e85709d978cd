"""Run a schedule on torch's pipeline runtime: the only file that uses its private API.

Private names used (torch 2.11 to 2.13): `_PipelineScheduleRuntime` with its
`_prepare_schedule_with_comms`, `_Action` to parse our actions, `stage_backward`, `_batch_p2p` and
the receive buffers and methods of `PipelineStage` that `_Stage` overrides.

For schedules with I and W, an I is torch's whole backward of a stage in which our `SplitBackward`
defers weight gradients, and a W computes them; torch calls it as the `dw_builder` of PipelineStage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._backward import stage_backward

from executor.replay.data_flow import Shapes
from executor.stages import StageModule
from executor.unit_gradients import (
    groups_of,
    has_sent_all,
    keep_gradient_sums,
    send_in_next_backward,
    sent_in_weight_half,
)
from profiles.errors import RunError
from simulator.schedules.schedule import Schedule

ActionTimer = Callable[[str], Any]


class Pipeline:
    """One rank's stages under a schedule; `step` runs all micro-batches forward and backward.
    Gradients end up as the mean over micro-batches.

    crossing  per stage: shapes and types of the tensors that it receives
    """

    def __init__(
        self,
        stages: dict[int, StageModule],
        crossing: Sequence[Shapes],
        schedule: Schedule,
        *,
        device: torch.device,
        group: Any,
        timer: ActionTimer,
    ) -> None:
        self._first, self._last = 0 in stages, len(schedule.stage_to_rank) - 1 in stages
        self._messages = Messages(device)
        self._stages = [
            _Stage(stages[i], i, crossing, self._messages, group=group, timer=timer)
            for i in sorted(stages)
        ]
        self._losses: list[Tensor] = []  # of the micro-batches of the current step
        self._runtime = _runtime(self._stages, schedule, device, self._losses)

    def step(self, given: Mapping[str, Any]) -> Tensor | None:
        """One forward and backward over the local batch; the mean loss on the last stage's rank.

        given  the batch (stage_inputs.model_arguments)
        """
        self._losses.clear()
        positional = (given["arg0"],) if self._first else ()
        target = given["arg0"] if self._last else None
        with self._messages.freed_early():
            self._runtime.step(*positional, target=target, **given)
        for stage in self._stages:
            if stage.dw_runner or (stage.submod.split and stage.submod.split.waits):
                raise RunError(
                    f"stage {stage.stage_index}: weight gradients are incomplete, because the "
                    "schedule has too few W actions"
                )
        return torch.stack(self._losses).mean() if self._last else None


class Messages:
    """Tensors sent between stages, freed as early as possible.

    The runtime keeps a receive buffer per micro-batch for the whole step, and every pending send
    with its tensor to the end of the step: at 64 micro-batches more than the activations in flight.
    Here a buffer exists from its receive to the end of the backward that uses it. The send of an
    activation is finished when its gradient arrives; the send of a gradient is waited for when the
    stage sends the next one (the peer posts receives in the order of the sends and never waits for
    a later one first, so this cannot hang).
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sending: tuple[str, int, int] | None = None
        self._sent: dict[tuple[str, int, int], list[Any]] = {}

    @contextmanager
    def freed_early(self) -> Iterator[None]:
        """Context around one step of the runtime."""
        from torch.distributed.pipelining import schedules

        original = schedules._batch_p2p

        def noted(*args: Any, **kwargs: Any) -> Any:
            works = original(*args, **kwargs)
            if self._sending is not None:
                self._sent[self._sending] = works
            self._sending = None
            return works

        schedules._batch_p2p = noted
        try:
            yield
        finally:
            schedules._batch_p2p = original
            self._sent.clear()

    def sends(self, kind: str, stage: int, chunk: int, operations: list[Any]) -> list[Any]:
        """The next sends, with contiguous tensors, since no transport makes them contiguous."""
        self._sending = (kind, stage, chunk)
        for operation in operations:
            operation.tensor = operation.tensor.contiguous()
        return operations

    def finish(self, kind: str, stage: int, chunk: int | None = None) -> None:
        """Wait for the sends of a kind and stage, of one chunk or all, and free them."""
        for key in [k for k in self._sent if k[:2] == (kind, stage) and chunk in (None, k[2])]:
            works = self._sent.pop(key)
            for work in works:
                work.wait()
            works.clear()

    def strip(self, table: dict[int, Any]) -> None:
        """Remove the receive buffers that the runtime created for every micro-batch."""
        for infos in table.values():
            for info in infos:
                buffer = getattr(info, "buffer", None)
                if isinstance(buffer, Tensor):
                    info.shardwright_like = (buffer.shape, buffer.dtype, buffer.requires_grad)
                    info.buffer = None

    def take(self, infos: Any) -> None:
        """Allocate a buffer for each message before its receive is posted."""
        self._sending = None
        for info in infos:
            if like := getattr(info, "shardwright_like", None):
                shape, dtype, requires_grad = like
                info.buffer = torch.empty(
                    shape, dtype=dtype, device=self.device, requires_grad=requires_grad
                )

    def zeros(self, info: Any) -> Tensor:
        """Zeros for a message that is not sent."""
        shape, dtype, _ = info.shardwright_like
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def release(self, infos: Any) -> None:
        """Drop the references to the buffers; a product that waits for its W keeps its own."""
        for info in infos:
            if hasattr(info, "shardwright_like"):
                info.buffer = None


class _Stage(PipelineStage):
    """A pipeline stage with timed computation and early freed messages, which sends gradients to
    the other replicas while its last backward runs."""

    submod: StageModule

    def __init__(
        self,
        module: StageModule,
        index: int,
        crossing: Sequence[Shapes],
        messages: Messages,
        *,
        group: Any,
        timer: ActionTimer,
    ) -> None:
        first = module._built.args[0]
        given: Shapes = ((tuple(first.shape), first.dtype),)
        shapes = (given, *crossing[1:], (((1,), torch.float32),))
        received, sent = (
            tuple(
                torch.empty(shape, dtype=dtype, device="meta", requires_grad=at > 0)
                for shape, dtype in shapes[at]
            )
            for at in (index, index + 1)
        )
        super().__init__(
            module,
            index,
            len(crossing),
            messages.device,
            input_args=received,
            output_args=sent,
            group=group,
            dw_builder=module.split.take if module.split else None,
        )
        self._messages, self._timer = messages, timer
        self._earlier = module.micro_batch  # micro-batches of the replicas before this one
        self._sharded = isinstance(module, FSDPModule)

    def forward_one_chunk(self, chunk: int, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override] # torch 2.11 takes others
        self.submod.micro_batch = self._earlier + chunk
        with self._timer(f"{self.stage_index}F{chunk}"):
            output = super().forward_one_chunk(chunk, *args, **kwargs)
        # The runtime keeps the outputs and losses of the last stage to the end of the step, and
        # their graphs would keep received tensors and their gradients.
        self.output_chunks[-1:] = [x.detach() for x in self.output_chunks[-1:]]
        return output

    def backward_one_chunk(
        self, chunk: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        self._messages.finish("F", self.stage_index, chunk)
        module, split = self.submod, self.submod.split
        letter = "B" if full_backward or split is None else "I"
        half = split.input_half() if split is not None and letter == "I" else nullcontext()
        ends = last_backward and not self._sharded
        sent = module.replicas.sent_as_made() if ends else nullcontext()
        with self._timer(f"{self.stage_index}{letter}{chunk}"), half, sent:
            super().backward_one_chunk(chunk, loss, full_backward, last_backward)
            if module.copies is not None:
                module.copies.keep_gradients()
        if loss is not None:
            loss.detach_()
        for infos in (self.args_recv_info, self.grad_recv_info):
            self._messages.release(infos.get(chunk, ()))

    def backward_maybe_with_nosync(self, kind: Any, given: Any, last_backward: bool = False) -> Any:
        if not self._sharded:
            return super().backward_maybe_with_nosync(kind, given)
        send_in_next_backward(self.submod, last=last_backward)
        outputs, gradients = given["stage_output"], given["output_grads"]
        return stage_backward(outputs, gradients, given["input_values"]), None

    def backward_weight_one_chunk(self, chunk: int, last_backward: bool = False) -> None:
        module = self.submod
        sent: AbstractContextManager[None] = module.replicas.sent_as_made(module.split)
        if self._sharded:
            sent = sent_in_weight_half(module)
        with self._timer(f"{self.stage_index}W{chunk}"), sent if last_backward else nullcontext():
            super().backward_weight_one_chunk(chunk, last_backward=last_backward)
            if not (last_backward and self._sharded):
                keep_gradient_sums(module)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        # A second sum would send zeros.
        if not (self._sharded and has_sent_all(self.submod)):
            super().perform_reduce_grad(grad_scale_factor)

    def get_fwd_send_ops(self, chunk: int) -> list[Any]:
        return self._messages.sends("F", self.stage_index, chunk, super().get_fwd_send_ops(chunk))

    def get_bwd_send_ops(self, chunk: int) -> list[Any]:
        self._messages.finish("B", self.stage_index)
        return self._messages.sends("B", self.stage_index, chunk, super().get_bwd_send_ops(chunk))

    def get_fwd_recv_ops(self, chunk: int) -> list[Any]:
        self._messages.take(self.args_recv_info[chunk])
        return super().get_fwd_recv_ops(chunk)

    def get_bwd_recv_ops(self, chunk: int) -> list[Any]:
        self._messages.take(self.grad_recv_info[chunk])
        return super().get_bwd_recv_ops(chunk)

    def set_local_bwd_input(self, gradients: tuple[Tensor | None, ...], chunk: int) -> None:
        # From the next stage on the same rank. An output that it did not use has no gradient, and
        # there is no buffer that torch could fill with zeros. Torch 2.11 also passes gradients of
        # the arguments of every stage.
        infos = self.grad_recv_info[chunk]
        given = zip(gradients[: len(infos)], infos, strict=True)
        super().set_local_bwd_input(
            tuple(self._messages.zeros(info) if g is None else g for g, info in given), chunk
        )

    def clear_runtime_states(self) -> None:
        # Torch's own method would read each buffer's gradient, but the buffers are freed.
        self.fwd_cache.clear()
        self.output_chunks.clear()

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._prepare_forward_infra(*args, **kwargs)
        self._messages.strip(self.args_recv_info)
        return found

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._prepare_backward_infra(*args, **kwargs)
        self._messages.strip(self.grad_recv_info)
        return found

    def _get_init_p2p_neighbors_ops(self) -> list[Any]:
        # In a V schedule, a stage may pass tensors to a stage of its own rank. Torch 2.11 connects
        # all consecutive stages, and gloo cannot connect a rank to itself.
        found = super()._get_init_p2p_neighbors_ops()
        return [op for op in found if op.group_peer != self.group_rank]

    def _validate_fwd_input(self, *_: Any) -> None:
        """No check: torch 2.11 refuses tensors with unexpected strides; `Messages.sends` handles
        them."""

    _validate_fwd_outputs = _validate_fwd_input


def _runtime(
    stages: list[Any], schedule: Schedule, device: torch.device, losses: list[Tensor]
) -> Any:
    """The runtime; on the last stage's rank, each micro-batch's loss is appended to `losses`."""
    try:
        from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime
    except ImportError as error:
        raise RunError(
            f"torch {torch.__version__} has no pipeline runtime that Shardwright knows; tested are "
            "2.11 to 2.13"
        ) from error
    runtime = _PipelineScheduleRuntime(
        stages,
        schedule.num_microbatches,
        loss_fn=partial(_share_of_loss, count=schedule.num_microbatches, losses=losses),
        scale_grads=False,
    )
    actions = {
        rank: [_Action.from_str(str(action)) for action in row]
        for rank, row in enumerate(schedule.ranks)
    }
    runtime._prepare_schedule_with_comms(actions, format="compute_only")
    ordered = runtime.pipeline_order_with_comms
    if any(group._reshard_after_forward for stage in stages for group in groups_of(stage.submod)):
        # Each pass gathers block by block; the runtime would gather all blocks before the first
        # pass.
        runtime.unsharded_stages.update(stage.stage_index for stage in stages)
        ordered.update({r: [a for a in row if "SHARD" not in str(a)] for r, row in ordered.items()})
    if device.type == "cpu":
        ordered.update({rank: received_early(row) for rank, row in ordered.items()})
    return runtime


def received_early(row: list[Any]) -> list[Any]:
    """A rank's actions, without receives directly before the action that needs them.

    If torch posts a receive directly before its action, it is posted one computation earlier here.
    Other receives already have a computation's time, and stay, because each needs a buffer. Over
    gloo a message is sent only after its receive is posted, and then waits for a core: 2 to 7 ms
    per message of 0.5 MiB on two cores (2026-11-21, timelines of runs). The order of receives, by
    which messages are matched, does not change. Not for NCCL: it runs the operations of a pair of
    ranks in posting order, so a receive before the send that its message depends on would hang.
    """
    moved: list[Any] = []
    earliest = 0  # position after the previous receive
    for number, action in enumerate(row):
        if "RECV" in str(action):
            following = next((a for a in row[number:] if a.is_compute_op), None)
            urgent = following is not None and (
                (following.stage_index, following.microbatch_index)
                == (action.stage_index, action.microbatch_index)
            )
            computed = [i for i, a in enumerate(moved) if a.is_compute_op] if urgent else []
            at = max(earliest, computed[-1] if computed else len(moved))
            moved.insert(at, action)
            earliest = at + 1
        else:
            moved.append(action)
    return moved


def _share_of_loss(output: Tensor, _: Any, *, count: int, losses: list[Tensor]) -> Tensor:
    """A micro-batch's part of the mean over `count` micro-batches, computed by the last stage.
    Torch would instead divide every gradient once per step, which for FSDP2 weights goes through
    DTensor dispatch. `losses` gets the undivided loss in fp32. The backward starts from the part in
    the loss's own type. So for a bf16 loss, if `count` is not a power of two, all gradients are off
    by a common factor of at most 2^-9; a part in fp32 would be rounded to the same value."""
    losses.append(output[0].detach().float())
    return output[0] / count
