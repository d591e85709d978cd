"""Messages beyond the nodes' network: by hand, beside the timeline, and where they add nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from profiles.errors import InputError, UnknownNameError
from simulator.memory.footprint import footprint
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import build_schedule
from simulator.schedules.timeline import simulate
from simulator.training_run.explain.explain_run import explain_run
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.messages.message_row import cuts_cross_nodes, level_cut
from simulator.training_run.messages.rank_group import RankGroup, torus_share
from simulator.training_run.messages.run_links import links_of, moved, steps
from simulator.training_run.messages.step_messages import data_messages
from simulator.training_run.run.training_run import NetworkLevel, compression_of
from simulator.training_run.step.features import features
from simulator.training_run.step.step_term import Earlier
from simulator.training_run.step.step_terms import TERMS
from simulator.training_run.step.step_time import step_parts
from simulator.values.degrees import AXIS_ORDERS
from simulator.values.prediction import Part
from tests.simulator.described_runs import GPT_RUN, LLAMA_RUN, at_starts, changed, of_each, plain

# Two sites of 32 devices; 12.8 GB/s leave a site, 0.4 GB/s for each of its devices.
LINE = NetworkLevel(name="line", part_devices=32, bytes_per_s_per_device=0.4e9, latency_s=1e-3)
GB = 1e9


def far_collective_s(
    operation: str, size_bytes: float, group: RankGroup, levels: tuple[NetworkLevel, ...]
) -> float:
    """Bytes and latency beyond the nodes' network."""
    found = moved(operation, size_bytes, group, replace(links_of(GPT_RUN), far=levels))
    return found.far_s + found.far_latency_s


def test_an_all_reduce_over_two_sites_by_hand() -> None:
    """64 ranks, 32 in each site: 2 x 63/64 GB over 32 x 0.4 GB/s, and two passes of 1 ms; of 128
    in four sites a tree sends 2 GB, in two passes of two."""
    found = far_collective_s("all_reduce", GB, RankGroup(((64, 1),)), (LINE,))
    assert found == pytest.approx(2 * 63 / 64 / 12.8 + 2e-3)
    four = far_collective_s("all_reduce", GB, RankGroup(((128, 1),)), (LINE,))
    assert four == pytest.approx(2 / 12.8 + 4e-3)


def test_ranks_that_share_a_line_have_a_share_each() -> None:
    """8 ranks 8 apart: 4 in a site of 32, which have 4/32 of the line; the 8 such groups that
    begin in a site fill it together."""
    found = far_collective_s("all_gather", GB, RankGroup(((8, 8),)), (LINE,))
    assert found == pytest.approx(7 / 8 / (4 * 0.4) + 1e-3)
    whole = far_collective_s("all_gather", 8 * GB, RankGroup(((64, 1),)), (LINE,))
    assert whole == pytest.approx(63 / 64 * 8 / 12.8 + 1e-3)


def test_a_ring_over_two_lines_crosses_each_at_its_own_latency() -> None:
    """128 ranks, 32 to a rack and 64 to a site: one crossing in each of two sites, then one."""
    levels = (replace(LINE, name="racks"), replace(LINE, part_devices=64, latency_s=10e-3))
    found = far_collective_s("all_gather", GB, RankGroup(((128, 1),)), levels)
    assert found == pytest.approx(127 / 128 / 12.8 + 2 * 1e-3 + 10e-3)


def test_a_send_to_another_site_takes_the_nodes_network_too() -> None:
    """Sites of one node each: the line is counted by itself (`cut_far`), for the part of the
    hidden states that each of eight tensor-parallel ranks sends."""
    line = replace(LINE, part_devices=8)
    run = replace(GPT_RUN, far_levels=(line,))
    x, part = features([GPT_RUN, run]), run.tokens * run.model.hidden_size * 2 / 8
    assert x.cut_outer[1] == x.cut_outer[0] > 0.0
    assert x.cut_far.tolist() == [0.0, pytest.approx(part / 0.4e9)]
    assert x.cut_far_latency.tolist() == [0.0, 1e-3]


def test_what_stays_in_a_site_costs_nothing() -> None:
    assert far_collective_s("all_reduce", GB, RankGroup(((32, 1),)), (LINE,)) == 0.0
    assert far_collective_s("all_reduce", GB, RankGroup(((4, 8),)), (LINE,)) == 0.0
    # 3 ranks 16 apart fill no site evenly: some of them lie on both sides.
    assert far_collective_s("all_reduce", GB, RankGroup(((3, 16),)), (LINE,)) > 0.0


