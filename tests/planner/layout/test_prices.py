"""Prices of layouts as arrays: the same numbers as one layout at a time, and true lower bounds."""

from dataclasses import replace

import numpy as np
import pytest

from planner.axes import Axes
from planner.layout.layout_question import layout_context
from planner.layout.memory_floor import MemoryFloors
from planner.layout.prices import _OWN, SCHEDULES, LayoutPrices, legal_layouts
from planner.space import row_numbers
from profiles.model.figures.figures_from_config import figures_of_config
from profiles.model.loaders import resolve_model
from simulator.memory.footprint import rank_footprint
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.step.coefficients import shipped_coefficients
from simulator.training_run.step.features import layer_features, mesh_features
from tests.planner.layout.asked import check_arrays, seconds_of
from tests.simulator.described_runs import GPT_RUN, changed

CASES = (
    ("llama-3.1-70b", "megatron-core", "h100-sxm-80gb", 64, 128, 8192, {}),
    ("gpt3-175b", "megatron-2021", "a100-sxm-80gb", 128, 96, 2048, {}),
    ("deepseek-v3", "megatron-core", "h800-sxm-80gb", 256, 512, 4096, {"tp": (1, 2), "cp": (1, 2)}),
    ("llama-3.1-8b", "nanotron", "h100-sxm-80gb", 16, 64, 4096, {}),
    ("gpt2", "torch-fsdp", "a100-sxm-40gb", 16, 64, 1024, {}),
    ("llama-3.1-8b", "torch", "h100-sxm-80gb", 16, 32, 4096, {}),
    ("llama-3.1-8b", "megatron-core", "h100-sxm-80gb", 16, 32, 4096,
     {"schedule": ("zb-h1", "zbv", "v-half", "gpipe"), "tp": (2,)}),
)  # fmt: skip


def laid_out(case):
    model, stack, device, count, batch, seq, pins = case
    figures = figures_of_config(resolve_model(model).config, model)
    rules = load_framework(stack).rules
    base = changed(
        GPT_RUN,
        id=model,
        model=figures,
        device=device,
        tp=1,
        pp=1,
        sequence_parallel=rules.sequence_parallel,
        global_batch=batch,
        seq_len=seq,
        precision="bf16",
        stack=stack,
    )
    whole = changed(base, dp=count, node_devices=8)
    return base, legal_layouts(Axes(**pins), layout_context(whole, rules))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}-{len(case[6])}")
def test_arrays_equal_the_single_run(case):
    check_arrays(*laid_out(case), 40)


@pytest.mark.parametrize("case", CASES[:3], ids=lambda case: case[0])
def test_the_floor_of_a_light_layout_is_what_its_first_rank_keeps(case):
    """With one sequence per micro-batch under 1F1B only what does not last is left out."""
    base, layouts = laid_out(case)
    is_1f1b = (layouts.schedule == SCHEDULES.index("1f1b")) & (layouts.vpp == 1)
    rows = np.flatnonzero(is_1f1b & (layouts.micro_batch == 1))
    few = rows[(base.global_batch // layouts.dp < layouts.pp)[rows]]
    for some in (rows, few) if len(few) else (rows,):
        light = layouts.rows(np.random.default_rng(3).choice(some, 20))
        for index, floor in enumerate(MemoryFloors(base).needed(light).tolist()):
            first, details = rank_footprint(light.run(base, index), 0)
            lasting = first.parameters_bytes + first.optimizer_bytes + first.communication_bytes
            passing = details.all_gradients_bytes + details.all_activations_bytes
            assert floor == pytest.approx(lasting + passing, rel=1e-9)
            assert floor <= first.limiting_bytes


def test_interleaved_bounds_are_close():
    base, layouts = laid_out(CASES[0])
    prices = LayoutPrices(base, shipped_coefficients())
    rows = np.flatnonzero(~prices.exact(layouts))
    chosen = np.random.default_rng(2).choice(rows, 40, replace=False)
    times = prices.step_times(layouts)
    ratios = times[chosen] / seconds_of([layouts.run(base, int(i)) for i in chosen])
    assert min(ratios) > 0.8
    assert np.median(ratios) > 0.98


def test_every_feature_is_gathered_by_what_it_depends_on():
    """Two runs that differ in one axis alone differ in no feature that is gathered without it."""
    base, layouts = laid_out(CASES[2])
    rows = np.flatnonzero(
        (layouts.pp > 1) & (layouts.ep > 1) & (layouts.schedule == SCHEDULES.index("1f1b"))
    )
    run = layouts.run(base, int(rows[0]))
    for other, of in (
        (replace(run, zero_stage=1 - run.zero_stage), layer_features),
        (changed(run, pp=2 * run.degrees.pp), layer_features),
        (replace(run, micro_batch=2 * run.micro_batch), mesh_features),
        (replace(run, recompute="full"), mesh_features),
        # Neighbouring questions share both (known_features.py).
        (replace(run, id="another", global_batch=3 * run.global_batch), layer_features),
        (replace(run, id="another", global_batch=3 * run.global_batch), mesh_features),
    ):
        here, there = of([run]), of([other])
        for name in here.keys() - set(_OWN):
            assert here[name][0] == there[name][0], (name, other)


def test_experts_on_ranks_of_a_tensor_group_are_told_apart():
    """How many of its ranks share the 8 experts depends on dp and cp: beside 4 replicas 2 ranks of
    each tensor group do, beside one all 8, and less of the all-to-all leaves the node."""
    base, layouts = laid_out(("mixtral-8x7b", "megatron-core", "h100-sxm-80gb", 64, 64, 4096,
                              {"ep": (8,), "pp": (1,), "micro_batch": (1,)}))  # fmt: skip
    wide = layouts.rows(np.flatnonzero(layouts.dp * layouts.cp < layouts.ep))
    assert len(set(zip(wide.tp.tolist(), (wide.dp * wide.cp).tolist(), strict=True))) > 4
    times = LayoutPrices(base, shipped_coefficients()).step_times(wide)
    runs = [wide.run(base, index) for index in range(len(wide))]
    assert times == pytest.approx(seconds_of(runs), rel=1e-9)


def test_rows_are_one_number_each_however_large():
    """Beyond 2^62 combinations the numbers so far are counted anew; rows keep their order."""
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 1 << 30, (6, 4))
    keys = rows[rng.integers(0, 6, 200)]
    _, found = np.unique(row_numbers(keys), return_inverse=True)
    _, expected = np.unique(keys, axis=0, return_inverse=True)
    assert np.array_equal(found, expected.ravel())
