"""One rank of the checks of placements: many files in one set of processes."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

import torch.distributed as dist
from shardwright_placements.running.shard_check import run_sharded, traced_for
from shardwright_placements.sharding_file import OP_SHARDING_SCHEMA, OpShardingFile
from torch.distributed.device_mesh import init_device_mesh

from profiles.document import encode, read_document
from profiles.model.loaders import resolve_model


def run_placements(folder: Path, results_path: Path) -> None:
    """Runs a folder's case*.json files; rank 0 writes the results."""
    programs, meshes, results = {}, {}, []
    for path in sorted(folder.glob("case*.json")):
        answer = read_document(path, OpShardingFile, schema=OP_SHARDING_SCHEMA)
        spec = resolve_model(answer.model)
        key = (answer.model, answer.sequence_length, answer.micro_batch, answer.dtype)
        shape = (answer.mesh_sizes, answer.mesh_names)
        try:
            if key not in programs:
                programs[key] = traced_for(answer, spec)
            if shape not in meshes:
                meshes[shape] = init_device_mesh(
                    "cpu", answer.mesh_sizes, mesh_dim_names=answer.mesh_names
                )
            run = run_sharded(answer, spec, meshes[shape], program=programs[key])
            results.append({"name": path.stem, "passed": run.passed, "run": encode(run)})
        except Exception:
            results.append({"name": path.stem, "passed": False, "error": traceback.format_exc()})
            break
        finally:
            if dist.get_rank() == 0:
                results_path.write_text(json.dumps(results))
    if results[-1].get("error"):
        sys.stderr.write(results[-1]["error"])
        os._exit(1)
    dist.barrier()
    os._exit(0)