def test_stages_over_two_sites_by_hand() -> None:
    """64 devices, 4 stages of 16: the second sends to the third over the whole line of its site,
    16 senders of 32 devices' shares."""
    run = changed(GPT_RUN, tp=8, pp=4, dp=2)
    found = level_cut(run, GB, (LINE,))
    assert (found.crossings, found.latency_s) == (1, 1e-3)
    assert found.bytes_s == pytest.approx(16 / 12.8)
    turned = changed(run, axis_order="tp-cp-pp-dp")  # a replica of 32 devices fills a site
    assert level_cut(turned, GB, (LINE,)).crossings == 0
    # Of replicas of three stages of 8 devices the second lies on both sides of device 32.
    assert level_cut(changed(turned, pp=3, dp=4), GB, (LINE,)).crossings == 1
    # 8 stages of 8 in the usual order: still one crossing, half as many senders.
    deep = changed(GPT_RUN, tp=8, pp=8, dp=1)
    assert level_cut(deep, GB, (LINE,)).bytes_s == pytest.approx(8 / 12.8)


@settings(max_examples=200)
@given(st.sampled_from(AXIS_ORDERS), st.sampled_from((1, 2, 4, 8)), st.integers(2, 5),
       st.integers(1, 5), st.sampled_from((2, 4, 8)))  # fmt: skip
