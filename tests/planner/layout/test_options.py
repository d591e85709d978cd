"""What a layout may choose beside its axes: the arrays, the optimum, and what is said of it."""

from dataclasses import replace

import numpy as np
import pytest

from planner.layout.layout_question import context_of
from planner.layout.layout_relax import offload_candidates
from planner.layout.memory_floor import MemoryLimit
from planner.layout.prices import legal_layouts
from planner.run_option import EVERY_REPLICA, RequestedOptions, RunOption, run_options
from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import get_cluster, get_device, get_link
from simulator.memory.footprint import footprint
from simulator.memory.host_offload import host_memory_short
from simulator.training_run.framework.framework import load_framework
from simulator.values.degrees import AXIS_ORDERS
from tests.planner.layout.asked import check_arrays, question, seconds_of, solved
from tests.planner.layout.clusters import fat_tree, torus, two_sites

SITES = two_sites(2, gigabits=100.0)
LOCAL = RequestedOptions(local_steps=(1, 50), orders=("any",))
ASKED = {
    "sites": (replace(question(batch=64, tp=(1, 2)), cluster=SITES), RequestedOptions()),
    "three sites": (
        replace(question(batch=48, tp=(2,), cp=(1,)), cluster=two_sites(2, sites=3)),
        LOCAL,
    ),
    "thin spine": (
        replace(question(batch=64, tp=(2, 4)), cluster=fat_tree(oversubscription=8.0)),
        RequestedOptions(),
    ),
    "experts on sites": (
        replace(question("mixtral-8x7b", batch=64, tp=(1, 2), cp=(1,)), cluster=SITES),
        RequestedOptions(reductions=("fp32", "bf16")),
    ),
    "orders": (question(batch=32, tp=(1, 2), cp=(1,)), RequestedOptions(orders=("any",))),
    "compression": (
        question(batch=32, tp=(1, 2), cp=(1,)),
        RequestedOptions(compressions=("none", "powersgd-4", "topk-0.001"), reductions=("bf16",)),
    ),
    "local": (
        replace(question(batch=64, tp=(1, 2), cp=(1,)), cluster=SITES),
        LOCAL,
    ),
    "every replica": (question(batch=32, tp=(2,), cp=(1,)), RequestedOptions(local_steps=(1, 8))),
    "precisions": (
        question(batch=32, tp=(1, 2), cp=(1,)),
        RequestedOptions(precisions=("any",), wide_layers=1),
    ),
    "offload": (
        question("llama-3.1-70b", "1x8xh100-sxm", batch=8, cp=(1,), seq=2048),
        RequestedOptions(optimizer_offload=True, activation_offloads=(0.0, 0.5)),
    ),
    "offloaded shards": (
        question("llama-3.1-8b", "1x2xh100-sxm", stack="torch", batch=8, seq=2048),
        RequestedOptions(optimizer_offload=True),
    ),
    "shared tokens": (
        question("llama-3.1-8b", "1x4xh100-sxm", stack="torch", batch=8, seq=2048, tp=(1, 2, 4)),
        RequestedOptions(),
    ),
    "hybrid sharding": (
        question(
            on="4x8xh100-sxm", stack="torchtitan", tp=(1, 2), cp=(1, 2), dp_replicate=(1, 2, 4)
        ),
        RequestedOptions(),
    ),
    "hybrid sharding of experts": (
        question("mixtral-8x7b", on="4x8xh100-sxm", cp=(1,), ep=(1, 4), dp_replicate=(2,)),
        RequestedOptions(orders=("any",), optimizer="muon"),
    ),
    "muon": (
        question("mixtral-8x7b", "4x8xh100-sxm", tp=(1, 2), cp=(1,), batch=64),
        RequestedOptions(optimizer="muon", reductions=("bf16", "fp32")),
    ),
    "hybrid": (
        question("nemotron-3-nano", "2x8xh100-sxm", tp=(1, 2), cp=(1,), batch=32),
        RequestedOptions(),
    ),
    "every second": (
        question("llama-4-maverick", "8x8xh100-sxm", tp=(4,), cp=(1,), ep=(16, 64), batch=64),
        RequestedOptions(),
    ),
    "torus": (
        replace(question("llama-3.1-8b", stack="maxtext", batch=64), cluster=torus((4, 4, 2))),
        RequestedOptions(),
    ),
}  # fmt: skip


def laid_out(name):
    asked, options = ASKED[name]
    asked = replace(asked, options=options)
    base, context = context_of(asked)
    return asked, base, legal_layouts(asked.space, context)


