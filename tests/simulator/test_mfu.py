"""MFU has one definition, however a step is predicted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.hardware.catalogue.catalog import get_cluster, get_device
from profiles.model.figures.transformer import Transformer
from profiles.model.graph import OpKind
from shardwright import api
from simulator.mfu import graph_model_flop, model_flop_per_token
from simulator.traced.predict import predict
from simulator.training_run.explain.run_prediction import mfu_of_run
from simulator.values.prediction import Interval
from simulator.values.workload import Workload
from tests.planner.layout.asked import question, solved
from tests.simulator.described_runs import DEEPSEEK_V3, LLAMA_8B, MIXTRAL

BATCH, TOKENS = 2, 64
WIDTH, WORDS, LAYERS, HEADS = 64, 256, 4, 4
ON = "1x2xh100-sxm"


@pytest.fixture(scope="module")
def alike():
    return api.trace("tests.equality.models:alike", tp_degrees=(1,))


def test_a_traced_transformer_counts_parameters_and_the_full_score_matrix(alike):
    # A layer: four attention projections, two of the feed-forward, their biases and two norms;
    # behind the layers a norm and the head. The table of embeddings multiplies nothing.
    layer = 4 * WIDTH**2 + 2 * 256 * WIDTH + (256 + WIDTH) + 4 * WIDTH
    parameters = LAYERS * layer + 2 * WIDTH + WORDS * WIDTH
    # H Q = WIDTH.
    expected = BATCH * TOKENS * (6 * parameters + 12 * LAYERS * WIDTH * TOKENS)
    # Norms and biases of the figures are those of an average layer.
    assert graph_model_flop(alike.at(BATCH)) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("model", "active", "near"), [(MIXTRAL, 12.88e9, 1e-3), (DEEPSEEK_V3, 37e9, 0.02)]
)
def test_a_token_visits_the_active_parameters(
    model: Transformer, active: float, near: float
) -> None:
    """As published, with the table of embeddings, which multiplies nothing."""
    table = model.hidden_size * model.vocab_size
    assert model_flop_per_token(model, 0.0) / 6 + table == pytest.approx(active, rel=near)


def test_a_window_counts_the_keys_that_it_holds():
    """16 of 32 layers see 1,024 keys at most, and no more than the sequence has."""
    near = replace(LLAMA_8B, window_layers=16, window=1024)
    more, less = (model_flop_per_token(model, 4096) for model in (LLAMA_8B, near))
    assert more - less == 12 * 32 * 128 * 16 * (4096 - 1024)
    assert model_flop_per_token(near, 512) == model_flop_per_token(LLAMA_8B, 512)


def test_frozen_weights_count_the_gradients_of_inputs_alone():
    """2 of the forward and 2 of the inputs' gradients, without the 2 of the weights' gradients."""
    whole, adapters = (
        model_flop_per_token(LLAMA_8B, 4096, adapters=frozen) for frozen in (False, True)
    )
    attention = 12 * 32 * 128 * 32 * 4096
    assert adapters - attention == pytest.approx((whole - attention) * 2 / 3)


def test_a_module_that_is_no_transformer_counts_its_own_products():
    graph = api.trace("tests.equality.models:unlike", tp_degrees=(1,)).at(BATCH)
    ops = [op for block in graph.blocks for op in (*block.forward_ops, *block.backward_ops)]
    products = sum(op.work_flop for op in ops if op.kind is not OpKind.ATTENTION)
    # Two products of [TOKENS, TOKENS] scores a layer and head, and twice that in the backward.
    attention = 3 * LAYERS * 2 * 2 * BATCH * TOKENS**2 * WIDTH
    assert graph_model_flop(graph) == products + attention


def test_a_plan_of_blocks_and_a_layout_have_one_definition():
    """Of equal steps they are equal; they were 1.10 apart at 8192 tokens."""
    tokens, batch = 2048, 8
    traced = api.trace("tiny-llama-demo", sequence_length=tokens, tp_degrees=(1,))
    run = solved(question("tiny-llama-demo", ON, "torch", batch, tokens)).chosen.run
    work = Workload(global_batch=batch, sequence_length=tokens)
    plan = api.plan(traced, ON, work, solver="dp").plan
    found = predict(plan, traced, get_cluster(ON))
    step = Interval(value=1.0, low=1.0, high=1.0)
    of_layout = mfu_of_run(run, step).value * run.degrees.num_devices
    of_blocks = found.mfu.value * found.step_time_s.value * plan.degrees.num_devices
    assert of_blocks == pytest.approx(of_layout, rel=1e-12)
    peak = get_device("h100-sxm").peak("bf16").value
    flop = batch * tokens * model_flop_per_token(run.model, tokens)
    assert of_layout * peak == pytest.approx(flop, rel=1e-12)