def test_sends_cross_nodes_where_some_pipeline_does(
    order: str, tp: int, pp: int, dp: int, node: int
) -> None:
    run = changed(GPT_RUN, tp=tp, pp=pp, dp=dp, axis_order=order, node_devices=node, network=None)
    degrees = run.degrees
    assume(tp <= node)
    pipelines = [degrees.group("pp", dp=i, tp=j) for i in range(dp) for j in range(tp)]
    crossed = any(a // node != b // node for ranks in pipelines for a, b in pairwise(ranks))
    assert cuts_cross_nodes(run) == crossed


@given(st.sampled_from(AXIS_ORDERS), st.sampled_from((1, 2, 4)), st.integers(2, 9),
       st.integers(1, 3), st.integers(1, 9))  # fmt: skip
def test_the_worst_pipeline_against_every_pipeline(
    order: str, tp: int, pp: int, dp: int, stages: int
) -> None:
    """Sites of whole stages, and pipelines that begin wherever replicas before them end."""
    run = changed(GPT_RUN, tp=tp, pp=pp, dp=dp, axis_order=order)
    stride = run.degrees.stride("pp")
    starts, ends = range(0, pp * stages, pp), range(1, pp)
    crossings = max(sum((at + k) % stages == 0 for k in ends) for at in starts)
    found = level_cut(run, GB, (replace(LINE, part_devices=stages * stride),))
    assert found.crossings == crossings
    assert found.bytes_s == pytest.approx(1.0 / (0.4 * stages) if crossings else 0.0)
    if stride > 1:  # stages on both sides of a line: all may send over it, at every cut
        halved = level_cut(run, GB, (replace(LINE, part_devices=stride * stages - 1),))
        assert (halved.crossings, halved.bytes_s) == (pp - 1, pytest.approx(1.0 / 0.4))


def test_chunks_that_pass_a_slow_line_wait_for_each_micro_batch() -> None:
    """4 stages of 2 chunks, 100 micro-batches, 2 s of latency that no stage hides: 1/2 + 1/4 of
    them show per chunk of each micro-batch."""
    x = features([changed(GPT_RUN, pp=4, tp=1, dp=1)])
    slow = replace(
        x,
        microbatches=np.asarray([100.0]),
        vpp=np.asarray([2.0]),
        cut_far=np.asarray([0.0]),
        cut_far_latency=np.asarray([2.0]),
        cut_crossings=np.asarray([1.0]),
    )
    (term,) = (term for term in TERMS if term.name == "sends between far parts of the machine")
    unbusy = Earlier(layer=np.zeros(1), busiest=np.zeros(1), stages=np.zeros(1))
    found = term.seconds(slow, of_each(plain(cut_exposed=0.0)), unbusy)
    assert found[0] == pytest.approx(100 * 2 * (1 / 2 + 1 / 4) * 2.0)
    # 8 s of bytes per send, twice per chunk: 32 s a micro-batch, 31 more than the stages take.
    line = replace(slow, cut_far=np.asarray([8.0]), cut_far_latency=np.asarray([0.0]))
    busy = replace(unbusy, busiest=np.ones(1))
    assert term.seconds(line, of_each(plain(cut_exposed=0.0)), busy)[0] == pytest.approx(3100.0)


def test_the_slowest_of_several_lines_counts_its_latency() -> None:
    """Two lines of equal bandwidth: the one with the longer latency is the slower."""
    run = changed(GPT_RUN, tp=8, pp=4, dp=2)
    far = replace(LINE, latency_s=5e-3)
    assert level_cut(run, GB, (LINE, far)).latency_s == 5e-3
    assert level_cut(run, GB, (far, LINE)).latency_s == 5e-3


@pytest.mark.parametrize(
    ("stages", "chunks", "parts", "count"),
    [(2, 1, 2, 32), (4, 1, 2, 32), (8, 1, 2, 64), (8, 1, 4, 64), (4, 1, 4, 32),
     (2, 2, 2, 16), (4, 2, 2, 32), (8, 2, 2, 64), (8, 4, 2, 64)],
)  # fmt: skip
@pytest.mark.parametrize("send", [0.5, 1.0, 3.0])
def test_pipelines_over_sites_beside_the_timeline(
    stages: int, chunks: int, parts: int, count: int, send: float
) -> None:
    """The seconds that a slow send between parts adds, against those of the very schedule."""
    virtual, held = stages * chunks, stages // parts
    crossing = tuple(
        send if stage and (stage % stages) % held == 0 else 0.0 for stage in range(virtual)
    )

    def length(sends: tuple[float, ...]) -> float:
        durations = Durations(
            forward_s=(1 / 3 / chunks,) * virtual,
            backward_s=(2 / 3 / chunks,) * virtual,
            send_forward_s=sends,
            send_backward_s=sends,
        )
        schedule = build_schedule(
            "interleaved" if chunks > 1 else "1f1b",
            num_ranks=stages,
            num_microbatches=count,
            stages_per_rank=chunks,
        )
        return max(simulate(schedule, durations).end_s)

    added = length(crossing) - length((0.0,) * virtual)
    x = features([changed(GPT_RUN, pp=stages, tp=1, dp=1)])
    asked = replace(
        x,
        microbatches=np.asarray([float(count)]),
        vpp=np.asarray([float(chunks)]),
        cut_far=np.asarray([0.0]),
        cut_far_latency=np.asarray([send]),
        cut_crossings=np.asarray([parts - 1.0]),
    )
    (term,) = (term for term in TERMS if term.name == "sends between far parts of the machine")
    earlier = Earlier(layer=np.zeros(1), busiest=np.asarray([1.0]))
    found = term.seconds(asked, of_each(plain(cut_exposed=0.0)), earlier)
    assert float(found[0]) == pytest.approx(added, rel=0.10 if chunks == 1 else 0.20)


def test_a_full_spine_adds_nothing_and_a_thin_one_does() -> None:
    """The network's own rate beyond the racks binds nowhere."""
    run = changed(GPT_RUN, dp=16, pp=2, global_batch=64)
    rate = 25e9  # an HDR card each

    def total(shared: float) -> float:
        spine = NetworkLevel(
            name="spine", part_devices=64, bytes_per_s_per_device=rate / shared, latency_s=0.0
        )
        return float(at_starts([replace(run, far_levels=(spine,))])[Part.REDUCE][0])

    flat = float(at_starts([run])[Part.REDUCE][0])
    assert total(1.0) == pytest.approx(flat, rel=1e-4)  # less latency
    assert total(32.0) > total(16.0) > flat


@settings(max_examples=30, deadline=None)
@given(st.floats(1e7, 1e11), st.sampled_from(AXIS_ORDERS), st.sampled_from([1, 2, 4]))
def test_a_faster_line_is_never_slower(rate: float, order: str, dp: int) -> None:
    run = changed(GPT_RUN, dp=dp, axis_order=order, global_batch=64)
    slow, fast = (
        replace(run, far_levels=(replace(LINE, bytes_per_s_per_device=r),))
        for r in (rate, 2 * rate)
    )
    times = at_starts([slow, fast, run]).total_s
    assert times[0] >= times[1] >= times[2] * (1 - 1e-12)


OPTIONS = (
    {"far_levels": (LINE,)},
    {"far_levels": (LINE,), "axis_order": "tp-cp-pp-dp"},
    {"far_levels": (LINE,), "local_steps": 20, "local_workers": 2},
    {"gradient_reduction": "bf16"},
    {"compression": "powersgd-4"},
    {"compression": "topk-0.01"},
    {"device": "h100-sxm-80gb", "precision": "fp8", "stack": "megatron-core", "wide_layers": 1},
)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: "-".join(map(str, option)))
def test_the_explanation_adds_up(option: dict[str, object]) -> None:
    """Lines are made of symbols, `step.interval.value` of arrays."""
    run = changed(GPT_RUN, dp=2, **option)
    found = explain_run(run)
    assert sum(line.time_s for line in found.lines) == pytest.approx(found.step.interval.value)


def test_bf16_halves_what_is_reduced_and_compression_does_more() -> None:
    run = changed(LLAMA_RUN, zero_stage=0, stack="megatron-core", dp=16)
    x = features(
        [replace(run, gradient_reduction=how) for how in ("fp32", "bf16")]
        + [replace(run, compression="powersgd-4")]
    )
    wire = x.reduce_inner + x.reduce_outer
    assert wire[1] == pytest.approx(wire[0] / 2, rel=1e-3)
    # 4 (n + m) numbers for n m: 4096 x 14336 is 1/796 of the matrix, the tables less.
    assert wire[2] < wire[0] / 200
    assert x.extra_pass_s[2] > 0.0 == x.extra_pass_s[0]


