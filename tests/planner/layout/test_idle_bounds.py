"""What pipelines wait at least, against their own timelines."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.layout.layout_question import context_of
from planner.layout.mesh_bound import MeshBounds, _least_waiting
from planner.layout.prices import LayoutPrices, layouts_of, meshes_of
from planner.run_option import RequestedOptions
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import build_schedule, pipeline_names, schedule_kind
from simulator.schedules.timeline import simulate
from simulator.training_run.step.coefficients import shipped_coefficients
from simulator.training_run.step.features import Features, features
from simulator.training_run.step.idle_share import idle_share, least_idle_share
from tests.planner.layout.asked import question
from tests.simulator.described_runs import GPT_RUN, changed


def priced(batch, pp, **pins):
    """Layouts, prices, meshes and the bound of each mesh."""
    asked = question(
        "gpt3-175b", "9x8xh100-sxm", stack="torchtitan", batch=batch, seq=2048, pp=(pp,), **pins
    )
    base, context = context_of(asked)
    prices = LayoutPrices(base, shipped_coefficients())
    meshes = meshes_of(asked.space, context)
    least = MeshBounds(prices, asked.space, context).of(meshes)
    return layouts_of(asked.space, context, meshes), prices, meshes, least


@settings(deadline=None, max_examples=200)
@given(
    name=st.sampled_from(sorted(set(pipeline_names()) - {"dualpipe"})),
    pp=st.integers(2, 8),
    micro=st.integers(1, 24),
    vpp=st.integers(2, 3),
    forward=st.floats(1 / 6, 1 / 2),
    weights=st.floats(0.0, 0.4),
)
def test_equal_stages_wait_no_less_than_the_bound_says(name, pp, micro, vpp, forward, weights):
    """Pipelines of equal stages and messages of no time, a rank's time per micro-batch being 1."""
    kind = schedule_kind(name)
    assume(not kind.why_not(pp, micro))
    vpp = kind.stages_per_rank or vpp
    durations = Durations.even(
        pp * vpp,
        forward_s=forward / vpp,
        backward_input_s=(1 - forward - weights) / vpp,
        backward_weight_s=weights / vpp,
    )
    schedule = build_schedule(
        name, num_ranks=pp, num_microbatches=micro, stages_per_rank=vpp, durations=durations
    )
    waited = max(simulate(schedule, durations).end_s) - micro
    least = _least_waiting(name, pp, vpp, micro)
    assert least <= waited + 1e-9
    if kind.closed_form:
        assert least == pytest.approx(waited)


def test_the_bound_of_several_precisions_is_that_of_the_fastest():
    def least(*precisions):
        options = RequestedOptions(precisions=precisions)
        return priced(24, 4, options=options, cp=(1,), schedule=("1f1b",), zero=(1,))[3]

    bf16, fp32 = least("bf16"), least("fp32")
    assert np.all(bf16 < fp32)
    assert least("fp32", "bf16") == pytest.approx(bf16)


@settings(deadline=None, max_examples=12)
@given(
    batch=st.sampled_from([1, 2, 5, 8, 24, 60]),
    pp=st.sampled_from([2, 3, 5, 8, 16, 24]),
    tp=st.sampled_from([1, 2]),
    cp=st.sampled_from([1, 4]),
)
def test_no_bound_is_above_the_timeline(batch, pp, tp, cp):
    layouts, prices, _, _ = priced(
        batch, pp, tp=(tp,), cp=(cp,), dp=(1,), schedule=("zbv",), zero=(1,), micro_batch=(1,)
    )
    bounds = prices.step_times(layouts)
    for index in range(len(layouts)):
        step = float(prices.exact_parts(layouts.run(prices.base, index)).total_s[0])
        assert bounds[index] <= step * (1 + 1e-9)


