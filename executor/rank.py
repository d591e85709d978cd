"""One rank's share of a plan: its stages, optimizer and the work of a training step."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from executor.compiled_units import CompiledUnit, compile_units
from executor.mesh import Mesh, gather_all, local, sum_over
from executor.parallelize import (
    apply_fully_sharded,
    apply_tensor_parallelism,
    kept_whole,
    own_gradient,
    own_part,
    sum_shared_gradients,
)
from executor.recompute import apply_recompute
from executor.recorder import Recorder
from executor.replay.data_flow import DataFlow, flow_of
from executor.replay.draws import Draws
from executor.replica_gradients import ReplicaGradients
from executor.split_backward import SplitBackward
from executor.stage_inputs import constants_of, model_arguments
from executor.stages import StageModule
from executor.starting_weights import StartingWeights, builder_of
from executor.torch_pipeline import Pipeline
from executor.unit_gradients import send_in_next_backward
from profiles.model.building.build import BuiltModel
from profiles.model.building.tensor_parallel_rules import Rule
from profiles.model.loaders import ModelSpec
from simulator.schedules.schedule import schedule_kind
from simulator.values.plan import Plan

LEARNING_RATE = 1e-4


@lru_cache(maxsize=16)
def _flow(
    build: Callable[..., BuiltModel],
    entries: tuple[str, ...],
    micro_batch: int,
    rules: tuple[Rule, ...] = (),
    tp: int = 1,
) -> DataFlow:
    """Data flow between the blocks, cached: the run for the memory peak, the measured run and the
    check build ranks of the same plan."""
    return flow_of(build(micro_batch=micro_batch), entries, rules, tp)


def _trained(stage: StageModule) -> list[tuple[str, nn.Parameter]]:
    """The trainable weights of the stage with their names."""
    return [
        (name, stage.copies.weight_of.get(p, p) if stage.copies else p)
        for name, p in stage.model.named_parameters()
        if p.requires_grad
    ]


class Rank:
    """Builds this rank's stages with their starting weights, and runs training steps. Only one may
    exist at a time: `close`, or leaving it as a context manager, frees its memory.

    exact    compute in this type instead of the plan's precision: for the gradient check, whose
             errors are smaller than the rounding of bf16
    backend  torch.compile backend of the units; "" runs them eagerly
    """

    def __init__(
        self,
        plan: Plan,
        spec: ModelSpec,
        mesh: Mesh,
        device: torch.device,
        recorder: Recorder,
        *,
        exact: str = "",
        backend: str = "",
    ) -> None:
        self.plan, self.mesh, self.device, self.recorder = plan, mesh, device, recorder
        self._micro = plan.num_microbatches
        dtype = exact or plan.workload.compute_dtype
        build = builder_of(plan, spec, dtype)
        rules = plan.tensor_parallel if plan.sequence_parallel else ()
        flow = _flow(build, plan.block_entries, plan.micro_batch, rules, plan.degrees.tp)
        crossing = [flow.shapes(stage.first_block) for stage in plan.stages]
        # One set of inputs for the whole global batch; each replica takes its slice.
        data = build(micro_batch=plan.workload.global_batch)
        given = model_arguments(data.args, data.targets, constants_of(build, data))
        self.given = {
            name: x.chunk(plan.degrees.dp)[mesh.at.dp].to(device) for name, x in given.items()
        }
        self._backend, self.compiled = backend, dict[str, CompiledUnit]()
        self._draws = Draws(plan.seed, from_others=flow.draws_from_others) if flow.draws else None
        self.stages = self._build_stages(build, flow, getattr(torch, dtype))
        self._synchronise_ties()
        self.optimizer = self._make_optimizer()
        self.pipeline = None
        if plan.degrees.pp > 1:
            self.pipeline = Pipeline(
                self.stages,
                crossing,
                plan.actions,
                device=device,
                group=mesh.pp.get_group(),
                timer=recorder.action,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free stages, optimizer states and inputs. Hooks and modules reference each other, so only
        the garbage collector frees them; split schedules need it twice."""
        for stage in self.stages.values():
            if stage.copies is not None:
                stage.copies.let_go()
        del stage  # otherwise the last one would survive the collection
        vars(self).clear()
        for _ in range(3):
            if not gc.collect():
                break

    # --- building -----------------------------------------------------------------------------

    def _build_stages(
        self, build: Callable[..., BuiltModel], flow: DataFlow, dtype: torch.dtype
    ) -> dict[int, StageModule]:
        stages = {}
        self.names: dict[str, nn.Parameter] = {}
        for index in self.plan.stages_of(self.mesh.at.pp):
            cut = self.plan.stages[index]
            built = build(micro_batch=self.plan.micro_batch)
            starting = StartingWeights(built.module, self.device, self.plan.seed)
            split = SplitBackward() if schedule_kind(self.plan.schedule).splits_backward else None
            first, last = cut.first_block, cut.last_block
            stage = StageModule(built, flow, first, last, split=split, device=self.device)
            apply_tensor_parallelism(stage, self.plan.tensor_parallel, self.mesh, starting)
            if self._backend:
                self.compiled |= compile_units(stage, self._backend)
            apply_recompute(stage, cut.recompute)
            apply_fully_sharded(stage, self.plan, self.mesh, dtype, starting)
            stage.draws = self._draws
            stage.watch_entries()
            stage.micro_batch = self.mesh.at.dp * self._micro
            every = self.plan.zero_stage == 0
            kept = [p for _, p in _trained(stage) if every or kept_whole(p)]
            group, size = self.mesh.dp.get_group(), self.plan.degrees.dp
            stage.replicas = ReplicaGradients(kept, group, size, stage.copies)
            stages[index] = stage
        return stages

    def parameters(self) -> dict[str, nn.Parameter]:
        """This rank's trainable parameters by their name in the whole model; the first copy if its
        stages have several copies of one."""
        return dict(reversed(self.held()))

    def held(self) -> list[tuple[str, nn.Parameter]]:
        """Every trainable parameter of this rank's stages with its name. Stages of one rank have
        separate copies of shared parameters."""
        return [found for stage in self.stages.values() for found in _trained(stage)]

    def _make_optimizer(self) -> torch.optim.Optimizer:
        # Cached: walking the modules takes milliseconds.
        self._held = self.held()
        parameters = [p for _, p in self._held]
        if not parameters:
            # A stage may have only frozen layers: torch refuses an empty list.
            parameters = [nn.Parameter(torch.zeros(0, device=self.device))]
        self._parts = [(p, own_part(p)) for p in parameters]
        parts = [part for _, part in self._parts]
        if self.plan.workload.optimizer == "sgd":
            return torch.optim.SGD(parts, lr=LEARNING_RATE)
        # On a CPU, one pass over memory. Torch's default has ten, takes two to five times the
        # seconds, and more if moments are 0, whose roots are slow (MKL; two cores, torch 2.13,
        # 2026-11-23).
        able = _get_fused_kernels_supported_devices()
        fused = all(p.is_floating_point() and p.device.type in able for p in parts)
        return torch.optim.AdamW(parts, lr=LEARNING_RATE, fused=fused or None)

    # --- ties ---------------------------------------------------------------------------------

    def _synchronise_ties(self) -> None:
        """Find the parameters that several stages share, and make a process group of the ranks for
        each set; also for parameters of one stage with several copies, because layers that share a
        weight are split one by one."""
        canonical = {name: group[0] for group in self.plan.tied_parameters for name in group}
        mine: dict[str, list[nn.Parameter]] = {}
        for name, p in self.held():
            mine.setdefault(canonical.get(name, name), []).append(p)
        self._ties: list[tuple[list[nn.Parameter], Any]] = []
        everyone = gather_all(sorted(mine), self.mesh.pp.get_group())
        for name in sorted({name for names in everyone for name in names}):
            holders = [rank for rank, names in enumerate(everyone) if name in names]
            group = self.mesh.group_of(holders) if len(holders) > 1 else None
            if name in mine and (group is not None or len(mine[name]) > 1):
                self._ties.append((mine[name], group))

    def _sum_tied_gradients(self) -> None:
        """Set every copy's gradient to the sum over all copies, on this rank and others. Copies
        start equal, so they stay equal."""
        for copies, group in self._ties:
            for p in copies:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
            first, *others = (local(p.grad) for p in copies if p.grad is not None)
            for other in others:
                first.add_(other)
            if group is not None:
                sum_over(first, group, self.device)
            for other in others:
                other.copy_(first)

    # --- a step -------------------------------------------------------------------------------

    def forward_backward(self) -> Tensor | None:
        """Compute the gradients of the global batch's mean loss. Returns the loss on ranks that
        compute it, as a tensor on the device, since reading it makes the host wait."""
        loss = self.pipeline.step(self.given) if self.pipeline else self._accumulated()
        with self.recorder.action("data_parallel"):
            for stage in self.stages.values():
                stage.replicas.finish()
            sum_shared_gradients(self._held, self.plan, self.mesh)
        if self._ties:
            with self.recorder.action("tied"):
                self._sum_tied_gradients()
        if self._draws is not None:
            self._draws.step += 1
        return loss

    def _accumulated(self) -> Tensor:
        stage = self.stages[0]
        losses = []
        for m in range(self._micro):
            part = slice(m * self.plan.micro_batch, (m + 1) * self.plan.micro_batch)
            kwargs = {k: x[part] for k, x in self.given.items()}
            stage.micro_batch = self.mesh.at.dp * self._micro + m
            with self.recorder.action(f"0F{m}"):
                loss = stage(**kwargs)
            if self.plan.zero_stage == 1:
                # ZeRO 2 and 3 reduce gradients in each backward, to save the memory of whole
                # gradients. ZeRO 1 accumulates them and reduces them in the last, and keeps weights
                # whole until then.
                send_in_next_backward(stage, last=m == self._micro - 1)
            last = m == self._micro - 1 and self.plan.zero_stage == 0
            sent = stage.replicas.sent_as_made() if last else nullcontext()
            with self.recorder.action(f"0B{m}"), sent:
                (loss[0] / self._micro).backward()
                if stage.copies is not None:
                    stage.copies.keep_gradients()
            losses.append(loss.detach()[0].double())
        return torch.stack(losses).mean()

    def update(self) -> None:
        """Run the optimizer step and discard the gradients."""
        with self.recorder.action("optimizer"):
            for p, part in self._parts:
                part.grad = own_gradient(p)
            self.optimizer.step()
            for p, part in self._parts:
                p.grad = part.grad = None
            for stage in self.stages.values():
                if stage.copies is not None:
                    stage.copies.refresh()
