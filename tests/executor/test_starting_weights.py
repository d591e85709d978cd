"""How much a rank holds while its weights are made: what stays, and one unit beside it."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from executor.memory import PeakWatch
from executor.mesh import local, make_mesh
from executor.rank import Rank
from executor.recorder import Recorder
from profiles.document import decode, encode
from profiles.model.loaders import resolve_model
from simulator.values.plan import Plan
from tests.executor.cases import LLAMA_ENTRIES, TINY_LLAMA, make_plan
from tests.executor.processes import run_ranks

WIDE = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8}
LAYER_ELEMENTS = 256 * 256 * 2 + 2 * 256 * 64 + 3 * 256 * 1024 + 2 * 256
CPU = torch.device("cpu")


def _job(source: Path, results: Path) -> None:
    found = []
    for item in json.loads(source.read_text()):
        plan: Plan = decode(Plan, item, where="plan")
        spec, mesh = resolve_model(plan.model), make_mesh(plan, "cpu")
        with Rank(plan, spec, mesh, CPU, Recorder()) as rank:
            # What torch and the project keep after the first is there now.
            gone = [weakref.ref(stage) for stage in rank.stages.values()]
        assert not any(ref() is not None for ref in gone)
        with PeakWatch(CPU) as watch, watch.measured():
            rank = Rank(plan, spec, mesh, CPU, Recorder())
        stays = sum(local(p).nbytes for _, p in rank.held())
        rank.close()
        ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, (watch.peak_bytes, stays))
        found.append(ranks)
    if dist.get_rank() == 0:
        results.write_text(json.dumps(found))


def test_no_more_than_one_unit_is_whole_while_weights_are_made(tmp_path: Path) -> None:
    config = tmp_path / "wide.json"
    config.write_text(json.dumps({**TINY_LLAMA, **WIDE}))
    plans = [
        make_plan(str(config), LLAMA_ENTRIES, dp=4, zero_stage=3),
        make_plan(str(config), LLAMA_ENTRIES, dp=2, tp=2, zero_stage=3),
        make_plan(str(config), LLAMA_ENTRIES, dp=2, tp=2),
        make_plan(str(config), LLAMA_ENTRIES, pp=4, schedule="1f1b", precision="bf16"),
    ]
    source = tmp_path / "plans.json"
    source.write_text(json.dumps([encode(plan) for plan in plans]))
    said = run_ranks(_job, source, tmp_path / "found.json", processes=4)
    assert (tmp_path / "found.json").is_file(), said[-4000:]
    for plan, ranks in zip(plans, json.loads((tmp_path / "found.json").read_text()), strict=True):
        unit = 4 * LAYER_ELEMENTS / plan.degrees.tp
        for peak, stays in ranks:
            assert stays < 4.4 * LAYER_ELEMENTS * 4 / plan.degrees.tp
            assert peak <= 1.1 * stays + unit
