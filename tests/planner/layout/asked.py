"""Questions that several tests ask."""

import numpy as np
import pytest

from planner.axes import Axes
from planner.layout.layout_plan import plan_layout
from planner.layout.layout_question import LayoutQuestion
from planner.layout.memory_floor import MemoryFloors
from planner.layout.prices import LayoutPrices
from planner.run_option import RequestedOptions
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.model.figures.figures_from_config import figures_of_config
from profiles.model.loaders import resolve_model
from simulator.memory.footprint import footprint
from simulator.training_run.step.coefficients import assign, shipped_coefficients
from simulator.training_run.step.features import features
from simulator.training_run.step.step_time import step_parts


def check_arrays(base, layouts, count):
    """Prices and memory floors of layouts at random against each run by itself; their options."""
    rows = np.random.default_rng(3).permutation(len(layouts))[:3000]  # many share features
    layouts = layouts.rows(np.sort(rows))
    prices = LayoutPrices(base, shipped_coefficients())
    times, exact = prices.step_times(layouts), prices.exact(layouts)
    floors = MemoryFloors(base).needed(layouts)
    chosen = np.random.default_rng(1).choice(len(layouts), min(count, len(layouts)), replace=False)
    runs = [layouts.run(base, index) for index in chosen.tolist()]
    for index, run, time_s in zip(chosen.tolist(), runs, seconds_of(runs).tolist(), strict=True):
        if exact[index]:
            assert times[index] == pytest.approx(time_s, rel=1e-9), run
        assert times[index] <= time_s * (1 + 1e-9), run
        assert floors[index] <= footprint(run).needed_bytes * (1 + 1e-9), run
    return {layouts.options[int(layouts.option[index])] for index in chosen.tolist()}


def question(model="llama-3.1-8b", on="2x8xh100-sxm", stack="megatron-core", batch=32, seq=4096,
             precision="bf16", options=None, **pins):  # fmt: skip
    return LayoutQuestion(
        name=model,
        model=figures_of_config(resolve_model(model).config, model),
        cluster=get_cluster(on),
        stack=stack,
        global_batch=batch,
        seq_len=seq,
        precision=precision,
        space=Axes(**pins),
        options=options or RequestedOptions(),
    )


def solved(asked, **options):
    return plan_layout(asked, clock=lambda: 0.0, **options)


def seconds_of(runs):
    """[runs] Step times of runs that fit, as runs are predicted: not by the search's arrays."""
    assigned = assign(runs)
    values = assigned.from_file(shipped_coefficients())
    return step_parts(features(runs, all_fit=True), assigned.of(values)).total_s
