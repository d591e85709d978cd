"""Hosts that wait for messages: who waits, who stalls, who is ahead, and the messages by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from evidence.coefficient_fit import Origin, fit_coefficients
from profiles.hardware.catalogue.catalog import get_device
from simulator.memory.footprint import footprint
from simulator.schedules.action import ActionKind
from simulator.schedules.schedule import build_schedule
from simulator.training_run.framework.blocked_host import is_host_ahead, stalls, waiting_ranks
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_kinds import KINDS
from simulator.training_run.step.coefficients import assign
from simulator.training_run.step.features import features
from simulator.training_run.step.step_time import step_parts
from simulator.values.prediction import Part
from tests.simulator.described_runs import GPT_RUN, LLAMA_8B, changed, of_each, plain

# 8B on 16 nodes of H100 with four stages, 16 micro-batches.
RUN = changed(
    GPT_RUN,
    id="staged",
    model=LLAMA_8B,
    device="h100-sxm-80gb",
    stack="nanotron",
    precision="bf16",
    seq_len=4096,
    tp=4,
    pp=4,
    dp=8,
    zero_stage=1,
    global_batch=128,
)
NANOTRON, MEGATRON = load_framework("nanotron"), load_framework("megatron-core")


def on_nodes(nodes: int, **changes: int) -> TrainingRun:
    """The run on so many nodes of eight, with as many replicas as that takes."""
    run = changed(RUN, **changes)
    devices = 8 * nodes
    return changed(run, dp=devices // (run.degrees.tp * run.degrees.pp), global_batch=1024)


def total(run: TrainingRun, **changes: float) -> float:
    return float(step_parts(features([run]), of_each(plain(**changes))).total_s[0])


def stalled_messages(run: TrainingRun) -> float:
    """Seconds of messages that take one each."""
    c = of_each(plain(stall_ms=1e3))
    return float(step_parts(features([run], all_fit=True), c)[Part.STALL][0])


def test_who_waits_and_who_stalls() -> None:
    # Two all-reduces of four ranks, or two all-gathers and two reduce-scatters.
    assert waiting_ranks(RUN, NANOTRON) == 8.0
    assert waiting_ranks(replace(RUN, sequence_parallel=True), NANOTRON) == 16.0
    assert waiting_ranks(on_nodes(64, pp=1), NANOTRON) == 8.0
    assert not stalls(RUN, NANOTRON)
    for calm in (on_nodes(32), on_nodes(16, tp=16), on_nodes(64, pp=1)):
        assert not stalls(calm, NANOTRON), calm
    # From the geometric mean of 32 and 64 nodes on, 45.3.
    few, many = (changed(RUN, dp=nodes // 2, global_batch=8 * nodes) for nodes in (44, 46))
    assert stalls(many, NANOTRON)
    assert not stalls(few, NANOTRON)
    for stalled in (on_nodes(64), on_nodes(16, tp=32)):
        assert stalls(stalled, NANOTRON), stalled
        assert not stalls(stalled, MEGATRON)
        assert waiting_ranks(stalled, MEGATRON) == 0.0
    for other in (
        on_nodes(1, tp=2),
        on_nodes(16, pp=1),
        on_nodes(16, tp=1),
        on_nodes(64, pp=1, tp=32),
    ):
        assert waiting_ranks(other, NANOTRON) == 0.0, other


def test_whose_host_is_ahead() -> None:
    for ahead in (RUN, on_nodes(16, pp=2), on_nodes(16, pp=1, tp=8), on_nodes(64, pp=1, tp=32)):
        assert is_host_ahead(ahead, NANOTRON), ahead
    for held in (on_nodes(16, pp=2, tp=8), on_nodes(64), on_nodes(64, pp=1), on_nodes(16, tp=32)):
        assert not is_host_ahead(held, NANOTRON), held
    assert not is_host_ahead(RUN, MEGATRON)


@pytest.mark.parametrize(
    ("pp", "microbatches", "messages"),
    [
        # There and back again for one micro-batch: 2 (pp - 1).
        (2, 1, 2),
        (8, 1, 14),
        # Every further one: forward and backward of the one neighbour, or of both.
        (2, 16, 2 + 15 * 2),
        (4, 16, 6 + 15 * 4),
        (16, 64, 30 + 63 * 4),
    ],
)
def test_messages_on_the_critical_path(pp: int, microbatches: int, messages: int) -> None:
    run = changed(on_nodes(64), pp=pp, dp=128 // pp, global_batch=microbatches * (128 // pp))
    assert run.num_microbatches == microbatches
    assert stalled_messages(run) == pytest.approx(messages)
    assert stalled_messages(changed(run, dp=max(1, 32 // pp))) == 0.0


@pytest.mark.parametrize(("pp", "microbatches"), [(2, 6), (4, 8), (8, 12)])
def test_no_rank_sends_and_receives_more_than_the_path_has(pp: int, microbatches: int) -> None:
    """1F1B's own actions: a message between neighbours each way and micro-batch, and the host of
    the busiest rank is held by all of its own."""
    schedule = build_schedule("1f1b", num_ranks=pp, num_microbatches=microbatches)
    own = []
    for rank, actions in enumerate(schedule.ranks):
        neighbours = (rank > 0) + (rank < pp - 1)
        passes = [a for a in actions if a.kind in (ActionKind.FORWARD, ActionKind.BACKWARD)]
        own.append(len(passes) * neighbours)
    run = changed(on_nodes(64), pp=pp, dp=128 // pp, global_batch=microbatches * (128 // pp))
    path = stalled_messages(run)
    assert max(own) <= path + 4
    assert path <= max(own) + 2 * (pp - 1)


def test_too_little_memory_stalls() -> None:
    """Micro-batches of eight sequences with four in flight do not fit; the run is on one node, so
    nothing else stalls it."""
    run = changed(RUN, tp=1, pp=4, dp=2, micro_batch=8, global_batch=64)
    assert footprint(run).needed_bytes > get_device(run.device).usable_bytes
    assert features([run]).stalls[0] == 1.0
    assert features([run], all_fit=True).stalls[0] == 0.0
    light = changed(run, micro_batch=1, tp=2, dp=1)
    assert footprint(light).needed_bytes < get_device(run.device).usable_bytes
    assert features([light]).stalls[0] == 0.0


def test_layers_wait_with_their_ranks() -> None:
    """Four collectives of four ranks at 1 s each are 16 s per layer, on a host that does nothing
    else; 16 micro-batches of the fullest stage, which has nine of the 32 layers (nanotron cuts by
    cost, and the head counts), and the others' eight once each."""
    assert total(RUN, wait_us=1e6) == pytest.approx((16 * 9 + 3 * 8) * 16 * 1.0, rel=0.01)


