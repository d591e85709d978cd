"""More to choose from is never slower: devices, memory, freed pins, a longer limit."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from planner.axes import Axes
from planner.layout.layout_question import solve_layouts
from planner.layout.layout_relax import _faster_network
from planner.layout.memory_floor import MemoryLimit
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_cluster, get_device
from simulator.training_run.fit.memory_interval import out_of_memory_probability
from simulator.training_run.run.training_run import setting_of
from simulator.training_run.step.coefficients import shipped_coefficients
from tests.planner.layout.asked import question

MODELS = ("gpt2", "llama-3.1-8b", "mixtral-8x7b", "gpt3-175b")
NODES = ("8xh100-sxm", "4xh100-sxm", "8xa100-sxm-40gb", "8xb200-sxm", "72xgb200-nvl72")
STACKS = ("megatron-core", "torch", "torchtitan", "nanotron")
# Rounding of sums of some dozens of terms.
SAME = 1 + 1e-9


def asked_of(counts, nodes):
    return st.fixed_dictionaries(
        {
            "model": st.sampled_from(MODELS),
            "nodes": st.sampled_from(counts),
            "node": st.sampled_from(nodes),
            "stack": st.sampled_from(STACKS),
            "batch": st.sampled_from((12, 24, 32, 60, 128)),
            "seq": st.sampled_from((1024, 2048, 4096)),
        }
    )


# Racks of 72 have ten times the layouts: a search of them takes ten seconds where its schedules
# have no closed form. They have a test below, and are in the study of make validate.
SMALL = asked_of((1, 2), NODES[:-1])
ASKED = asked_of((1, 2, 3, 5, 8), NODES)


def fastest(asked, **more):
    """The best layout, or None where none fits."""
    try:
        outcome = solve_layouts(
            asked, shipped_coefficients(), clock=more.pop("clock", lambda: 0.0), **more
        )
    except InputError:
        return None
    return outcome.layouts[0] if outcome.layouts else None


def seconds(asked, **more):
    found = fastest(asked, **more)
    return found.step_time_s if found else float("inf")


def check(words, change, amount):
    """That a change which gives more to choose from is not slower."""
    nodes = words["nodes"]
    given = {name: words[name] for name in ("model", "stack", "batch", "seq")}
    asked = question(on=f"{nodes}x{words['node']}", **given)
    best = fastest(asked)
    now = best.step_time_s if best else float("inf")
    if change == "devices":
        larger = replace(asked, cluster=get_cluster(f"{nodes + amount}x{words['node']}"))
        assert seconds(larger) <= now * SAME
    elif change == "memory":
        assert seconds(asked, capacity=1 + amount / 10) <= now * SAME
    elif change == "risk":
        assert seconds(replace(asked, fit_risk=0.1 + amount / 20)) <= now * SAME
    elif change == "pin" and best is not None:
        for axis in ("tp", "pp", "dp", "cp", "zero_stage", "micro_batch", "recompute"):
            value = setting_of(best.run, axis)
            other = value + amount if isinstance(value, int) else "full"
            pins = {axis.removesuffix("_stage"): (other,)}
            if axis == "zero_stage" and other > 3:
                continue
            assert now <= seconds(replace(asked, space=Axes(**pins))) * SAME
    elif change == "limit":
        ticks = [0.0]

        def clock():
            ticks[0] += 1.0
            return ticks[0]

        def within(limit):
            ticks[0] = 0.0
            return seconds(asked, clock=clock, time_limit_s=limit)

        assert now <= within(10.0 + 20.0 * amount) * SAME <= within(10.0) * SAME**2
    if best is not None:
        usable = get_device(best.run.device).usable_bytes
        limit = MemoryLimit(capacity_bytes=usable, risk=asked.fit_risk)
        needed = best.memory.needed_bytes
        assert needed <= limit.of(best.run) <= usable
        assert out_of_memory_probability(best.run, needed, usable) <= asked.fit_risk + 1e-9


CHANGES = ("devices", "memory", "risk", "pin", "limit")
RELAXED = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
)


@settings(RELAXED, max_examples=10)
@given(SMALL, st.sampled_from(CHANGES), st.integers(1, 5))
def test_more_is_never_slower(words, change, amount):
    check(words, change, amount)


@pytest.mark.slow
@settings(RELAXED, max_examples=300)
@given(ASKED, st.sampled_from(CHANGES), st.integers(1, 12))
def test_more_is_never_slower_in_many_questions(words, change, amount):
    check(words, change, amount)


def test_racks_of_72():
    """28 racks once took longer than 24, and 26 had no answer."""
    times = [
        seconds(question("llama-3.1-70b", f"{racks}x72xgb200-nvl72", batch=2048, seq=8192))
        for racks in (7, 24, 25, 26, 27, 28, 30)
    ]
    assert times == sorted(times, reverse=True)
    assert times[-1] < float("inf")


@pytest.mark.parametrize("stack", ["megatron-core", "torch-fsdp"])
def test_a_faster_network_is_never_slower(stack):
    asked = question("llama-3.1-8b", "8x8xh100-sxm", stack=stack, batch=256)
    assert seconds(asked, altered=lambda run: _faster_network(run, 2.0)) <= seconds(asked) * SAME
