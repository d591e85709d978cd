"""Running a schedule on torch's pipeline runtime: the only file that touches its private API.

Private names used: `_PipelineScheduleRuntime` and its `_prepare_schedule_with_comms` (torch 2.11 to
2.13), `_Action` to parse our actions, `_batch_p2p` and the stages' receive buffers to free messages
early. They are imported inside functions, so that this file can be imported wherever torch can.

Where a schedule has I and W, an I is torch's whole backward of a stage with our `SplitBackward`
setting weights' gradients aside, and a W is what that has to do later, handed to torch as the
`dw_builder` that PipelineStage takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from executor.parallelize import is_fully_sharded
from executor.replay.data_flow import Shapes
from executor.stages import StageModule
from executor.unit_gradients import keep_gradient_sums, send_as_made, sent_in_weight_half
from profiles.errors import RunError
from simulator.schedules.schedule import Schedule

ActionTimer = Callable[[str], Any]


class Pipeline:
    """One rank's stages under a schedule; `step` runs all micro-batches forward and backward.

    crossing  per stage, of what it receives. Gradients end up as the mean over micro-batches.
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
        self._last = max(stages) == len(schedule.stage_to_rank) - 1
        self._micro_batches = schedule.num_microbatches
        self._stages = [
            _pipeline_stage(stages[i], i, crossing, schedule, device, group, timer)
            for i in sorted(stages)
        ]
        self._losses: list[Tensor] = []  # of the micro-batches of the step that runs
        self._runtime = _runtime(self._stages, schedule, device, self._losses)
        self._first = 0 in stages
        self._messages = Messages(self._stages)

    def step(self, model_args: tuple[Tensor, ...], given: dict[str, Tensor]) -> Tensor | None:
        """One pass over the local batch; the mean loss on the last stage's rank, else None.

        given  what every stage is given of it, by name (stage_inputs.model_arguments)
        """
        kwargs: dict[str, Any] = dict(given)
        self._losses.clear()
        positional = model_args[:1] if self._first else ()
        target = model_args[0] if self._last else None
        with self._messages.freed_early():
            self._runtime.step(*positional, target=target, **kwargs)
        for stage in self._stages:
            if stage.dw_runner or (stage.submod.split and stage.submod.split.waits):
                raise RunError(
                    f"stage {stage.stage_index} has gradients of weights that no W has made: the "
                    "schedule lacks one"
                )
        return torch.stack(self._losses).mean() if self._last else None


