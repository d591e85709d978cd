"""A plan's stages one after the other in one process: no messages, the same replays.

Cheaper than processes, and enough to see a stage that computes something else than the model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from executor.check import reference_gradients, wide
from executor.compiled_units import CompiledUnit, compile_units
from executor.recompute import apply_recompute
from executor.replay.data_flow import flow_of
from executor.replay.draws import Draws
from executor.stage_inputs import constants_of, model_arguments
from executor.stages import StageModule
from executor.starting_weights import StartingWeights, builder_of
from profiles.model.loaders import resolve_model
from simulator.values.plan import Plan


def worst_error(plan: Plan, compiled: dict[str, CompiledUnit] | None = None) -> float:
    """The worst relative error of the loss and of every parameter's gradient, against the unsplit
    model; a gradient that is near zero is compared with a hundred-thousandth of the whole norm.

    compiled  gets the units of all stages, which then run compiled
    """
    loss, found = _run(plan, compiled)
    wanted_loss, wanted = reference_gradients(plan, resolve_model(plan.model), torch.device("cpu"))
    first = {name: group[0] for group in plan.tied_parameters for name in group}
    whole = sum(float(wide(g).norm()) ** 2 for g in wanted.values()) ** 0.5
    errors = [abs(loss - wanted_loss) / abs(wanted_loss)]
    assert set(found) == {first.get(name, name) for name in wanted}
    for name, gradient in wanted.items():
        other = wide(found[first.get(name, name)])
        scale = max(float(wide(gradient).norm()), 1e-5 * whole)
        errors.append(float((wide(gradient) - other).norm()) / scale)
    return max(errors)


def stages_of(plan: Plan, compiled: dict[str, CompiledUnit] | None = None) -> list[StageModule]:
    """The plan's stages with their starting weights, before anything is split or sharded."""
    build = builder_of(plan, resolve_model(plan.model), "float32")
    flow = flow_of(build(micro_batch=plan.micro_batch), plan.block_entries)
    made: list[StageModule] = []
    draws = Draws(plan.seed, from_others=flow.draws_from_others)
    for cut in plan.stages:
        model = build(micro_batch=plan.micro_batch)
        starting = StartingWeights(model.module, torch.device("cpu"), plan.seed)
        stage = StageModule(model, flow, cut.first_block, cut.last_block)
        starting.fill(stage.model)
        if compiled is not None:
            compiled |= compile_units(stage, "aot_eager")
        apply_recompute(stage, cut.recompute)
        if flow.draws:
            stage.draws = draws
        stage.watch_entries()
        made.append(stage)
    return made


def _run(plan: Plan, compiled: dict[str, CompiledUnit] | None) -> tuple[float, dict[str, Tensor]]:
    build = builder_of(plan, resolve_model(plan.model), "float32")
    data = build(micro_batch=plan.workload.global_batch)
    constants = constants_of(build, data)
    stages = stages_of(plan, compiled)
    total = 0.0
    for m in range(plan.num_microbatches):
        part = slice(m * plan.micro_batch, (m + 1) * plan.micro_batch)
        given = {k: x[part] for k, x in model_arguments(data.args, data.targets, constants).items()}
        crossing: tuple[Tensor, ...] = (given["arg0"],)
        runs = []
        for stage in stages:
            stage.micro_batch = m
            received = tuple(x.detach().requires_grad_() if stage.first else x for x in crossing)
            out = stage(*received, **given)
            crossing = out if isinstance(out, tuple) else (out,)
            runs.append((received, crossing))
        loss = crossing[0][0] / plan.num_microbatches
        total += float(loss.detach())
        gradients: list[Tensor | None] = []
        for received, made in reversed(runs):
            if not gradients:
                loss.backward()
            else:
                pairs = [(o, g) for o, g in zip(made, gradients, strict=True) if o.requires_grad]
                pairs = [(o, g) for o, g in pairs if g is not None]
                torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
            gradients = [x.grad for x in received]
    first = {name: group[0] for group in plan.tied_parameters for name in group}
    sums: dict[str, Tensor] = {}
    for stage in stages:
        for name, p in stage.model.named_parameters():
            if p.grad is not None:
                name = first.get(name, name)
                sums[name] = sums[name] + p.grad if name in sums else p.grad
    return total, sums
