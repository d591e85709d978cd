"""Draws outside torch are alike in stages and whole; what a run on shapes leaves is forgotten."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy
import pytest

from profiles.errors import TraceError
from profiles.model.building.build import build_model
from profiles.model.fake_tensors.trace_generators import Generators
from profiles.model.graph import ModelGraph
from profiles.model.loaders import resolve_model
from profiles.model.tracing.trace import executor_facts, trace_graph
from simulator.values.plan import Recompute
from tests.executor.cases import every_block_a_stage, make_plan
from tests.executor.one_process import worst_error
from tests.executor.remembering_zoo import POSITIONS

_ZOO = "tests.executor.remembering_zoo"


@pytest.mark.parametrize(
    "name",
    [
        "masked",
        "cached",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("scaled", "checking")),
    ],
)
def test_stages_compute_what_the_model_computes(name: str) -> None:
    """Masks that numpy draws between layers had gradients that were off by half; a cached table of
    the trace's was a tensor without values in the run."""
    plan = every_block_a_stage(f"{_ZOO}:{name}", 3)
    assert plan.degrees.pp == 3
    assert worst_error(plan) <= 1e-5


def test_tensor_parallelism_is_derived_beside_caches() -> None:
    """The run on shapes left tensors on meta in the cache, which the blocks' small runs found."""
    POSITIONS.clear()
    facts = executor_facts(resolve_model(f"{_ZOO}:cached"), sequence_length=1)
    assert facts.why_not(2) == ""


def test_a_decoder_keeps_no_cache_in_training_and_says_so() -> None:
    """The first thing that tensor parallelism met in transformers' decoders, whose configuration
    asks for a cache: a block run alone found in it what another had left."""
    spec = resolve_model(f"{_ZOO}:decoding")
    assert executor_facts(spec, sequence_length=1).why_not(2) == ""
    built = build_model(spec, micro_batch=2, sequence_length=1)
    assert vars(built.module)["config"] == SimpleNamespace(use_cache=False, residual_dropout=0.0)
    assert any("keeps no key-value cache" in said for said in built.assumptions)


def _graph(name: str) -> ModelGraph:
    spec = resolve_model(f"{_ZOO}:{name}")
    return trace_graph(spec, micro_batch=2, sequence_length=1, dtype="float32", target="cpu")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("skipping", "a number that its code draws"),
        # Three rows in four are left, where half were expected: a message would not fit.
        ("hiding", "the shapes of what its blocks hand on depend on values"),
    ],
)
def test_what_draws_or_masks_decide_is_not_cut(name: str, why: str) -> None:
    graph = _graph(name)
    assert len(graph.chain) == 1
    assert why in graph.why_not_cuttable
    assert worst_error(every_block_a_stage(f"{_ZOO}:{name}", 3)) <= 1e-5


def test_a_value_of_which_nothing_is_known_and_that_decides_is_refused() -> None:
    with pytest.raises(TraceError, match=r"module the model itself .* a value decides what runs"):
        _graph("choosing")


def test_a_block_that_runs_again_draws_the_same() -> None:
    entries = ("", "layers.1")
    plan = make_plan(f"{_ZOO}:scaled", entries, pp=2, schedule="1f1b", recompute=Recompute.FULL)
    assert worst_error(plan) <= 1e-5


def test_a_watched_run_begins_with_extremes_and_leaves_all_as_it_was() -> None:
    generators = Generators()
    before = generators.states()
    with generators.watched("low") as drawn:
        assert random.random() == numpy.random.rand() == 0
    with generators.watched("high"):
        assert min(random.random(), numpy.random.rand()) > 0.999999
        assert len(numpy.random.choice(9, 3, replace=False)) == 3  # draws until it is content
    with generators.watched() as none:
        pass
    assert (drawn, none) == ([True], [False])
    assert not generators.changed(before)