class Messages:
    """What crosses the cuts, kept no longer than it is needed.

    The runtime keeps a receive buffer per micro-batch for the whole step, and every pending send,
    with its tensor, to the end of the step: at 64 micro-batches that is more than the activations
    of a pipeline in flight. Here a buffer lives from its receive to the end of the backward that
    uses it. An activation's send is finished when its gradient has come back; a gradient's send is
    waited for when the stage sends its next one (the peer posts each receive in the order of the
    sends and never waits for a later one first, so this cannot hang).
    """

    def __init__(self, stages: list[Any]) -> None:
        self._stages = stages
        self._own: dict[int, Tensor] = {}
        self._spare: dict[tuple[torch.Size, torch.dtype, bool], list[Tensor]] = {}
        self._made: list[Any] = []
        self._sent: dict[tuple[str, int, int], list[list[Any]]] = {}
        for stage in stages:
            self._watch(stage)

    @contextmanager
    def freed_early(self) -> Iterator[None]:
        """Around one step of the runtime."""
        from torch.distributed.pipelining import schedules

        original = schedules._batch_p2p

        def noted(*args: Any, **kwargs: Any) -> Any:
            works = original(*args, **kwargs)
            if self._made:
                self._sent.setdefault(self._made.pop(), []).append(works)
            return works

        schedules._batch_p2p = noted
        try:
            yield
        finally:
            schedules._batch_p2p = original
            self._sent.clear()

    def _watch(self, stage: Any) -> None:
        send_forward, send_backward = stage.get_fwd_send_ops, stage.get_bwd_send_ops
        receive_forward, receive_backward = stage.get_fwd_recv_ops, stage.get_bwd_recv_ops
        prepare_forward, prepare_backward = (
            stage._prepare_forward_infra,
            stage._prepare_backward_infra,
        )
        backward, index = stage.backward_one_chunk, stage.stage_index
        hand_back = stage.set_local_bwd_input

        def forward_sends(chunk: int) -> Any:
            self._made = [("F", index, chunk)]
            return _laid_out(send_forward(chunk))

        def backward_sends(chunk: int) -> Any:
            self._finish("B", index)
            self._made = [("B", index, chunk)]
            return _laid_out(send_backward(chunk))

        def forward_receives(chunk: int) -> Any:
            self._made = []
            self._take(stage.args_recv_info[chunk])
            return receive_forward(chunk)

        def backward_receives(chunk: int) -> Any:
            self._made = []
            self._take(stage.grad_recv_info[chunk])
            return receive_backward(chunk)

        def prepared_forward(*args: Any, **kwargs: Any) -> Any:
            found = prepare_forward(*args, **kwargs)
            self._strip(stage.args_recv_info)
            return found

        def prepared_backward(*args: Any, **kwargs: Any) -> Any:
            found = prepare_backward(*args, **kwargs)
            self._strip(stage.grad_recv_info)
            return found

        def backward_then_free(chunk: int, *args: Any, **kwargs: Any) -> Any:
            self._finish("F", index, chunk)
            done = backward(chunk, *args, **kwargs)
            # A product that waits for its W may still read what came: no other may be written
            # there, and it goes when the product does.
            whole = kwargs.get("full_backward", True)
            for infos in (stage.args_recv_info, stage.grad_recv_info):
                self._release(infos.get(chunk, ()), again=whole)
            return done

        def handed_back(gradients: tuple[Tensor | None, ...], chunk: int) -> None:
            # From the next stage on the same rank: what it did not use has no gradient, and the
            # buffer that torch would fill with zeros is not there. Torch 2.11 appends the gradients
            # of what every stage is given.
            infos = stage.grad_recv_info[chunk]
            hand_back(
                tuple(
                    _zeros_like_message(info, stage.device) if gradient is None else gradient
                    for gradient, info in zip(gradients[: len(infos)], infos, strict=True)
                ),
                chunk,
            )

        def cleared() -> None:
            # Torch 2.11's own then reads each buffer's gradient, and the buffers are gone. Those
            # that are used again lose theirs in `_release`.
            stage.fwd_cache.clear()
            stage.output_chunks.clear()

        stage.get_fwd_send_ops, stage.get_bwd_send_ops = forward_sends, backward_sends
        stage.get_fwd_recv_ops, stage.get_bwd_recv_ops = forward_receives, backward_receives
        stage._prepare_forward_infra = prepared_forward
        stage._prepare_backward_infra = prepared_backward
        stage.clear_runtime_states = cleared
        stage.backward_one_chunk = backward_then_free
        stage.set_local_bwd_input = handed_back

    def _finish(self, kind: str, stage: int, chunk: int | None = None) -> None:
        """Wait for the sends of a kind and stage, of one chunk or of all, and let them go."""
        for key in [k for k in self._sent if k[:2] == (kind, stage) and chunk in (None, k[2])]:
            for works in self._sent.pop(key):
                for work in works:
                    work.wait()
                works.clear()

    def _strip(self, table: dict[int, Any]) -> None:
        """Take the buffers away that the runtime has made for every micro-batch."""
        for infos in table.values():
            for info in infos:
                buffer = getattr(info, "buffer", None)
                if isinstance(buffer, Tensor):
                    info.shardwright_like = (buffer.shape, buffer.dtype, buffer.requires_grad)
                    info.buffer = None

    def _take(self, infos: Any) -> None:
        """Give each message a buffer before its receive is posted."""
        for info in infos:
            like = getattr(info, "shardwright_like", None)
            if like is None:
                continue
            spare = self._spare.get(like, [])
            shape, dtype, requires_grad = like
            buffer = (
                spare.pop()
                if spare
                else torch.empty(
                    shape, dtype=dtype, device=self._stages[0].device, requires_grad=requires_grad
                )
            )
            self._own[id(buffer)] = buffer
            info.buffer = buffer

    def _release(self, infos: Any, *, again: bool) -> None:
        """Take the buffers back and, where they may be used again, keep one of a kind for the next
        receive."""
        for info in infos:
            like, buffer = getattr(info, "shardwright_like", None), getattr(info, "buffer", None)
            if like is None or buffer is None:
                continue
            info.buffer = None
            mine = self._own.pop(id(buffer), None)
            if again and mine is not None and not self._spare.get(like):
                mine.grad = None
                self._spare[like] = [mine]


def _pipeline_stage(
    module: StageModule,
    index: int,
    crossing: Sequence[Shapes],
    schedule: Schedule,
    device: torch.device,
    group: Any,
    timer: ActionTimer,
) -> Any:
    from torch.distributed.pipelining import PipelineStage

    count = len(schedule.stage_to_rank)

    def metas(shapes: Shapes) -> tuple[Tensor, ...]:
        return tuple(
            torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
            for shape, dtype in shapes
        )

    inputs = metas(crossing[index]) if index else _model_input(module)
    outputs = (
        metas(crossing[index + 1])
        if index + 1 < count
        else (torch.empty(1, device="meta", requires_grad=True),)
    )
    stage: Any = PipelineStage(
        module,
        index,
        count,
        device,
        input_args=inputs,
        output_args=outputs,
        group=group,
        dw_builder=module.split.take if module.split else None,
    )
    neighbours = stage._get_init_p2p_neighbors_ops
    # A V schedule passes on within a rank; torch 2.11 connects each stage to the next all the same,
    # and gloo has no connection of a rank to itself.
    stage._get_init_p2p_neighbors_ops = lambda: [
        op for op in neighbours() if op.group_peer != stage.group_rank
    ]
    # Torch 2.11 refuses tensors that lie otherwise than it was told; `_laid_out` sends those too.
    stage._validate_fwd_input = stage._validate_fwd_outputs = lambda *_: None
    if is_fully_sharded(module):
        send_as_made(stage)
    _time_actions(stage, index, timer)
    return stage