def shares(name, pp, vpp, micro, seconds, layers=96):
    """The idle share of a run and its bound; passes, sends and logits take these seconds."""
    kind = schedule_kind(name)
    model = replace(GPT_RUN.model, num_layers=layers)
    run = changed(GPT_RUN, model=model, tp=1, pp=pp, vpp=vpp, schedule=name, global_batch=micro)
    x = features([run], all_fit=True)
    row = {each.name: float(getattr(x, each.name)[0]) for each in fields(x)}
    parts = ("matmul_forward", "matmul_backward", "attention_forward", "cut_outer", "head_matmul")
    row |= dict(zip(parts, seconds, strict=True))
    least = least_idle_share(
        {name: np.asarray([x]) for name, x in row.items()},
        closed=np.asarray([kind.closed_form]),
        interleaved=np.asarray([vpp > 1]),
        in_v=np.asarray([kind.is_v]),
    )
    return idle_share(run, row), float(least[0])


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(["zbv", "v-half", "v-min", "interleaved", "zb-h1"]),
    pp=st.sampled_from([2, 3, 4, 8]),
    per_rank=st.sampled_from([2, 3, 6, 20]),
    seconds=st.lists(st.sampled_from([0.0, 0.01, 1.0, 5.0]), min_size=5, max_size=5),
    layers=st.sampled_from([94, 96]),
)
def test_shares_are_at_least_their_bounds(name, pp, per_rank, seconds, layers):
    """Passes, logits and sends of any proportions; the last rank may have a layer less."""
    vpp = 2 if name == "interleaved" else 1
    found, least = shares(name, pp, vpp, pp * per_rank, seconds, layers)
    assert least <= found * (1 + 1e-9) + 1e-9
    if seconds[3] == 0.0 and name in ("zbv", "interleaved", "zb-h1"):
        assert found <= (pp - 1) * (1 + 1e-9)  # no longer than 1F1B of stages like the busiest


@pytest.mark.parametrize("name", ["zbv", "zb-h1", "interleaved"])
def test_stages_without_layers_have_nothing_to_idle_between(name):
    run = changed(GPT_RUN, tp=1, pp=4, vpp=2 if name == "interleaved" else 1, schedule=name)
    assert idle_share(run, dict.fromkeys((each.name for each in fields(Features)), 0.0)) == 0.0


def test_interleaved_shares_are_mostly_their_bounds():
    rng, ratios = np.random.default_rng(0), []
    for _ in range(40):
        pp, vpp, per_rank = (int(rng.choice(x)) for x in ([2, 4, 8], [2, 3, 4], [1, 2, 4, 16]))
        seconds = rng.random(5) * rng.choice([1.0, 4.0], 5) * [1, 1, 1, 0.05, 1]
        found, least = shares("interleaved", pp, vpp, pp * per_rank, seconds)
        ratios.append(least / found)
    assert np.median(ratios) > 0.99
    assert np.mean(ratios) > 0.95


@pytest.mark.parametrize("pp", [3, 4, 8])
@pytest.mark.parametrize("vpp", [2, 3, 4])
def test_without_logits_the_rank_before_the_last_is_the_longest(pp, vpp):
    """94 layers: the last rank has a layer less than the others."""
    found, least = shares("interleaved", pp, vpp, 4 * pp, (0.3, 0.6, 0.1, 0.0, 0.0), layers=94)
    assert 0.89 * found < least <= found


def test_few_micro_batches_idle_and_the_bound_knows():
    """Two micro-batches on 24 ranks: nearly all of the step is idle, and the bound is near it."""
    layouts, prices, meshes, least = priced(2, 24, tp=(1,), cp=(1,), dp=(1,), schedule=("zbv",))
    runs = [layouts.run(prices.base, index) for index in range(len(layouts))]
    steps = np.asarray([float(prices.exact_parts(run).total_s[0]) for run in runs])
    bounds = prices.step_times(layouts)
    assert np.all(bounds > 0.9 * steps)
    of_mesh = dict(zip(meshes.micro_batch.tolist(), least.tolist(), strict=True))
    for index in range(len(layouts)):
        assert of_mesh[int(layouts.micro_batch[index])] <= steps[index]
    assert of_mesh[1] > 0.6 * steps.min()