def test_options_are_named_as_flags():
    assert RequestedOptions(precisions=("fp8",)).words == ()  # the request names the one precision
    several = RequestedOptions(
        precisions=("bf16", "fp8"), reductions=("bf16",), optimizer_offload=True
    )
    assert several.words == ("--precision bf16,fp8", "--reduce bf16", "--optimizer-offload")


@pytest.mark.parametrize(
    ("option", "without"),
    [
        ({"sequence_parallel": True}, ({"tp": 1}, {"tokens": 4095})),
        ({"axis_order": AXIS_ORDERS[1]}, ({"pp": 1}, {"dp": 1})),
        ({"gradient_reduction": "bf16"}, ({"dp": 1},)),
        ({"compression": "powersgd-4"}, ({"dp": 1},)),
        ({"local_steps": 8, "local_workers": EVERY_REPLICA}, ({"dp": 1},)),
        ({"local_workers": 2}, ({"dp": 3},)),
        ({"dp_replicate": 2}, ({"dp": 2}, {"dp": 5}, {"ep": 3})),
    ],
)
def test_an_option_is_tried_only_where_it_changes_the_step(option, without):
    mesh = {"pp": 2, "dp": 4, "tp": 2, "cp": 1, "ep": 1, "tokens": 4096}
    tried = RunOption(**option)
    assert tried.sensible(**mesh)
    assert not any(tried.sensible(**mesh | change) for change in without)


@pytest.mark.parametrize("name", ASKED)
def test_arrays_equal_the_single_run(name):
    _, base, layouts = laid_out(name)
    options = check_arrays(base, layouts, 30)
    assert len(options) > 1 or len(np.unique(layouts.option)) == 1


def small(name):
    """The question with a space small enough to price every layout alone."""
    asked, options = ASKED[name]
    recompute = ("none", "minimal") if asked.stack == "maxtext" else ("selective",)
    if asked.cluster.num_devices == 8:
        recompute = ("none",)  # beside it alone Megatron-Core keeps activations in host memory
    most = None if len(asked.space.tp or ()) == 1 else (1, 2)
    stages = asked.space.pp or (1, 2, 4, 8)
    space = replace(asked.space, micro_batch=(1,), recompute=recompute, vpp=most, pp=stages)
    return replace(asked, options=options, space=space)


@pytest.mark.parametrize("name", ASKED)
def test_the_optimum_of_enumeration(name):
    asked = small(name)
    base, context = context_of(asked)
    layouts = legal_layouts(asked.space, context)
    limit = MemoryLimit(capacity_bytes=get_device(base.device).usable_bytes)
    fitting = []
    for index in range(len(layouts)):
        run = layouts.run(base, index)
        memory = footprint(run)
        if memory.refused or memory.needed_bytes > limit.of(run) or host_memory_short(run):
            continue
        fitting.append(run)
    answer = solved(asked)
    if not fitting:
        assert answer.status == "infeasible"
        return
    assert answer.status == "optimal"
    assert answer.gap == 0.0
    assert answer.chosen.prediction.step_time_s.value == pytest.approx(
        min(seconds_of(fitting)), rel=1e-9
    )
    assert answer.considered == answer.too_big + answer.pruned + answer.refined
    assert answer.too_big <= len(layouts) - len(fitting)


@pytest.mark.parametrize(
    ("requested", "tokens", "shares"),
    [
        (False, 512, {False}),
        (None, 512, {False, True}),
        (True, 512, {True}),
        (None, 511, {False}),  # two ranks cannot have equal shares
    ],
)
def test_ranks_share_tokens_as_requested_and_only_where_tp_has_several(requested, tokens, shares):
    options = RequestedOptions(sequence_parallel=requested)
    asked = question(
        "tiny-llama-demo", "1x4xh100-sxm", "torch", 8, tokens, options=options, tp=(1, 2)
    )
    base, context = context_of(asked)
    layouts = legal_layouts(asked.space, context)
    found = {1: set(), 2: set()}
    for index in range(len(layouts)):
        run = layouts.run(base, index)
        found[run.degrees.tp].add(run.sequence_parallel)
        always = layouts.run(replace(base, sequence_parallel=True), index)
        assert always.sequence_parallel == (run.degrees.tp == 2)
    assert found == {1: {False}, 2: shares}


def test_layers_priced_once_with_and_once_without_shared_tokens():
    """Not once per mesh: stages, replicas and tensor-parallel ranks within and beyond a node."""
    asked = question("llama-3.1-70b", "8x4xh100-sxm", "torch", 64, 4096)
    base, context = context_of(asked)
    found = check_arrays(base, legal_layouts(asked.space, context), 100)
    assert {option.sequence_parallel for option in found} == {False, True}


