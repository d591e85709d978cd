"""Peak memory under ZeRO 2 and 3, predicted and as the allocator saw it, on two processes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from executor.memory import PeakWatch
from executor.mesh import make_mesh
from executor.rank import Rank
from executor.recorder import Recorder
from executor.train import train_step
from profiles.document import decode, encode
from profiles.model.graph import ModelGraph
from profiles.model.loaders import resolve_model
from profiles.model.tracing.trace import trace_graph
from simulator.traced.predict import predict
from simulator.values.plan import Plan
from tests.executor.cases import make_plan
from tests.executor.processes import run_ranks
from tests.simulator.hand_made import cluster, device

# All were within 0.1 % on 2026-11-23 but the equal layers in fp32 under ZeRO 3: 1.4 % above.
NEAR = 0.02
ALL = [(precision, zero_stage) for precision in ("fp32", "bf16") for zero_stage in (2, 3)]
MACHINE = cluster(1, 2, of=replace(device(), type="cpu"))


class Traced:
    """A factory's graph at the micro-batch that is asked for."""

    content_hash = ""

    def __init__(self, model: str, precision: str) -> None:
        self.spec = resolve_model(model)
        self.dtype = {"fp32": "float32", "bf16": "bfloat16"}[precision]

    def at(self, micro_batch: int, tp: int = 1) -> ModelGraph:
        return trace_graph(
            self.spec,
            micro_batch=micro_batch,
            sequence_length=16,
            dtype=self.dtype,
            tp=tp,
            target="cpu",
        )


def _peak(plan: Plan) -> float:
    spec, mesh, cpu = resolve_model(plan.model), make_mesh(plan, "cpu"), torch.device("cpu")
    recorder = Recorder()
    with PeakWatch(cpu) as watch:
        rank = Rank(plan, spec, mesh, cpu, recorder)
        train_step(rank, recorder)
        with watch.measured():
            train_step(rank, recorder)
    rank.close()
    return watch.peak_bytes


def _peaks(source: Path, results: Path) -> None:
    found = []
    for item in json.loads(source.read_text()):
        plan: Plan = decode(Plan, item, where="the plan")
        ranks = [0.0] * dist.get_world_size()
        dist.all_gather_object(ranks, _peak(plan))
        found.append(ranks)
    if dist.get_rank() == 0:
        results.write_text(json.dumps(found))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["table", "two_tables", "table_and_head", "tied_table", "even", "uneven"]
)
def test_a_rank_s_peak_is_as_predicted(name: str, tmp_path: Path) -> None:
    model = f"tests.oracles.sharded_models:{name}"
    plans, told = [], []
    for precision, zero_stage in ALL:
        traced = Traced(model, precision)
        entries = tuple(ref.entry for ref in traced.at(2).chain)
        plan = make_plan(model, entries, dp=2, zero_stage=zero_stage, precision=precision)
        plans.append(plan)
        told.append(predict(plan, traced, MACHINE).ranks[0].peak_bytes)
    (tmp_path / "plans.json").write_text(json.dumps([encode(plan) for plan in plans]))
    results = tmp_path / "results.json"
    said = run_ranks(_peaks, tmp_path / "plans.json", results, processes=2)
    assert results.is_file(), said[-4000:]
    for predicted, seen in zip(told, json.loads(results.read_text()), strict=True):
        assert predicted == pytest.approx(min(seen), rel=NEAR)
