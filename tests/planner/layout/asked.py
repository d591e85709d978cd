"""Questions that several tests ask."""

import numpy as np

from planner.axes import Axes
from planner.layout.layout_plan import plan_layout
from planner.layout.layout_question import LayoutQuestion
from planner.run_option import RequestedOptions
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.model.figures.figures_from_config import figures_of_config
from profiles.model.loaders import resolve_model
from simulator.training_run.step.coefficients import assign, shipped_coefficients
from simulator.training_run.step.features import features
from simulator.training_run.step.step_time import step_parts


def some_of(layouts, count=3000):
    """At random; many of them share a representative."""
    chosen = np.random.default_rng(3).permutation(len(layouts))[:count]
    return layouts.rows(np.sort(chosen))


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
