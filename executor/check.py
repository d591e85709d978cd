"""The gradient check: a planned step against the unsplit model on the same batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from executor.rank import Rank
from executor.starting_weights import build_meta, materialize, parameter_names
from profiles.model.building.tensor_parallel_rules import is_transposed
from profiles.model.loaders import ModelSpec
from profiles.model.tracing.trace_split_order import own_order
from simulator.values.measurement import GradientCheck
from simulator.values.plan import Plan

TOLERANCE = 1e-5


def reference_gradients(
    plan: Plan, spec: ModelSpec, device: torch.device
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the whole model in this process and in fp32, by parameter name.

    The global batch goes through in micro-batches of the plan's size, so that layers which look at
    the batch (batch normalisation) see what they see in the run.
    """
    built = build_meta(
        spec,
        micro_batch=plan.workload.global_batch,
        sequence_length=plan.workload.sequence_length,
        dtype="float32",
        seed=plan.seed,
    )
    names = parameter_names(built.module)
    weights = materialize(built.module, names, device, plan.seed)
    count = plan.workload.global_batch // plan.micro_batch
    total = 0.0
    for m in range(count):
        part = slice(m * plan.micro_batch, (m + 1) * plan.micro_batch)
        args = [x[part].to(device) for x in built.args]
        targets = tree_map_only(Tensor, _taken(part, device), built.targets)
        loss = built.loss_fn(built.call(built.module, *args), targets) / count
        loss.backward()
        total += float(loss.detach())
    return total, {n: p.grad for n, p in weights.items() if p.grad is not None}


def _taken(part: slice, device: torch.device) -> Callable[[Tensor], Tensor]:
    return lambda x: x[part].to(device)


def compare_gradients(
    rank: Rank, loss: float | None, reference_loss: float, reference: dict[str, Tensor]
) -> dict[str, Any]:
    """This rank's part of the check: worst relative error over its parameters.

    A gradient that is zero but for rounding (a bias before batch normalisation, the bias of an
    attention's keys) is compared with a hundred-thousandth of the whole gradient's norm instead of
    with its own: what passes then is off by 1e-10 of that norm, far below fp32's 6e-8.
    """
    worst, worst_name, checked = 0.0, "", 0
    whole_norm = sum(float(g.double().norm()) ** 2 for g in reference.values()) ** 0.5
    canonical = {name: group[0] for group in rank.plan.tied_parameters for name in group}
    transposed = {
        path
        for stage in rank.stages.values()
        for path, module in stage.model.named_modules()
        if is_transposed(module)
    }
    for name, p in rank.parameters().items():
        wanted = reference.get(canonical.get(name, name), reference.get(name))
        if p.grad is None and wanted is None:
            continue
        found = whole(p.grad) if p.grad is not None else torch.zeros_like(wanted)  # type: ignore[arg-type] # one of them is there
        found = own_order(
            name,
            found,
            rank.plan.tensor_parallel,
            rank.plan.tp,
            transposed=name.rpartition(".")[0] in transposed,
        )
        if wanted is None:
            wanted = torch.zeros_like(found)
        error = relative_error(found, wanted, least=1e-5 * whole_norm)
        checked += 1
        if error > worst or not worst_name or error != error:
            worst, worst_name = error, name
    return {
        "worst": worst,
        "name": worst_name,
        "checked": checked,
        "loss": loss,
        "reference_loss": reference_loss,
    }


def relative_error(found: Tensor, wanted: Tensor, *, least: float = 0.0) -> float:
    """Norm of the difference over that of what is wanted, or over `least` where that is more."""
    size = max(float(wanted.double().norm()), least, 1e-30)
    return float((found.double() - wanted.double()).norm()) / size


def whole(x: Tensor) -> Tensor:
    """The full tensor of a DTensor (a collective), or the tensor itself."""
    full: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return full.detach()


def combined(parts: list[dict[str, Any]]) -> GradientCheck:
    """The check over all ranks; passes where losses and every gradient agree."""
    worst = max(parts, key=lambda part: part["worst"] if part["worst"] == part["worst"] else 1e30)
    losses = [part["loss"] for part in parts if part["loss"] is not None]
    loss = sum(losses) / len(losses)
    reference = parts[0]["reference_loss"]
    loss_error = abs(loss - reference) / max(abs(reference), 1e-30)
    passed = worst["worst"] <= TOLERANCE and loss_error <= TOLERANCE
    return GradientCheck(
        passed=bool(passed),
        tolerance=TOLERANCE,
        loss=loss if math.isfinite(loss) else 1e30,
        reference_loss=reference,
        worst_relative_error=float(min(worst["worst"], 1e30)),
        worst_parameter=worst["name"],
        parameters_checked=sum(part["checked"] for part in parts),
    )
