"""The gradient check: a planned step against the unsplit model on the same batch."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from executor.mesh import Mesh, gather_all
from executor.not_finite import all_finite, first_not_finite
from executor.rank import Rank
from executor.recorder import Recorder
from executor.replay.data_flow import units_of
from executor.replay.draws import Draws
from executor.stage_inputs import constants_of, given_again, model_arguments
from executor.starting_weights import StartingWeights, builder_of
from profiles.errors import RunError
from profiles.model.loaders import ModelSpec
from simulator.values.measurement import GradientCheck
from simulator.values.plan import Plan

TOLERANCE = 1e-5


EXACT = ("float32", "float64")
"""Types in which the check computes: fp32, and fp64 if fp32 finds a difference, to distinguish an
error from rounding. The gradient of a bias before batch normalization is rounding only (0.04 of the
check's floor in a random module, 2026-11-22)."""


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Context in which torch.autocast in the model has no effect: 16-bit rounding is 100 times the
    tolerance."""
    setter = torch.set_autocast_enabled
    torch.set_autocast_enabled = lambda *_: None
    try:
        yield
    finally:
        torch.set_autocast_enabled = setter


@without_autocast()
def check_gradients(
    plan: Plan, spec: ModelSpec, mesh: Mesh, device: torch.device, *, backend: str = ""
) -> GradientCheck:
    """The gradient check of a whole step, on all ranks. `backend` is as for `Rank`.

    Raises RunError if the loss of the unsplit model is not finite.
    """
    for dtype in EXACT:
        reference_loss, reference = reference_gradients(plan, spec, device, dtype)
        if not math.isfinite(reference_loss) or not all_finite(list(reference.values())):
            place = first_not_finite(plan, spec, mesh, device, steps=1, exact=dtype)
            raise RunError(
                f"the unsplit model's loss is {reference_loss}, or a gradient is not finite, so "
                "there is nothing to compare"
                + (f" ({place.words})" if place is not None else "")
                + "; correct the model or its loss, or run without --check"
            )
        with Rank(plan, spec, mesh, device, Recorder(), exact=dtype, backend=backend) as rank:
            loss = rank.forward_backward()
            mine = compare_gradients(rank, loss, reference_loss, reference)
        check = combined(gather_all(mine))
        if check.passed:
            break
    return check


def reference_gradients(
    plan: Plan, spec: ModelSpec, device: torch.device, dtype: str = "float32"
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the unsplit model in this process, by parameter name, in main memory:
    the model is freed before a rank of the plan is built.

    The global batch is split into micro-batches of the plan's size, so that batch normalization
    uses the same statistics as in the run.
    """
    build = builder_of(plan, spec, dtype)
    built = build(micro_batch=plan.workload.global_batch)
    given = model_arguments(built.args, built.targets, constants_of(build, built))
    built = replace(built, targets=tree_map_only(Tensor, lambda x: x.to(device), built.targets))
    draws = Draws(plan.seed)
    draws.watch(built.module, units_of(built.module, tuple(filter(None, plan.block_entries))))
    weights = StartingWeights(built.module, device, plan.seed).fill(built.module)
    count = plan.workload.global_batch // plan.micro_batch
    total = 0.0
    for m in range(count):
        part = slice(m * plan.micro_batch, (m + 1) * plan.micro_batch)
        args, targets = given_again({k: x[part].to(device) for k, x in given.items()}, built)
        with draws.forward(m):
            loss = built.loss_fn(built.call(built.module, *args), targets) / count
        loss.backward()
        total += float(loss.detach())
    found = {n: p.grad.cpu() for n, p in weights.items() if p.grad is not None}
    del built, weights, loss
    gc.collect()  # hooks of its modules reference each other
    return total, found


def compare_gradients(
    rank: Rank, loss: Tensor | None, reference_loss: float, reference: dict[str, Tensor]
) -> dict[str, Any]:
    """This rank's part of the check: worst relative error over its parameters.

    A gradient that is zero except for rounding (a bias before batch normalization, the bias of
    attention keys) is compared with 1e-5 of the norm of the whole gradient instead of its own norm.
    The accepted error is then 1e-10 of the whole norm, far below the 6e-8 of fp32.
    """
    worst, worst_name, checked = 0.0, "", 0
    whole_norm = sum(float(wide(g).norm()) ** 2 for g in reference.values()) ** 0.5
    canonical = {name: group[0] for group in rank.plan.tied_parameters for name in group}
    shardings = (stage.sharding for stage in rank.stages.values())
    split = {name: sharding for sharding in shardings for name in sharding.splits}
    for name, p in rank.parameters().items():
        wanted = reference.get(canonical.get(name, name), reference.get(name))
        if p.grad is None and wanted is None:
            continue
        found = whole((torch.zeros_like(p) if p.grad is None else p.grad).to(rank.device))
        if wanted is not None and name in split:
            wanted = split[name].share(wanted, name, rank.mesh.at.tp)
        wanted = torch.zeros_like(found) if wanted is None else wanted
        error = relative_error(found, wanted, least=1e-5 * whole_norm)
        checked += 1
        if error > worst or not worst_name or error != error:
            worst, worst_name = error, name
    return {
        "worst": worst,
        "name": worst_name,
        "checked": checked,
        "loss": None if loss is None else float(loss),
        "reference_loss": reference_loss,
    }


def relative_error(found: Tensor, wanted: Tensor, *, least: float = 0.0) -> float:
    """Norm of the difference, divided by the norm of the expected tensor or by `least`, whichever
    is larger."""
    size = max(float(wide(wanted).norm()), least, 1e-30)
    return float((wide(found) - wide(wanted)).norm()) / size


def wide(x: Tensor) -> Tensor:
    """The tensor in double precision (complex if it is complex)."""
    return x.to(torch.promote_types(x.dtype, torch.float64))


def whole(x: Tensor) -> Tensor:
    """A tensor of the device in main memory; one that FSDP2 shards is gathered from all replicas
    first (a collective)."""
    full: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return full.detach().cpu()


def combined(parts: list[dict[str, Any]]) -> GradientCheck:
    """The check over all ranks; it passes if the loss and all gradients agree."""
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
