"""The search over layouts against pricing every one of them by itself."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from planner.axes import Axes
from planner.layout.layout_plan import plan_layout
from planner.layout.layout_question import LayoutSolver, context_of
from planner.layout.memory_floor import MemoryFloors, MemoryLimit
from planner.layout.prices import legal_layouts
from planner.space import meshes_of
from profiles.document import encode
from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import get_device
from simulator.memory.footprint import footprint
from simulator.training_run.framework.framework import framework_names, load_framework, memory_of
from simulator.training_run.work.stage_layers import stage_layers
from tests.planner.layout.asked import question, seconds_of, solved


def enumerated(asked):
    """The least step time of all layouts that fit, each a run that is predicted by itself."""
    answer = solved(asked)
    split = load_framework(asked.stack).rules.sequence_parallel
    base = replace(answer.chosen.run, id=asked.name, sequence_parallel=split)
    _, context = context_of(asked)
    layouts = legal_layouts(asked.space, context)
    limit = MemoryLimit(capacity_bytes=get_device(base.device).usable_bytes)
    fitting = []
    for index in range(len(layouts)):
        for run in partly_recomputed(layouts.run(base, index)):
            memory = footprint(run)
            if not memory.refused and memory.needed_bytes <= limit.of(run):
                fitting.append(run)
    return answer, min(seconds_of(fitting))


def partly_recomputed(run):
    """The run, or where its framework allows it every number of layers that are run again."""
    if run.recompute != "full" or not load_framework(run.stack).rules.partial_recompute:
        return (run,)
    most = math.ceil(stage_layers(run)[0] / run.degrees.vpp)
    return tuple(replace(run, recompute_layers=layers) for layers in range(1, most + 1))


@pytest.mark.parametrize(
    "asked",
    [
        question(tp=(1, 4), cp=(1, 2), pp=(1, 2, 3, 4), micro_batch=(1, 2)),
        question(stack="megatron-2021", on="2x8xa100-sxm-40gb", batch=16, seq=2048),
        question(stack="nanotron", batch=64, tp=(1, 8), pp=(1, 2, 5), micro_batch=(1, 4)),
        question(
            model="mixtral-8x7b",
            on="4x8xh100-sxm",
            tp=(1, 2),
            cp=(1,),
            pp=(1, 4),
            dp=(4, 8),
            batch=64,
        ),
        question(schedule=("zb-h1", "1f1b"), tp=(1, 2), cp=(1,), pp=(2, 4, 6), batch=16),
        question(on="1x8xa100-sxm-40gb", batch=8, precision="bf16"),
        question(
            "llama-3.1-70b",
            "4x8xh100-sxm",
            batch=16,
            seq=8192,
            recompute=("full",),
            tp=(4, 8),
            cp=(1,),
        ),
        question(
            "llama-3.1-70b", "4x8xh100-sxm", batch=16, recompute=("full", "none"), tp=(4,), pp=(8,)
        ),
        question(
            *("deepseek-v3", "16x8xb200-sxm"),
            tp=(1, 2),
            cp=(1,),
            pp=(2, 4),
            vpp=(2, 4, 8),
            ep=(32,),
            batch=64,
            micro_batch=(1,),
        ),
    ],
    ids=[
        "dense",
        "2021",
        "nanotron",
        "experts",
        "zero-bubble",
        "tight",
        "full",
        "partly",
        "chunks",
    ],
)
def test_the_optimum_of_enumeration(asked):
    answer, best = enumerated(asked)
    assert answer.status == "optimal"
    assert answer.gap == 0.0
    assert answer.chosen.prediction.step_time_s.value == pytest.approx(best, rel=1e-9)
    assert answer.bound == answer.chosen.prediction.step_time_s.value
    assert answer.chosen.required_memory_bytes == footprint(answer.chosen.run).needed_bytes
    assert answer.considered == answer.too_big + answer.pruned + answer.refined


def test_no_fewer_recomputed_layers_fit_than_are_tried():
    asked = question(
        "llama-3.1-70b", "4x8xh100-sxm", seq=8192, tp=(4,), cp=(1,), pp=(4,), zero=(1,),
        micro_batch=(1,), schedule=("interleaved",), recompute=("full",),
    )  # fmt: skip
    base, context = context_of(asked)
    layouts, limit = legal_layouts(asked.space, context), 60 * 2.0**30
    least = MemoryFloors(base).fewest_recomputed(layouts, np.full(len(layouts), limit))
    assert max(least) > 1
    for index, layers in enumerate(least.tolist()):
        fewer = replace(layouts.run(base, index), recompute_layers=layers - 1)
        assert layers == 1 or footprint(fewer).needed_bytes > limit


def test_parts_add_up_and_runners_up_are_slower_and_of_other_families():
    answer = solved(question())
    shown = (answer.chosen, *answer.alternatives)
    times = [choice.prediction.step_time_s.value for choice in shown]
    assert times == sorted(times)
    assert len({(c.run.degrees.mesh_text, c.run.schedule) for c in shown}) == 4
    for choice in shown:
        seconds = sum(choice.prediction.seconds.values())
        assert seconds == pytest.approx(choice.prediction.step_time_s.value, rel=1e-6)
    assert all("slower" in choice.why_not_first for choice in answer.alternatives)


def test_runners_up_of_one_mesh_differ_in_schedule():
    answer = solved(question(schedule=("zb-h1", "1f1b"), tp=(2,), cp=(1,), pp=(2,), dp=(4,)))
    assert {c.run.schedule for c in (answer.chosen, *answer.alternatives)} == {"zb-h1", "1f1b"}


@pytest.mark.parametrize(("pins", "found"), [({"pp": (9, 10)}, {9, 10}), ({}, {9})])
def test_of_numbers_of_stages_that_hold_the_same_the_least_is_taken_if_they_are_free(pins, found):
    # 32 layers on 9 or 10 ranks: 4 on the fullest, 3 on the last.
    asked = question(on="12x8xh100-sxm", batch=64, tp=(1,), cp=(1,), **pins)
    layouts = legal_layouts(asked.space, context_of(asked)[1])
    assert set(layouts.pp.tolist()) & {9, 10} == found


def test_equal_inputs_give_equal_answers():
    asked = question(tp=(2,), cp=(1,), recompute=("none", "full"))
    answers = {str(encode(solved(asked, explain=True))) for _ in range(4)}
    assert len(answers) == 1


def test_a_large_cluster_is_proven():
    answer = solved(question("llama-3.1-405b", "2048x8xh100-sxm", batch=2048, seq=8192))
    assert answer.status == "optimal"
    assert answer.considered > 10_000


def test_pins_are_kept():
    answer = solved(question(tp=(2,), pp=(4,), zero=(0,), micro_batch=(2,), recompute=("full",)))
    run = answer.chosen.run
    assert (run.degrees.tp, run.degrees.pp) == (2, 4)
    assert (run.zero_stage, run.micro_batch, run.recompute) == (0, 2, "full")


def test_no_schedule_is_one_pipeline_stage():
    free, one = solved(question(schedule=("none",))), solved(question(pp=(1,)))
    assert (free.chosen.run.degrees.pp, free.chosen.run) == (1, one.chosen.run)


def test_nothing_fits_says_what_would():
    answer = solved(question("llama-3.1-70b", "1x4xh100-sxm"), device_names=("h200-sxm",))
    assert answer.status == "infeasible"
    why = answer.infeasibility
    assert why.term == "optimizer states"
    assert why.needed_bytes > why.capacity_bytes
    assert [r.flag for r in why.relaxations] == ["--on 8x4xh100-sxm"]
    asked = question("llama-3.1-70b", "8x4xh100-sxm")
    assert solved(asked).chosen.prediction.step_time_s.value == why.relaxations[0].step_time_s
    # Half of it does not fit, or it would have been offered.
    half = solved(question("llama-3.1-70b", "4x4xh100-sxm"), explain=True)
    assert (half.status, half.sensitivities) == ("infeasible", ())


def test_a_pin_that_leaves_no_memory_is_offered_back():
    answer = solved(question("llama-3.1-70b", "8x8xh100-sxm", tp=(1,), pp=(1,)))
    assert answer.status == "infeasible"
    assert "no --pp" in {r.flag for r in answer.infeasibility.relaxations}


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ({"tp": (3,)}, "^--tp 3: tp must divide the model's 32 attention heads. Use --tp 2 or 4"),
        ({"cp": (3,)}, "^--cp 3: .* the 4096 tokens, so cp must divide half of them"),
        ({"ep": (2,)}, "^--ep 2: the model has no experts. Use --ep 1.$"),
        ({"pp": (64,)}, "^--pp 64: every stage has one of the model's 32 layers or more"),
        ({"dp": (5,)}, "^--dp 5: dp must divide .* 32. Use --dp 4 or 8, or --global-batch 30.$"),
        ({"tp": (8,), "dp": (4,)}, "dp, here 32, may use the 16 devices .* or 32 devices"),
        ({"micro_batch": (7,)}, "^--micro-batch 7: micro-batch must divide --global-batch 32"),
        ({"dp": (4,), "micro_batch": (16,)}, "dp x micro-batch must divide --global-batch 32"),
        ({"schedule": ("none",), "pp": (2,)}, "schedule none is for one stage.* Use --pp 1, or"),
        ({"pp": (1,), "vpp": (2,)}, "vpp of 2 or more needs a pipeline.*Use --pp 2, or --vpp 1.$"),
        ({"pp": (4,), "vpp": (3,)}, "here 12, must cut 32 layers into .* Use --vpp 2 or 4.$"),
        ({"vpp": (2,), "dp": (16,)}, "pp is 2 or more with it, and .*32, may use the 16 devices"),
        ({"zero": (3,)}, "megatron-core has ZeRO 0, 1; these have it: .*torch.* Use --zero 1.$"),
        ({"zero": (1,), "tp": (16,)}, "^--tp 16 with --zero 1: without replicas"),
        (
            {"recompute": ("alternate",)},
            "no such kind; these have it: torchtitan.* none, selective or",
        ),
        (
            {"schedule": ("interleaved",), "pp": (2,), "dp": (8,), "micro_batch": (4,)},
            "interleaved needs .* there are 1 per replica",
        ),
    ],
)
def test_contradictions_name_the_pins(pins, words):
    with pytest.raises(InputError, match=words):
        solved(question(**pins))


def test_axes_that_a_framework_lacks():
    with pytest.raises(
        InputError,
        match=r"nanotron has no such axis.*; these have it: .*megatron-core.*\(--stack\)\. "
        "Use --cp 1",
    ):
        solved(question(stack="nanotron", cp=(2,)))


def test_unknown_framework_names_the_nearest():
    with pytest.raises(UnknownNameError, match="megatron-core"):
        solved(question(stack="megatron-cor"))


def test_bad_counts():
    with pytest.raises(InputError, match="--global-batch must be 1 or more"):
        solved(question(batch=0))
    with pytest.raises(InputError, match="--tp must be 1 or more"):
        Axes(tp=(0,))
    with pytest.raises(InputError, match="--zero must be"):
        Axes(zero=(4,))


def test_a_limit_of_zero_is_an_error_and_an_interrupt_keeps_the_best():
    ticks = iter(range(10**6))
    with pytest.raises(InputError, match="--time-limit"):
        plan_layout(
            question(),
            clock=lambda: float(next(ticks)),
            time_limit_s=0.0,
        )

    def interrupt(bound, incumbent, gap, seconds):
        if incumbent < float("inf"):
            raise KeyboardInterrupt

    asked = question(schedule=("zb-h1", "1f1b"), batch=16)
    answer, best = solved(asked, progress=interrupt), solved(asked)
    assert (answer.status, best.status) == ("feasible", "optimal")
    # The first layout is not the best; what is proved is below that too.
    assert answer.chosen.prediction.step_time_s.value > best.chosen.prediction.step_time_s.value
    assert answer.bound <= best.chosen.prediction.step_time_s.value


def test_a_limit_counts_from_the_start_whatever_the_clock_says():
    asked = question(on="1x8xh100-sxm", batch=16, tp=(1,), cp=(1,), pp=(1, 2))
    late = plan_layout(asked, clock=lambda: 1000.0, time_limit_s=60.0, explain=True)
    assert late.sensitivities
    assert late == solved(asked, explain=True)
    assert replace(late, sensitivities=()) == solved(asked)


@pytest.mark.parametrize(("nodes", "seconds"), [(2, 1.0), (2, 3.0), (2, 20.0), (5, 1.0), (5, 4.0)])
def test_what_is_proved_at_any_time_is_below_the_best(nodes, seconds):
    """Of 40 devices the best leaves eight idle: such layouts are searched last."""
    asked = question(schedule=("zb-h1", "1f1b"), on=f"{nodes}x8xh100-sxm", batch=16)
    ticks = itertools.count(1000.0)
    best = LayoutSolver(clock=lambda: 0.0).search(asked)
    end_s = 1002.0 + seconds  # the clock is read before the search and at its start
    solver = LayoutSolver(clock=lambda: next(ticks), end_s=end_s)
    early = solver.search(asked)
    assert not early.complete
    assert 0.5 * best.values[0] < early.bound_s < best.values[0] == best.bound_s
    assert all(value >= best.values[0] for value in early.values)


def test_meshes_that_are_not_opened_count_by_their_kinds():
    """All of them where any layout is too slow: per mesh two ZeRO stages and every recompute
    kind."""
    asked = question()
    _, context = context_of(asked)
    none = LayoutSolver(clock=lambda: 0.0).search(asked, below=1e-12)
    each = len(context.rules.zero_stages) * len(context.rules.recompute)
    count = each * len(meshes_of(asked.space, context))
    assert each == 2 * len(context.rules.recompute) > 2
    assert (none.considered, none.pruned, none.refined, none.layouts) == (count, count, 0, ())
    found = LayoutSolver(clock=lambda: 0.0).search(asked)
    assert found.considered == found.pruned + found.too_big + found.refined > len(found.layouts)


def test_every_framework_has_rules_that_its_memory_files_cover():

    for stack in framework_names():
        answer = solved(question("gpt2", stack=stack, on="1x2xh100-sxm", batch=4))
        for zero in load_framework(stack).rules.zero_stages:
            memory_of(replace(answer.chosen.run, zero_stage=zero))


def test_search_is_quick_enough_to_be_asked_often():
    """Not a timed test: fewer than one layout in twenty is looked at one by one."""
    answer = solved(question("llama-3.1-70b", "16x8xh100-sxm", batch=1024, seq=8192))
    assert answer.refined < answer.considered / 20