def test_an_exchange_over_a_line_has_its_latency() -> None:
    """Latencies on nodes' own links are counted as steps."""
    run = changed(GPT_RUN, dp=8, far_levels=(LINE,))
    _, once = data_messages(run, load_framework(run.stack), links_of(run))
    x = features([run])
    assert once.far_latency_s >= 1e-3
    assert x.reduce_far[0] == pytest.approx(once.far_s + once.far_latency_s)
    assert (x.reduce_inner[0], x.reduce_outer[0]) == (once.inner_s, once.outer_s)
    assert x.reduce_steps[0] == pytest.approx(sum(steps(once)))


def test_local_steps_share_one_exchange() -> None:
    """Twice as many steps between exchanges halve it; gradients stay inside a worker."""
    run = changed(
        GPT_RUN, dp=2, far_levels=(replace(LINE, part_devices=64),),
        axis_order="tp-cp-pp-dp", local_workers=2, local_steps=10,
    )  # fmt: skip
    x = features([run, replace(run, local_steps=20), replace(run, local_workers=1)])
    assert x.sync_far[0] == pytest.approx(2 * x.sync_far[1])
    assert x.reduce_far[0] == 0.0 < x.reduce_far[2]


def test_workers_gather_what_they_do_not_shard() -> None:
    """Two workers of a node each average in fp32 every ten steps: each rank an eighth of the
    weights with its like; with ZeRO 3 that is all, else the worker gathers all of them."""
    run = changed(LLAMA_RUN, dp=16, local_workers=2, local_steps=10, stack="megatron-core")
    sharded, whole = features([run]), features([replace(run, zero_stage=1)])
    links = links_of(run)
    assert sharded.sync_inner[0] == 0.0
    assert sharded.sync_outer[0] == pytest.approx(whole.sync_outer[0])
    size = 4.0 * footprint(run).fullest_details.here.num_parameters
    gathered = moved("all_gather", size, RankGroup(((8, 1),)), links).total_s
    assert whole.sync_inner[0] == pytest.approx(gathered / 10, rel=1e-3)
    adapters, alone = features([replace(run, lora=True)]), features([replace(run, local_workers=1)])
    assert adapters.sync_outer[0] == alone.sync_outer[0] == 0.0


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_layers_in_bf16_cost_what_they_are(recompute: str) -> None:
    """All layers in bf16 at both ends of one stage are bf16's own matmuls, run again or not."""
    run = replace(LLAMA_RUN, precision="fp8", stack="megatron-core", zero_stage=1)
    run = replace(run, recompute=recompute)
    wide = replace(run, wide_layers=run.model.num_layers)
    c = of_each(plain())
    low, mixed, high = (
        float(step_parts(features([r]), c)[Part.COMPUTE][0])
        for r in (run, wide, replace(run, precision="bf16"))
    )
    assert low < high
    assert mixed == pytest.approx(high, rel=2e-3)


def test_torus_by_hand() -> None:
    """Of a 4 x 4 x 4: an axis is a third of the links, two axes two thirds; half an axis, which no
    link closes, a sixth; and 8 ranks are an axis and half of the next."""
    sides = (4, 4, 4)
    assert torus_share(RankGroup(((4, 1),)), sides) == pytest.approx(1 / 3)
    assert torus_share(RankGroup(((4, 4),)), sides) == pytest.approx(1 / 3)
    assert torus_share(RankGroup(((64, 1),)), sides) == pytest.approx(1.0)
    assert torus_share(RankGroup(((2, 1),)), sides) == pytest.approx(1 / 6)
    assert torus_share(RankGroup(((8, 1),)), sides) == pytest.approx(1 / 2)
    assert torus_share(RankGroup(((8, 8),)), sides) == pytest.approx(1 / 2)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="powersgd-4"):
        compression_of("powersgd-0")
    with pytest.raises(InputError, match="above 0 and at most 1"):
        compression_of("topk-2")
    with pytest.raises(InputError, match="divide dp=1"):
        replace(GPT_RUN, local_workers=2)
    with pytest.raises(UnknownNameError, match="tp-cp-dp-pp"):
        changed(GPT_RUN, axis_order="tp-cp-dp")
    with pytest.raises(UnknownNameError, match="bf16"):
        replace(GPT_RUN, gradient_reduction="bf17")
    with pytest.raises(InputError, match="its rate above 0"):
        replace(LINE, bytes_per_s_per_device=0.0)
