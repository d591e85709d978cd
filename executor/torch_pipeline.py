"""Running a schedule on torch's pipeline runtime: the only file that touches its private API.

Private names used: `_PipelineScheduleRuntime` and its `_prepare_schedule_with_comms` (torch 2.11 to
2.13), and `_Action` to parse our actions. They are imported inside functions, so that this file
can be imported wherever torch can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from executor.stages import Boundary, StageModule
from profiles.errors import RunError
from simulator.schedule import Schedule

ActionTimer = Callable[[str], Any]


class Pipeline:
    """One rank's stages under a schedule; `step` runs all micro-batches forward and backward.

    Gradients end up as the mean over micro-batches.
    """

    def __init__(
        self,
        stages: dict[int, StageModule],
        boundaries: dict[int, Boundary],
        schedule: Schedule,
        *,
        device: torch.device,
        group: Any,
        timer: ActionTimer,
    ) -> None:
        self._last = max(stages) == len(schedule.stage_to_rank) - 1
        self._micro_batches = schedule.num_microbatches
        self._stages = [
            _pipeline_stage(stages[i], i, boundaries, schedule, device, group, timer)
            for i in sorted(stages)
        ]
        self._runtime = _runtime(self._stages, schedule)
        self._first = 0 in stages

    def step(self, model_args: tuple[Tensor, ...], targets: Tensor | None) -> float | None:
        """One pass over the local batch; the mean loss on the last stage's rank, else None."""
        kwargs: dict[str, Any] = {f"arg{i}": x for i, x in enumerate(model_args)}
        if targets is not None:
            kwargs["targets"] = targets
        losses: list[Tensor] = []
        positional = model_args[:1] if self._first else ()
        target = model_args[0] if self._last else None
        self._runtime.step(
            *positional, target=target, losses=losses if self._last else None, **kwargs
        )
        return float(torch.stack([x.detach().float() for x in losses]).mean()) if losses else None

    def receive_bytes(self) -> int:
        """Bytes of the buffers that the runtime keeps for what it receives."""
        total = 0
        for stage in self._stages:
            for infos in stage.args_recv_info.values():
                for info in infos:
                    buffer = getattr(info, "buffer", None)
                    if isinstance(buffer, Tensor):
                        total += buffer.numel() * buffer.element_size()
        return total


def _pipeline_stage(
    module: StageModule,
    index: int,
    boundaries: dict[int, Boundary],
    schedule: Schedule,
    device: torch.device,
    group: Any,
    timer: ActionTimer,
) -> Any:
    from torch.distributed.pipelining import PipelineStage

    count = len(schedule.stage_to_rank)

    def metas(boundary: Boundary) -> tuple[Tensor, ...]:
        return tuple(
            torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
            for shape, dtype in boundary.shapes
        )

    inputs = metas(boundaries[index]) if index else _model_input(module)
    outputs = (
        metas(boundaries[index + 1])
        if index + 1 < count
        else (torch.empty(1, device="meta", requires_grad=True),)
    )
    stage = PipelineStage(
        module, index, count, device, input_args=inputs, output_args=outputs, group=group
    )
    _time_actions(stage, index, timer)
    return stage


def _model_input(module: StageModule) -> tuple[Tensor, ...]:
    first = module._built.args[0]
    return (torch.empty(first.shape, dtype=first.dtype, device="meta"),)


def _time_actions(stage: Any, index: int, timer: ActionTimer) -> None:
    """Time the stage's own work: what it waits for lies outside these two methods."""
    forward, backward = stage.forward_one_chunk, stage.backward_one_chunk

    def timed_forward(chunk: int, *args: Any, **kwargs: Any) -> Any:
        with timer(f"{index}F{chunk}"):
            return forward(chunk, *args, **kwargs)

    def timed_backward(chunk: int, *args: Any, **kwargs: Any) -> Any:
        with timer(f"{index}B{chunk}"):
            return backward(chunk, *args, **kwargs)

    stage.forward_one_chunk = timed_forward
    stage.backward_one_chunk = timed_backward


def _runtime(stages: list[Any], schedule: Schedule) -> Any:
    try:
        from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime
    except ImportError as error:
        raise RunError(
            f"torch {torch.__version__} has no pipeline runtime that Shardwright knows; tested are "
            "2.11 to 2.13"
        ) from error
    runtime = _PipelineScheduleRuntime(
        stages, schedule.num_microbatches, loss_fn=_loss_of, scale_grads=True
    )
    actions = {
        rank: [_Action.from_str(str(action)) for action in row]
        for rank, row in enumerate(schedule.ranks)
    }
    runtime._prepare_schedule_with_comms(actions, format="compute_only")
    return runtime


def _loss_of(output: Tensor, _: Any) -> Tensor:
    """The last stage computes its loss itself."""
    return output[0]
