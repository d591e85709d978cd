"""A short pipeline that is measured: which blocks get a time, and what cannot be measured so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.probe_pipeline import BlockProbe, even_stages
from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.loaders import resolve_model
from profiles.model.tracing.traced import TracedModel, trace_model
from tests.executor.cases import write_models
from tests.simulator.hand_made import cluster, device


@pytest.fixture
def traced(tmp_path: Path) -> TracedModel:
    spec = resolve_model(write_models(tmp_path)["gpt2"])
    return trace_model(spec, sequence_length=16, dtype="float32", target="cpu")


def machine(count: int = 2) -> Cluster:
    return cluster(1, count, of=replace(device(), type="cpu"))


def test_the_plan_has_two_micro_batches_per_device(traced: TracedModel, tmp_path: Path) -> None:
    spec = resolve_model(write_models(tmp_path)["gpt2"])
    plan = BlockProbe(spec, traced, machine()).pipeline_plan(3)
    assert (plan.degrees.pp, plan.num_microbatches, plan.micro_batch) == (2, 4, 3)
    assert plan.tied_parameters == traced.tied_parameters


def test_one_device_has_no_pipeline(traced: TracedModel, tmp_path: Path) -> None:
    spec = resolve_model(write_models(tmp_path)["gpt2"])
    assert BlockProbe(spec, traced, machine()).has_pipeline
    assert not BlockProbe(spec, traced, machine(1)).has_pipeline
    assert not BlockProbe(spec, traced, machine(16)).has_pipeline  # more devices than blocks
    with pytest.raises(InputError, match="needs two or more devices and at least as many blocks"):
        BlockProbe(spec, traced, machine(1)).pipeline_plan(2)


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=20), st.data())
def test_stages_cover_the_chain_with_a_block_each(times: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(times)))
    stages = even_stages(times, count)
    assert len(stages) == count
    assert [s.first_block for s in stages] == [0, *(s.last_block for s in stages[:-1])]
    assert stages[-1].last_block == len(times)
    assert min(s.num_blocks for s in stages) >= 1


def test_equal_blocks_are_dealt_evenly() -> None:
    assert [s.num_blocks for s in even_stages([1.0] * 8, 4)] == [2, 2, 2, 2]