def _zeros_like_message(info: Any, device: torch.device) -> Tensor:
    shape, dtype, _ = info.shardwright_like
    return torch.zeros(shape, dtype=dtype, device=device)


def _model_input(module: StageModule) -> tuple[Tensor, ...]:
    first = module._built.args[0]
    return (torch.empty(first.shape, dtype=first.dtype, device="meta"),)


def _time_actions(stage: Any, index: int, timer: ActionTimer) -> None:
    """Time the stage's computation: waiting is outside these methods."""
    forward, backward = stage.forward_one_chunk, stage.backward_one_chunk
    first = stage.submod.micro_batch
    weight, module = stage.backward_weight_one_chunk, stage.submod
    split, sharded = module.split, is_fully_sharded(module)

    def timed_forward(chunk: int, *args: Any, **kwargs: Any) -> Any:
        stage.submod.micro_batch = first + chunk
        with timer(f"{index}F{chunk}"):
            return forward(chunk, *args, **kwargs)

    def timed_backward(chunk: int, *args: Any, full_backward: bool = True, **kwargs: Any) -> Any:
        letter, half = ("B", nullcontext()) if full_backward else ("I", split.input_half())
        last = kwargs["last_backward"] and not sharded
        sent = module.replicas.sent_as_made() if last else nullcontext()
        with timer(f"{index}{letter}{chunk}"), half, sent:
            done = backward(chunk, *args, full_backward=full_backward, **kwargs)
            if module.copies is not None:
                module.copies.keep_gradients()
            return done

    def timed_weight(chunk: int, last_backward: bool = False) -> Any:
        sent: Any = nullcontext()
        if last_backward:
            sent = sent_in_weight_half(module) if sharded else module.replicas.sent_as_made(split)
        with timer(f"{index}W{chunk}"), sent:
            weight(chunk, last_backward=last_backward)
            if not (last_backward and sharded):
                keep_gradient_sums(module)

    stage.forward_one_chunk = timed_forward
    stage.backward_one_chunk = timed_backward
    stage.backward_weight_one_chunk = timed_weight


def _runtime(
    stages: list[Any], schedule: Schedule, device: torch.device, losses: list[Tensor]
) -> Any:
    """`losses` gets each micro-batch's on the last stage's rank."""
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
    if device.type == "cpu":
        ordered = runtime.pipeline_order_with_comms
        for rank, row in ordered.items():
            ordered[rank] = received_early(row)
    return runtime


def received_early(row: list[Any]) -> list[Any]:
    """A rank's actions with no receive right before the action that needs it.

    Where torch posts a receive so, it is posted one computation earlier here; others, whose message
    has a computation's time to cross already, stay, since each lies in a buffer. Over gloo a
    message crosses only once its receive is posted, and then waits for a core that a computing rank
    lets go: 2 to 7 ms per message of 0.5 MiB on two cores (2026-11-21, timelines of runs). The
    order of receives among each other, by which messages are matched, stays. Not for NCCL: it runs
    the operations of a pair in the order of their posting, so that a receive before the send that
    its message depends on would hang.
    """
    moved: list[Any] = []
    earliest = 0  # behind the receive before
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


def _laid_out(sends: list[Any]) -> list[Any]:
    """The sends with their tensors contiguous, which no transport does itself."""
    for operation in sends:
        operation.tensor = operation.tensor.contiguous()
    return sends


def _share_of_loss(output: Tensor, _: Any, *, count: int, losses: list[Tensor]) -> Tensor:
    """A micro-batch's part of the mean over `count` of them; the last stage computes its loss
    itself. Torch would divide every gradient instead, once per step: for weights under FSDP2 each
    of those divisions goes through DTensor's dispatch. `losses` gets the whole loss in fp32, which
    no division has rounded to its type. Gradients begin with the share in the loss's own type,
    of a bf16 loss at most 2^-9 off where `count` is no power of two, by one factor for all; a share
    in fp32 has the same gradients to the bit, since what enters the loss is rounded there."""
    losses.append(output[0].detach().float())
    return output[0] / count