def test_a_model_whose_blocks_need_all_tokens_has_no_layouts_that_share_them():
    asked = question("tiny-llama-demo", "1x4xh100-sxm", "torch", 8, 512, tp=(2,))
    whole = replace(asked, model=replace(asked.model, whole_tokens=True))
    assert {option.sequence_parallel for option in context_of(asked)[1].options} == {False, True}
    assert {option.sequence_parallel for option in context_of(whole)[1].options} == {False}


def test_nothing_asked_is_one_option():
    asked = question()
    _, context = context_of(asked)
    assert context.options == (RunOption(),)
    assert legal_layouts(asked.space, context).options == (RunOption(),)


@pytest.mark.parametrize(("gigabits", "crosses"), [(10.0, "pp"), (1600.0, "dp"), (6400.0, "dp")])
def test_what_crosses_a_line_between_sites(gigabits, crosses):
    """A slow line carries activations, or nothing: one site does the work; a fast one gradients.
    Whichever the planner takes, the other axis pinned across the line is no faster."""
    asked = replace(question(batch=512, cp=(1,)), cluster=two_sites(4, gigabits=gigabits))
    best = solved(asked).chosen
    run = best.run
    stages_cross = run.degrees.pp > 1 and run.degrees.axis_order == "tp-cp-dp-pp"
    alone = run.degrees.num_devices <= 32
    assert ("pp" if stages_cross or alone else "dp") == crosses
    for pins in ({"pp": (1,)}, {"dp": (1,)}):
        other = solved(replace(asked, space=replace(asked.space, **pins)))
        if other.chosen is not None:
            assert other.chosen.prediction.step_time_s.value >= best.prediction.step_time_s.value


@pytest.mark.parametrize(("km", "far"), [(19, ()), (20, ("sites",))])
def test_a_line_of_20_km_connects_sites_of_a_node(km, far):
    """Light takes 5 microseconds per km of fiber; a shorter line is the nodes' network."""
    cluster = two_sites(1, gigabits=80.0, latency_s=km / 2e5)
    run, _ = context_of(replace(question(), cluster=cluster))
    assert tuple(level.name for level in run.far_levels) == far
    assert (run.node_network.bytes_per_s_per_node == 10e9) is not bool(far)


def test_sites_with_a_fast_line_are_one_machine():
    """At the network's own rate and latency a third level changes nothing, but for the collisions
    of flows, which are counted in the nodes' network alone."""
    flat = solved(question(on="8x8xh100-sxm", batch=128)).chosen
    racks = solved(replace(question(batch=128), cluster=fat_tree(8))).chosen
    assert racks.prediction.step_time_s.value == pytest.approx(
        flat.prediction.step_time_s.value, rel=1e-3
    )


def test_local_steps_beat_a_slow_line():
    asked = replace(question(batch=512, cp=(1,)), cluster=two_sites(4, gigabits=10.0))
    often = solved(asked).chosen.prediction.step_time_s.value
    rare = solved(replace(asked, options=RequestedOptions(local_steps=(1, 100)))).chosen
    assert rare.run.local_steps == 100
    assert rare.run.local_workers == 2
    assert rare.prediction.step_time_s.value < often


def test_more_to_choose_is_never_slower():
    """Every option is a wider space."""
    asked = question("llama-3.1-8b", "4x8xh100-sxm", batch=64, tp=(1, 2), cp=(1,))
    narrow = solved(asked).chosen.prediction.step_time_s.value
    for options in (
        RequestedOptions(orders=("any",)),
        RequestedOptions(precisions=("bf16", "fp8")),
        RequestedOptions(compressions=("none", "powersgd-2")),
        RequestedOptions(reductions=("fp32", "bf16")),
        RequestedOptions(optimizer_offload=True),
        RequestedOptions(local_steps=(1, 10)),
    ):
        wide = solved(replace(asked, options=options))
        assert wide.status == "optimal"
        assert wide.chosen.prediction.step_time_s.value <= narrow * (1 + 1e-12), options


