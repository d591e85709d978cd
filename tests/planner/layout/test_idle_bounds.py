"""What pipelines of two stages in a V wait at least, against their own timelines."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.layout.layout_question import ground_of
from planner.layout.layouts import layouts_of, meshes_of
from planner.layout.mesh_bound import MeshBounds
from planner.layout.prices import LayoutPrices
from simulator.training_run.step.coefficients import shipped_coefficients
from tests.planner.layout.asked import question


def priced(batch, pp, **pins):
    """Layouts, prices, meshes and the bound of each mesh."""
    asked = question(
        "gpt3-175b", "9x8xh100-sxm", stack="torchtitan", batch=batch, seq=2048, pp=(pp,), **pins
    )
    base, ground = ground_of(asked)
    prices = LayoutPrices(base, shipped_coefficients())
    meshes = meshes_of(asked.space, ground)
    least = MeshBounds(prices, asked.space, ground).of(meshes)
    return layouts_of(asked.space, ground, meshes), prices, meshes, least


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
