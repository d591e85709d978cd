"""Run by torchrun in the tests: the gradient check of many plans in one set of processes.

Arguments: a JSON list of {"name", "model", "plan"} and the output file for the results.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from executor.check import combined, compare_gradients, reference_gradients
from executor.mesh import make_mesh
from executor.rank import Rank
from executor.recorder import Recorder
from profiles.document import decode
from profiles.model.loaders import resolve_model
from simulator.plan import Plan


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=90))
    device = torch.device("cpu")
    results = []
    meshes = {}
    for case in cases:
        plan = decode(Plan, case["plan"], where=case["name"])
        spec = resolve_model(case["model"])
        try:
            degrees = (plan.pp, plan.dp, plan.tp)
            if degrees not in meshes:
                meshes[degrees] = make_mesh(plan, "cpu")
            rank = Rank(plan, spec, meshes[degrees], device, Recorder())
            loss = rank.forward_backward()
            reference_loss, reference = reference_gradients(plan, spec, device)
            parts = [None] * dist.get_world_size()
            mine = compare_gradients(rank, loss, reference_loss, reference)
            dist.all_gather_object(parts, mine)
            check = combined(parts)
            rank.update()
            results.append(
                {
                    "name": case["name"],
                    "passed": check.passed,
                    "worst": check.worst_relative_error,
                    "parameter": check.worst_parameter,
                    "checked": check.parameters_checked,
                    "loss": check.loss,
                    "reference_loss": check.reference_loss,
                }
            )
        except Exception:
            results.append({"name": case["name"], "passed": False, "error": traceback.format_exc()})
            break
        finally:
            if dist.get_rank() == 0:
                Path(sys.argv[2]).write_text(json.dumps(results))
    if results[-1].get("error"):
        print(results[-1]["error"], file=sys.stderr, flush=True)
        os._exit(1)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