def test_fsdp_offloads_what_is_sharded_alone():
    """With ZeRO 0, as with one replica, no layout has it."""
    asked = question("llama-3.1-8b", "1x8xh100-sxm", stack="torch", cp=(1,), batch=8)
    asked = replace(asked, options=RequestedOptions(optimizer_offload=True))
    base, context = context_of(asked)
    layouts = legal_layouts(asked.space, context)
    runs = [layouts.run(base, index) for index in range(len(layouts))]
    away = {(run.zero_stage, run.degrees.dp > 1) for run in runs if run.optimizer_offload}
    assert away == {(1, True), (2, True), (3, True)}
    assert 0 in {run.zero_stage for run in runs}


def test_numerics_and_what_a_framework_lacks_are_said():
    options = RequestedOptions(compressions=("powersgd-4",), local_steps=(10,))
    said = " ".join(solved(question(batch=64, options=options)).assumptions)
    assert "compression: megatron-core has none of its own; priced as if it had" in said
    assert "whether the model still learns as well is for you to judge" in said
    assert "megatron-core has none" not in " ".join(solved(question()).assumptions)


def test_bad_input():
    for wrong, words in (
        ({"local_steps": (0,)}, "--local-steps must be 1 or more"),
        ({"local_workers": 1}, "--local-workers must be 2 or more"),
        ({"wide_layers": -1}, "--wide-layers must be 0 or more"),
        ({"activation_offloads": (1.5,)}, "shares of the saved activations from 0 to 1"),
        *(
            ({"compressions": (text,)}, "--compress: .*powersgd-4")
            for text in ("powersgd", "powersgd-0", "powersgd-1.5", "topk-0", "topk-1.5", "top-1")
        ),
    ):
        with pytest.raises(InputError, match=words):
            RequestedOptions(**wrong)
    with pytest.raises(UnknownNameError, match="'bf16'"):
        RequestedOptions(precisions=("bf61",))
    with pytest.raises(UnknownNameError, match="tp-cp-dp-pp"):
        RequestedOptions(orders=("tp-cp-dp",))
    with pytest.raises(UnknownNameError, match="bf16"):
        RequestedOptions(reductions=("bf15",))


@pytest.mark.parametrize(
    ("stack", "on", "options", "words"),
    [
        ("nanotron", "1x8xh100-sxm", {"precisions": ("bf16", "fp8")}, "nanotron trains in bf16"),
        ("megatron-core", "1x8xh100-sxm", {"precisions": ("bf16", "mxfp8")}, "block-scaled"),
        ("megatron-core", "1x8xa100-sxm-80gb", {"precisions": ("bf16", "fp8")}, "no rate for"),
        ("nanotron", "1x8xh100-sxm", {"orders": ("tp-cp-pp-dp",)}, "numbers ranks as"),
        ("maxtext", "4xtpu-v5p", {"optimizer_offload": True}, "the host of tpu-v5p"),
    ],
)
def test_what_device_or_framework_lack(stack, on, options, words):
    asked = question("llama-3.1-8b", on, stack=stack, batch=16, options=RequestedOptions(**options))
    with pytest.raises(InputError, match=words):
        solved(asked)


def test_a_single_precision_is_checked_too():
    with pytest.raises(UnknownNameError, match="'bf16'"):
        solved(question(precision="bf61"))
    with pytest.raises(InputError, match=r"nanotron trains in bf16.* Use --precision bf16"):
        solved(question(stack="nanotron", precision="fp8"))
    with pytest.raises(InputError, match=r"no block-scaled tensor cores.* Use --precision fp8"):
        solved(question(precision="mxfp8"))
    with pytest.raises(InputError, match=r"no rate for float4_e2m1fn_x2.* Use --precision fp8"):
        solved(question(precision="nvfp4"))
    with pytest.raises(InputError, match=r"no rate for float8_e4m3fn.* Use --precision bf16"):
        solved(question(on="1x8xa100-sxm-80gb", precision="fp8"))


def test_any_precision_is_what_both_have():
    def offered(device, stack):
        asked = question(on=f"8x{device}", stack=stack, batch=8)
        base, _ = context_of(asked)
        options = run_options(
            RequestedOptions(precisions=("any",)),
            base,
            load_framework(stack).rules,
            get_device(device),
        )
        return [option.precision for option in options]

    assert offered("h100-sxm-80gb", "megatron-core") == ["bf16", "fp8"]
    assert offered("b200-sxm", "megatron-core") == ["bf16", "fp8", "mxfp8", "nvfp4"]
    assert offered("a100-sxm-80gb", "megatron-core") == ["bf16"]
    assert offered("b200-sxm", "torch-fsdp") == ["bf16", "fp8", "mxfp8"]


