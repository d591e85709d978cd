"""Memory: bytes per parameter by hand, the course over a schedule, and the closed form."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.model.graph import TensorSpec
from profiles.model.tracing.block_order import crossing_bytes
from simulator.memory.blocks import StageBytes, rank_memory, stage_bytes, stage_memory
from simulator.memory.held import (
    Elements,
    exchange_bytes,
    executor_static_bytes,
    padded_elements,
)
from simulator.schedules.schedule import build_schedule
from simulator.schedules.timeline import Durations, simulate
from simulator.values.plan import Recompute
from tests.oracles.held_activations import stage_peaks
from tests.planner.hand_made_model import HandMadeModel
from tests.simulator.hand_made import cluster, layer, plan, replicas
from tests.simulator.test_block_cost import price

MIB = 2**20
N = 1000.0


@pytest.mark.parametrize(
    ("shape", "replicas", "elements"),
    [
        ((32, 4), 8, 128),
        ((4, 6, 2), 8, 8 * 12),  # four experts: the other four replicas hold rows of zeros
        ((10, 3), 4, 12 * 3),
        ((), 4, 1),  # a single number, which FSDP2 is not given
        ((5, 0), 4, 0),
    ],
)
def test_rows_are_dealt_to_replicas_and_filled_up(shape, replicas, elements):
    assert padded_elements(TensorSpec(shape=shape, dtype="float32"), replicas) == elements


def test_whole_gradients_have_no_rows_of_zeros():
    held = Elements(total=16.0, trained=16.0, gradients=10.0)

    def gradients(pp):
        group = replicas(cluster(), dp=8, pp=pp, zero_stage=2, precision="fp32")
        return executor_static_bytes(held, group).gradients

    assert gradients(pp=2) == 4 * 10
    assert gradients(pp=1) == 4 * 16 / 8


def static(precision="bf16", zero_stage=0, dp=1, pp=1, optimizer="adamw", trained=N):
    held = Elements(
        total=N,
        trained=trained,
        gradients=trained,
    )
    group = replicas(
        cluster(), dp=dp, pp=pp, zero_stage=zero_stage, precision=precision, optimizer=optimizer
    )
    return executor_static_bytes(held, group)


def test_bytes_per_parameter_by_hand():
    # bf16: 4 master + 2 working copy, 4 gradient, 8 Adam; fp32: 4, 4, 8; SGD has no state.
    bf16, fp32, sgd = static(), static("fp32"), static("fp32", optimizer="sgd")
    assert (bf16.parameters, bf16.gradients, bf16.optimizer) == (6 * N, 4 * N, 8 * N)
    assert (fp32.parameters, fp32.gradients, fp32.optimizer) == (4 * N, 4 * N, 8 * N)
    assert sgd.optimizer == 0.0


def test_frozen_parameters_have_neither_gradients_nor_states():
    # A tenth is trained; the rest is kept as it is computed with, sharded in the stored type.
    bf16, fp32 = static(trained=N / 10), static("fp32", trained=N / 10)
    assert (
        (bf16.gradients, bf16.optimizer) == (fp32.gradients, fp32.optimizer) == (0.4 * N, 0.8 * N)
    )
    assert bf16.parameters == pytest.approx((0.9 * 2 + 0.1 * 6) * N)
    assert fp32.parameters == pytest.approx(4 * N)
    sharded = static(zero_stage=2, dp=8, trained=N / 10)
    assert sharded.parameters == static(zero_stage=2, dp=8).parameters
    assert sharded.gradients == pytest.approx(4 * N / 80)
    assert sharded.optimizer == pytest.approx(N / 10)


def test_zero_shards_more_with_each_stage():
    sizes = [static(zero_stage=z, dp=8) for z in range(4)]
    assert sizes[1].optimizer == sizes[0].optimizer / 8
    assert sizes[1].gradients == sizes[0].gradients
    # ZeRO-1 and 2: master weights sharded, the working copy whole.
    assert sizes[1].parameters == sizes[2].parameters == pytest.approx(4 * N / 8 + 2 * N)
    # ZeRO-3: what is gathered goes with the blocks.
    assert sizes[3].parameters == pytest.approx(4 * N / 8)
    totals = [size.total for size in sizes]
    assert totals == sorted(totals, reverse=True)


def test_gradients_stay_whole_under_a_pipeline_alone():
    # A pipeline keeps them unsharded until the last micro-batch; without one FSDP2 sums and shards
    # them in each backward.
    assert static(zero_stage=2, dp=8, pp=2).gradients == 4 * N
    assert static(zero_stage=2, dp=8).gradients == pytest.approx(4 * N / 8)


@given(st.integers(0, 3), st.integers(1, 64), st.integers(1, 8), st.sampled_from(["fp32", "bf16"]))
def test_more_replicas_never_need_more(zero_stage, dp, pp, precision):
    few = static(precision, zero_stage, dp, pp)
    many = static(precision, zero_stage, 2 * dp, pp)
    if dp > 1 or zero_stage < 2:
        assert many.total <= few.total * (1 + 1e-12)


def test_a_bucket_of_gradients_at_a_time_is_exchanged():
    """4 bytes of each, at most the 25 MiB of a bucket; nothing where FSDP2 reduces them."""
    few, many = (exchange_bytes(count, replicas(cluster(), dp=2)) for count in (1e6, 1e9))
    assert (few, many) == (4e6, 25 * MIB)
    assert exchange_bytes(1e9, replicas(cluster(), dp=2, zero_stage=1)) == 0.0
    assert exchange_bytes(1e9, replicas(cluster(), dp=1)) == 0.0


def one_stage_each(p, kept, forward_peak, backward_peak):
    return StageBytes(
        kept_bytes=kept,
        forward_peak_bytes=forward_peak,
        backward_peak_bytes=backward_peak,
        received_bytes=0.0,
        sent_bytes=0.0,
    )


@given(
    st.sampled_from(["1f1b", "gpipe"]),
    st.integers(2, 6),
    st.integers(2, 12),
    st.floats(1.0, 1e9),
    st.floats(0.0, 1e9),
    st.floats(0.0, 1e9),
)
@settings(deadline=None, max_examples=80)
def test_the_peak_is_the_closed_form(name, p, m, kept, forward_more, backward_more):
    schedule = build_schedule(name, num_ranks=p, num_microbatches=m)
    timeline = simulate(
        schedule,
        Durations(
            forward_s=(1.0,) * p,
            backward_s=(2.0,) * p,
            send_forward_s=(0.0,) * p,
            send_backward_s=(0.0,) * p,
        ),
    )
    the_plan = plan(pp=p, num_microbatches=m, schedule=name, num_blocks=8)
    stage = one_stage_each(p, kept, kept + forward_more, kept + backward_more)
    size = static()
    base = size.parameters + size.optimizer
    for rank, window in enumerate(stage_peaks(schedule)):
        memory = rank_memory(
            the_plan,
            rank,
            stages={rank: stage},
            static=size,
            timeline=timeline,
            capacity_bytes=1e12,
        )
        # Gradients are there from the first backward on. With `window` micro-batches kept there
        # is a forward and a backward before that, and after it only where more micro-batches
        # follow (1f1b); otherwise one less is kept.
        before = base + (window - 1) * kept + max(forward_more, backward_more) + kept
        after = base + size.gradients
        if m > window:
            after += window * kept + max(forward_more, backward_more)
        elif m > 1:
            after += (window - 2 if window > 1 else 0) * kept + kept + backward_more
        assert memory.peak_bytes == pytest.approx(max(before, after))
        # The planner's form is never under it.
        planned = size.total + window * kept + max(forward_more, backward_more)
        assert memory.peak_bytes <= planned * (1 + 1e-9)


def test_parts_add_up_and_the_course_reaches_the_peak():
    schedule = build_schedule("interleaved", num_ranks=2, num_microbatches=4, stages_per_rank=2)
    times = Durations(
        forward_s=(1.0,) * 4,
        backward_s=(2.0,) * 4,
        send_forward_s=(0.0,) * 4,
        send_backward_s=(0.0,) * 4,
    )
    the_plan = plan(pp=2, vpp=2, num_microbatches=4)
    # At the peak rank 0 runs a backward and still sends one gradient of 4; rank 1 sends two, and
    # an activation of 4 has arrived early.
    for rank, under_way in enumerate((4.0, 12.0)):
        stages = {
            s: StageBytes(
                kept_bytes=100.0,
                forward_peak_bytes=150.0,
                backward_peak_bytes=170.0,
                received_bytes=4.0,
                sent_bytes=3.0,
            )
            for s in the_plan.stages_of(rank)
        }
        memory = rank_memory(
            the_plan,
            rank,
            stages=stages,
            static=static(),
            timeline=simulate(schedule, times),
            capacity_bytes=1e6,
            given_bytes=5.0,
        )
        assert memory.communication_bytes == under_way
        assert max(s.memory_bytes for s in memory.timeline) == pytest.approx(memory.peak_bytes)
        assert memory.peak_bytes >= memory.static_bytes
        assert memory.timeline[-1].memory_bytes == pytest.approx(static().total + 5.0)
        assert memory.activations_bytes >= 5.0
        stamps = [sample.time_s for sample in memory.timeline]
        assert stamps == sorted(stamps)
        assert memory.fits


def test_the_exchange_may_be_the_peak():
    """Of 1000 parameters 6, 4 and 8 bytes, and what the exchange makes: 20,000 at last."""
    stage = StageBytes(
        kept_bytes=10.0,
        forward_peak_bytes=12.0,
        backward_peak_bytes=14.0,
        received_bytes=0.0,
        sent_bytes=0.0,
        weight_bytes=0.0,
        first_transient_bytes=0.0,
    )
    schedule = build_schedule("1f1b", num_ranks=1, num_microbatches=2)
    times = Durations(
        forward_s=(1.0,), backward_s=(2.0,), send_forward_s=(0.0,), send_backward_s=(0.0,)
    )
    found = rank_memory(
        plan(pp=1, num_microbatches=2),
        0,
        stages={0: stage},
        static=static(),
        timeline=simulate(schedule, times),
        capacity_bytes=1e6,
        exchange_bytes=2000.0,
    )
    assert found.peak_bytes == pytest.approx(20_000.0)
    assert found.peak_time_s == pytest.approx(6.0)
    assert found.transient_bytes == pytest.approx(2000.0)
    assert max(s.memory_bytes for s in found.timeline) == pytest.approx(found.peak_bytes)


def test_stage_bytes_by_hand():
    # Two layers; a boundary tensor is 2 MiB, each layer saves 10 MiB, works on 12 MiB at most in
    # its forward and 4 MiB in its backward.
    cost = price(layer())
    assert (cost.input_bytes, cost.output_bytes, cost.saved_bytes) == (2 * MIB, 2 * MIB, 10 * MIB)
    stage = stage_bytes([cost] * 2, received=2 * MIB, sent=2 * MIB)
    # Kept: what was received, both layers' saved, the tensor between them, the one sent on.
    assert stage.kept_bytes == (2 + 10 + 2 + 10 + 2) * MIB
    assert (stage.received_bytes, stage.sent_bytes) == (2 * MIB, 2 * MIB)
    assert stage.backward_peak_bytes >= stage.kept_bytes + 4 * MIB
    assert stage.forward_peak_bytes >= (2 + 10 + 2 + 12) * MIB
    # One layer that works on 9 MiB in its forward, and on 7 MiB in its backward.
    one = replace(cost, forward_transient_bytes=9 * MIB, backward_transient_bytes=7 * MIB)
    alone = stage_bytes([one], received=2 * MIB, sent=3 * MIB)
    assert alone.kept_bytes == (2 + 10 + 3) * MIB
    assert alone.forward_peak_bytes == (2 + 10 + 9) * MIB
    assert alone.backward_peak_bytes == (2 + 10 + 3 + 7) * MIB
    assert alone.first_transient_bytes == (2 + 10 + 7) * MIB


def test_an_input_that_no_backward_needs_goes_after_the_forward():
    block = replace(layer(), freed_input_bytes=2 * MIB)
    cost = price(block)
    whole = price(layer())
    assert (cost.freed_input_bytes, cost.input_bytes) == (2 * MIB, 2 * MIB)
    # The input of the stage, which torch keeps, both layers' saved, the tensor sent on.
    stage = stage_bytes([cost] * 2, received=2 * MIB, sent=2 * MIB)
    before = stage_bytes([whole] * 2, received=2 * MIB, sent=2 * MIB)
    assert stage.kept_bytes == (2 + 10 + 10 + 2) * MIB
    # The second layer's forward still has its input.
    assert stage.forward_peak_bytes == before.forward_peak_bytes
    assert stage.backward_peak_bytes == before.backward_peak_bytes - 2 * MIB
    # A layer that runs again needs it.
    again = price(block, Recompute.FULL)
    assert again.freed_input_bytes == 0.0
    assert stage_bytes([again] * 4, received=2 * MIB, sent=2 * MIB).kept_bytes == 10 * MIB


def test_each_stage_keeps_the_tables_that_its_layers_read():
    first = price(replace(layer(), lent_bytes=2 * MIB))
    reads = price(replace(layer(), table_bytes=2 * MIB))
    assert (first.saved_bytes, reads.saved_bytes) == (8 * MIB, 10 * MIB)
    assert first.forward_transient_bytes == price(layer()).forward_transient_bytes
    edge = {"received": 2 * MIB, "sent": 2 * MIB}
    before, apart = (stage_bytes([price(layer())] * n, **edge) for n in (3, 1))
    # Once for all layers; by the first only if one of its stage reads them.
    assert stage_bytes([first, reads, reads], **edge).kept_bytes == before.kept_bytes
    assert stage_bytes([first], **edge).kept_bytes == apart.kept_bytes - 2 * MIB
    alone = stage_bytes([reads], **edge, passed_on=True)
    assert alone.kept_bytes == apart.kept_bytes
    assert alone.first_transient_bytes == apart.first_transient_bytes
    # Also if the layer is recomputed.
    again = price(replace(layer(), table_bytes=2 * MIB), Recompute.FULL)
    assert stage_bytes([again], **edge).kept_bytes == (2 + 2 + 2) * MIB


def test_recomputation_lowers_what_a_stage_keeps():
    kept = []
    for kind in Recompute:
        cost = price(layer(), kind)
        stage = stage_bytes([cost] * 4, received=2 * MIB, sent=2 * MIB)
        kept.append(stage.kept_bytes)
    none, attention, full = kept
    # Full: the tensor received, three between the four layers and the one sent on.
    assert full == 5 * 2 * MIB
    assert none > attention > full


def test_the_first_and_last_stage_receive_less():
    graph = HandMadeModel(2).at(1)
    the_plan = plan(pp=4, num_blocks=4, num_microbatches=4)
    found = [
        stage_memory(graph, the_plan, s, [price(graph.kinds[graph.chain[s].kind])])
        for s in range(4)
    ]
    over = [crossing_bytes(graph, cut) for cut in range(5)]
    assert over[0] == over[4] == 0.0 < min(over[1:4])
    assert [(s.received_bytes, s.sent_bytes) for s in found] == list(pairwise(over))
