"""One rank of the gradient checks: many plans in one set of processes."""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from executor.check import EXACT, combined, compare_gradients, reference_gradients
from executor.mesh import Mesh, make_mesh
from executor.rank import Rank
from executor.recorder import Recorder
from profiles.document import decode
from profiles.model.loaders import ModelSpec, resolve_model
from simulator.values.plan import Plan


def rounding(
    plan: Plan, spec: ModelSpec, mesh: Mesh, reference_loss: float, reference: dict[str, Tensor]
) -> dict[str, object]:
    """The same step in the plan's own precision: how far rounding takes it, and what is kept."""
    rank = Rank(plan, spec, mesh, torch.device("cpu"), Recorder())
    crossing: set[str] = set()
    for stage in rank.stages.values():
        stage.register_forward_hook(
            lambda m, args, out: crossing.update(str(x.dtype) for x in args if x.requires_grad)
        )
    loss = rank.forward_backward()
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, compare_gradients(rank, loss, reference_loss, reference))
    kept = {str(p.dtype) for p in rank.parameters().values()}
    kept |= {str(p.grad.dtype) for p in rank.parameters().values() if p.grad is not None}
    rank.update()
    states = rank.optimizer.state.values()
    kept |= {str(x.dtype) for s in states for x in s.values() if x.dim() > 0}
    seen = [None] * dist.get_world_size()
    dist.all_gather_object(seen, sorted(crossing))
    return {
        "worst": combined(parts).worst_relative_error,
        "kept": sorted(kept),
        "crossing": sorted({name for names in seen for name in names}),
    }


def check_plans(source: Path, results_path: Path) -> None:
    """Checks a JSON list of {"name", "model", "plan", "backend"}; rank 0 writes the results."""
    cases = json.loads(source.read_text())
    device = torch.device("cpu")
    results = []
    meshes = {}
    references = {}
    for case in cases:
        plan = decode(Plan, case["plan"], where=case["name"])
        spec = resolve_model(case["model"])
        try:
            degrees = replace(plan.degrees, vpp=1)
            if degrees not in meshes:
                meshes[degrees] = make_mesh(plan, "cpu")
            for dtype in EXACT:
                rank = Rank(
                    plan,
                    spec,
                    meshes[degrees],
                    device,
                    Recorder(),
                    exact=dtype,
                    backend=case["backend"],
                )
                loss = rank.forward_backward()
                asked = (
                    case["model"],
                    plan.workload.global_batch,
                    plan.micro_batch,
                    plan.seed,
                    dtype,
                )
                if asked not in references:
                    references[asked] = reference_gradients(plan, spec, device, dtype)
                reference_loss, reference = references[asked]
                parts = [None] * dist.get_world_size()
                mine = compare_gradients(rank, loss, reference_loss, reference)
                dist.all_gather_object(parts, mine)
                check = combined(parts)
                if check.passed:
                    break
            rank.update()
            rounded = None
            if plan.workload.precision != "fp32":
                wanted = references[(*asked[:-1], "float32")]
                rounded = rounding(plan, spec, meshes[degrees], *wanted)
            results.append(
                {
                    "name": case["name"],
                    "passed": check.passed,
                    "worst": check.worst_relative_error,
                    "parameter": check.worst_parameter,
                    "dtype": dtype,
                    "checked": check.parameters_checked,
                    "loss": check.loss,
                    "reference_loss": check.reference_loss,
                    "rounded": rounded,
                    "eager": {n: u.why_eager for n, u in rank.compiled.items() if u.why_eager},
                }
            )
        except Exception:
            results.append({"name": case["name"], "passed": False, "error": traceback.format_exc()})
            break
        finally:
            if dist.get_rank() == 0:
                results_path.write_text(json.dumps(results))
    if results[-1].get("error"):
        print(results[-1]["error"], file=sys.stderr, flush=True)
        os._exit(1)
    dist.barrier()
    os._exit(0)