def test_a_torus_is_laid_the_way_that_is_fastest():
    """8 chips of tensor parallelism on 4 x 4 x 2: of the ways to lay them the best is taken."""
    asked = replace(question(stack="maxtext", batch=64, tp=(4,)), cluster=torus((4, 4, 2)))
    best = solved(asked).chosen
    assert best.run.torus in {(4, 4, 2), (4, 2, 4), (2, 4, 4)}
    base, context = context_of(asked)
    layouts = legal_layouts(asked.space, context)
    worst = max(seconds_of([layouts.run(base, i) for i in range(len(layouts))]))
    assert best.prediction.step_time_s.value < worst
    with pytest.raises(InputError, match=r"torus \[4, 4\] holds 16 devices"):
        replace(get_cluster("32xtpu-v5p").levels[0], torus=(4, 4))


def test_host_memory_is_offered_where_nothing_fits():
    asked = question("llama-3.1-70b", "1x8xh100-sxm", batch=16, cp=(1,))
    why = solved(asked).infeasibility
    (offered,) = (found for found in why.relaxations if found.flag == "--optimizer-offload")
    again = solved(replace(asked, options=RequestedOptions(optimizer_offload=True)))
    assert again.chosen.prediction.step_time_s.value == offered.step_time_s
    assert again.chosen.run.optimizer_offload
    # MaxText on a TPU: nothing is known of the host, so nothing is offered of it.
    tpu = solved(question("llama-3.1-70b", "4xtpu-v5p", stack="maxtext", batch=16))
    assert not any("offload" in found.flag for found in tpu.infeasibility.relaxations)


def test_states_in_few_bits_are_not_offloaded():
    """The search leaves such layouts out and says so, and nothing offers them."""
    few = RequestedOptions(optimizer="adamw8bit")
    asked = question("llama-3.1-8b", "1x8xh100-sxm", batch=16, cp=(1,), options=few)
    both = solved(replace(asked, options=replace(few, optimizer_offload=True)))
    assert both.chosen.run == solved(asked).chosen.run
    assert "optimizer-offload: states of adamw8bit stay on the device" in both.assumptions
    large = question("llama-3.1-70b", "1x8xh100-sxm", batch=16, cp=(1,), options=few)
    offered = list(offload_candidates(large))
    assert [each.change for each in offered] == ["activations in host memory"]
    assert not list(offload_candidates(offered[0].question))
    elsewhere = offload_candidates(replace(large, stack="torchtitan", options=RequestedOptions()))
    assert [each.flag for each in elsewhere] == ["--optimizer-offload"]


def test_what_the_host_lacks_is_said():
    """Four GB200 have room for the weights, their hosts none for the states of 70e9 parameters."""
    asked = question(
        "llama-3.1-70b", "1x4xgb200", batch=16, cp=(1,),
        options=RequestedOptions(optimizer_offload=True),
    )  # fmt: skip
    answer = solved(replace(asked, fit_risk=0.5))
    assert answer.status == "infeasible"
    why = answer.infeasibility
    assert "host memory per device, grace-blackwell has 216 GB to use" in why.host
    assert why.needed_bytes <= why.capacity_bytes


def test_what_no_fitted_run_did_widens_the_interval():
    """By half of its seconds, at both ends."""
    asked = question("llama-3.1-8b", "1x8xh100-sxm", batch=16, cp=(1,), tp=(1,))
    usual = solved(asked).chosen.prediction.step_time_s
    wide = solved(replace(asked, cluster=two_sites(4, gigabits=200.0), global_batch=256)).chosen
    step = wide.prediction.step_time_s
    assert step.high / step.value > usual.high / usual.value
    assert step.low / step.value < usual.low / usual.value


def test_another_link_inside_a_node():
    """H100 on PCIe: a tensor-parallel all-reduce takes as many times longer as the link is slower,
    so that less of it is chosen."""
    asked = question("llama-3.1-8b", "1x8xh200-sxm", batch=64, cp=(1,), tp=(8,), seq=2048)
    node = asked.cluster.levels[0]
    pcie = replace(asked.cluster, levels=(replace(node, link=get_link("pcie5")),))
    fast, slow = solved(asked).chosen, solved(replace(asked, cluster=pcie)).chosen
    assert slow.prediction.step_time_s.value > fast.prediction.step_time_s.value
    base, context = context_of(replace(asked, cluster=pcie))
    link = get_link("pcie5")
    rate = link.bandwidth_bytes_per_s.value * link.efficiency.value
    assert base.inner_bytes_per_s == rate
    assert (
        "inside a node, messages are priced at the rate and efficiency of pcie5"
        in context.assumptions[0]
    )
