"""A rank with a share of the tokens sends and holds what is priced; more such plans are walked in
test_walks.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiles.model.loaders import resolve_model
from profiles.model.tracing.traced import trace_model
from simulator.values.plan import Recompute
from tests.executor.fake_accelerator.plans import CONFIGS, LENGTH, Case, plan_of
from tests.executor.fake_accelerator.prices import (
    counted_messages,
    priced_messages,
    priced_peaks,
)
from tests.executor.fake_accelerator.walk import Walk
from tests.executor.fake_accelerator.walks import walks_of

CASE = Case(model="gpt2", tp=8, recompute=Recompute.FULL, sequence_parallel=True)


def test_a_rank_sends_and_holds_what_is_priced(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({**CONFIGS[CASE.model], "n_layer": 2}))
    spec = resolve_model(str(path))
    traced = trace_model(
        spec,
        sequence_length=LENGTH,
        dtype="float32",
        tp_degrees=(1, CASE.tp),
        target="gpu",
        sequence_parallel=True,
    )
    plan = plan_of(CASE, traced)
    ((walk,),) = (walks.values() for walks in walks_of([(plan, spec, [0])], tmp_path))
    assert isinstance(walk, Walk), walk
    sent = counted_messages(plan, 0, list(walk.messages))
    assert sent == priced_messages(plan, traced, 0)
    assert {operation for _, operation in sent} == {"all_gather", "reduce_scatter", "all_reduce"}
    assert walk.step_peak == pytest.approx(priced_peaks(plan, traced)[0], rel=0.03)