def test_a_fit_finds_the_time_of_a_message_again() -> None:
    """Every eighth job is ten times as slow as the rest, for no reason that its figures show."""
    runs = [
        replace(on_nodes(nodes), id=f"{nodes}-{i}", global_batch=64 * i)
        for nodes in (2, 16, 64)
        for i in range(1, 9)
    ]
    x, assigned = features(runs), assign(runs)
    truth = assigned.starts()
    truth[assigned.names.index("stall_ms.*")] = 200.0
    times = step_parts(x, assigned.of(truth)).total_s
    times = np.where(np.arange(len(runs)) % 8 == 0, 10.0 * times, times)
    origin = Origin(sources=["s"] * len(runs), devices=["h100"] * len(runs))
    fitted = fit_coefficients(x, assigned, times, origin, weights=np.ones(len(runs)))
    # One source: most of it is its own deviation, and both together are the planted value.
    common = float(fitted.values[assigned.names.index("stall_ms.*")])
    own = fitted.deviations["s"][[kind.name for kind in KINDS].index("stall_ms")]
    assert common * math.exp(own) == pytest.approx(200.0, rel=0.07)


def test_hops_between_nodes_add_to_the_host() -> None:
    """Groups of 16 over two nodes: two all-reduces per pass, each of two hops; forward and backward
    in 32 layers and four micro-batches at 1 s a hop. It adds to the time of 80 kernels per layer at
    1 s each on the host."""
    run = replace(on_nodes(2, pp=1, tp=16), global_batch=4)
    assert run.num_microbatches == 4
    hops = 2 * 2 * 2
    assert total(run, hop_us=1e6) == pytest.approx(32 * 4 * hops, rel=0.01)
    kernels = 80 * 32 * 4
    both = total(run, hop_us=1e6, launch_us=1e6)
    assert both == pytest.approx(kernels + 32 * 4 * hops, rel=0.01)
