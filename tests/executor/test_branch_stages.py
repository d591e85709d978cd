"""Stages that are no run of the traced order, or over which tensors skip: gradients are checked
against the whole model's on two and four processes."""

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from profiles.model.building.build import build_model
from profiles.model.graph import ModelGraph
from profiles.model.loaders import resolve_model
from profiles.model.tracing.trace import tied_parameters, trace_graph
from simulator.values.plan import Plan, Recompute, Stage
from tests.executor.cases import make_plan, run_job
from tests.executor.test_planned_models import models

_TOLERANCE = 1e-5  # as tests/executor/test_planned_models.py
# Recomputation of a unit and mixed precision change the tensors that units are given.
SETTINGS = {
    2: (
        {"pp": 2, "schedule": "1f1b"},
        {"pp": 2, "vpp": 2, "schedule": "interleaved", "recompute": Recompute.FULL},
        {"pp": 2, "schedule": "1f1b", "precision": "bf16"},
    ),
    4: (
        {"pp": 4, "schedule": "1f1b"},
        {"pp": 2, "dp": 2, "zero_stage": 3, "schedule": "1f1b", "recompute": Recompute.ATTENTION},
    ),
}


def graph_of(model: str) -> ModelGraph:
    return trace_graph(
        resolve_model(model), micro_batch=2, sequence_length=16, dtype="float32", target="cpu"
    )


def another_order(graph: ModelGraph, rng: random.Random) -> tuple[str, ...]:
    """The blocks in a random order in which each stands behind those that it takes from."""
    before = {k: {b.producer for b in graph.branches if k in b.consumers} for k in range(99)}
    left, order = set(range(len(graph.chain) - 1)), []
    while left:
        ready = sorted(k for k in left if not before[k] & left)
        # A tower is kept up with for a while, else every cut has a tensor of each.
        order.append(ready[-1] if rng.random() < 0.7 else rng.choice(ready))
        left.remove(order[-1])
    return tuple(graph.chain[k].entry for k in [*order, len(graph.chain) - 1])


def cut_anywhere(plan: Plan, rng: random.Random) -> Plan:
    """The plan with its stages cut at random."""
    n, count = len(plan.block_entries), len(plan.stages)
    cuts = [0, *sorted(rng.sample(range(1, n), count - 1)), n]
    kind = plan.stages[0].recompute[0]
    stages = [
        Stage(first_block=a, last_block=b, recompute=(kind,) * (b - a)) for a, b in pairwise(cuts)
    ]
    return replace(plan, stages=tuple(stages))


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_stages_of_any_blocks_pass_the_gradient_check(processes: int, tmp_path: Path) -> None:
    cases = []
    for number, (name, model) in enumerate(models(tmp_path).items()):
        if name == "resnet50":
            continue  # a chain
        graph = graph_of(model)
        assert graph.branches
        built = build_model(resolve_model(model), micro_batch=2, sequence_length=16)
        tied = tied_parameters(built.module)
        for index, setting in enumerate(SETTINGS[processes]):
            if name == "whisper" and processes == 2:
                continue  # an encoder and a decoder as T5; it runs on four
            if name in ("t5", "whisper") and {"precision", "zero_stage"} & set(setting):
                continue  # FSDP2 refuses a weight that two modules of one stage share
            if name == "unet" and setting == {"pp": 2, "schedule": "1f1b"}:
                continue  # what is planned in bf16 is computed in fp32 first
            if name == "two-tower" and "precision" in setting:
                continue  # as the other
            rng = random.Random(f"{number} {index}")
            order = another_order(graph, rng)
            plan = cut_anywhere(make_plan(model, order, **setting), rng)
            plan = replace(plan, tied_parameters=tied)
            cases.append((f"{name} {setting} {order}", plan))
    results = run_job(cases, processes, tmp_path)
    assert len(results) == len(cases)
    for result in results:
        assert not result.get("error"), result
        assert result["worst"] <= _TOLERANCE, result
        assert result["loss"] is None or abs(result["loss"] - result["reference_loss"]) <= 1e-5
