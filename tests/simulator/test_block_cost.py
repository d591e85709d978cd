"""Block costs: sums of ops, recomputation, measured blocks, tensor parallelism, kept bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.hardware.catalogue.device import BlockPoint, Measurements
from profiles.model.graph import SavedTensor
from simulator.traced.block_cost import price_block
from simulator.traced.comm_cost import price_collective
from simulator.traced.in_step import prices_in_step
from simulator.traced.op_cost import pricer_of
from simulator.values.plan import Recompute
from tests.simulator.hand_made import cluster, device, layer, memory_op

SIZE = 1024 * 1024 * 2  # bytes of a boundary tensor of `layer()`
KINDS = tuple(Recompute)


def price(block, kind=Recompute.NONE, devices=(0,), on=None):
    return price_block(block, recompute=kind, devices=devices, cluster=on or cluster())


def test_without_recomputation_times_are_the_sums_of_the_ops():
    block, on = layer(), cluster()
    cost = price(block, on=on)
    gpu = on.device_at(0)
    forward = prices_in_step(block.forward_ops, gpu)
    backward = prices_in_step(block.backward_ops, gpu)
    assert cost.forward.value == pytest.approx(sum(c.time_s for c in forward))
    assert cost.backward.value == pytest.approx(sum(c.time_s for c in backward))
    # Errors of one kind go together: the ends add up too.
    assert cost.forward.low == pytest.approx(sum(c.low for c in forward))
    assert cost.backward.high == pytest.approx(sum(c.high for c in backward))
    assert cost.recompute_s == 0.0


def test_recomputation_adds_forward_work_to_the_backward():
    none, attention, full = (price(layer(), kind) for kind in KINDS)
    assert none.forward.value == attention.forward.value == full.forward.value
    for cost in (attention, full):
        assert cost.backward.value == pytest.approx(none.backward.value + cost.recompute_s)
    assert 0 < attention.recompute_s < full.recompute_s < none.forward.value


def test_recomputation_stops_where_backward_has_what_it_needs():
    # torch.utils.checkpoint stops early: of a layer's four products the last is not repeated, of
    # its attention's two the first is (the softmax that follows is kept by its output).
    block, on = layer(), cluster()
    gpu = on.device_at(0)
    costs = [cost.time_s for cost in prices_in_step(block.forward_ops, gpu)]
    assert price(block, Recompute.FULL, on=on).recompute_s == pytest.approx(sum(costs[:5]))
    assert price(block, Recompute.ATTENTION, on=on).recompute_s == pytest.approx(sum(costs[:2]))


def test_a_shared_weight_adds_its_gradients_to_its_owners():
    """On a CPU every trained weight of its own, 2 MiB, is read twice and written once."""
    cpu = replace(device(), type="cpu")
    block, on = layer(), cluster(of=cpu)
    first, *others = block.parameters
    shared = replace(block, parameters=(replace(first, tied_to="embedding.weight"), *others))
    frozen = replace(block, parameters=(replace(first, trainable=False), *others))
    each = pricer_of(cpu).move("add_", 3 * SIZE).time_s
    whole, less, none = (price(one, on=on).backward.value for one in (block, shared, frozen))
    assert each > 0.0
    assert whole - less == pytest.approx(each)
    assert none == pytest.approx(less)


def test_recomputation_keeps_less():
    none, attention, full = (price(layer(), kind) for kind in KINDS)
    # saved: 3 SIZE in the attention, 2 in the MLP; its attention keeps one input of SIZE instead.
    assert none.saved_bytes == 5 * SIZE
    assert attention.saved_bytes == (2 + 1) * SIZE
    assert full.saved_bytes == 0
    assert [c.input_bytes for c in (none, attention, full)] == [SIZE] * 3
    # What is not kept is there again while the backward runs.
    assert full.backward_transient_bytes >= none.backward_transient_bytes + 5 * SIZE - 1
    assert attention.backward_transient_bytes > none.backward_transient_bytes


def test_a_forward_that_is_computed_again_has_its_largest_op_s_tensors_at_once():
    """The largest op without weights reads and writes 4 SIZE; the layer is given and hands on SIZE.
    Without recomputation 5 SIZE are kept, and one more exists at most."""
    block = layer()
    large = memory_op("mlp", 4 * SIZE)
    wide = replace(
        block,
        forward_peak_bytes=6 * SIZE,
        forward_ops=(*block.forward_ops, large),
    )
    none, _, full = (price(wide, kind) for kind in KINDS)
    assert large.read_bytes + large.written_bytes == 4 * SIZE
    assert none.saved_bytes + none.forward_transient_bytes == (6 + 1) * SIZE
    assert full.saved_bytes + full.forward_transient_bytes == (4 + 1) * SIZE


def test_a_head_that_is_computed_again_keeps_what_its_loss_made():
    head, made = layer(loss=True), (4 * SIZE, 200)
    head = replace(
        head,
        forward_ops=(*head.forward_ops, *(memory_op("loss", 2 * size) for size in made)),
        saved=(*head.saved, *(SavedTensor(module="", memory_bytes=size) for size in made)),
    )
    assert price(head, Recompute.FULL).saved_bytes == sum(made)
    # Not a tensor of the same size that was made before.
    first, *others = head.forward_ops
    before = SavedTensor(module="", memory_bytes=200)
    scaled = replace(
        head,
        forward_ops=(first, memory_op("scale", 2 * 200), *others),
        saved=(before, *head.saved),
    )
    assert price(scaled, Recompute.FULL).saved_bytes == sum(made)


def test_a_block_without_attention_recomputes_none_of_it():
    block = replace(layer(), attention_module="", attention_input_bytes=0)
    assert price(block, Recompute.ATTENTION) == price(block, Recompute.NONE)


def test_a_measured_block_is_what_was_measured():
    block = layer()
    point = BlockPoint(
        kind=block.kind,
        label="Layer",
        forward_s=2e-3,
        backward_s=5e-3,
        sample_count=16,
        spread=0.05,
    )
    measured = Measurements(source="this machine", date="2026-11-21", blocks=(point,))
    on = cluster(of=device(measurements=measured))
    none, attention, full = (price(block, kind, on=on) for kind in KINDS)
    assert none.forward.value == pytest.approx(2e-3)
    assert none.backward.value == pytest.approx(5e-3)
    assert none.forward.low <= 2e-3 * 0.95
    assert none.forward.high >= 2e-3 * 1.05
    # The forward again, or the attention's share of it as the op prices have it.
    assert 5e-3 < attention.backward.value < full.backward.value <= 7e-3 * (1 + 1e-12)
    assert {method for _, method, _, _ in none.methods} == {"measured"}


def test_tensor_parallel_reductions_are_exposed():
    on = cluster()
    block = layer(tp=4)
    none, _, full = (price(block, kind, (0, 1, 2, 3), on) for kind in KINDS)
    once = price_collective("all_reduce", SIZE, (0, 1, 2, 3), on).time_s
    assert none.tp_forward_s == pytest.approx(2 * once)
    assert none.tp_backward_s == pytest.approx(2 * once)
    # The attention's reduction is repeated with its product; the MLP's last product is not needed.
    assert full.tp_backward_s == pytest.approx(none.tp_backward_s + once)


def test_launches_are_a_part_of_the_time():
    small = price(layer(tokens=8, width=8), on=cluster(of=device(launch_s=1e-5)))
    total = small.forward.value + small.backward.value
    assert 0.9 * total <= small.launch_s <= total
    large = price(layer(tokens=8192, width=8192), on=cluster(of=device(launch_s=0.0)))
    assert large.launch_s == 0.0


def test_what_times_rest_on_adds_up():
    for kind in KINDS:
        cost = price(layer(), kind)
        rests = sum(seconds for _, _, _, seconds in cost.methods)
        assert rests == pytest.approx(cost.forward.value + cost.backward.value)


def test_parameters():
    assert price(layer()).parameter_count == 4 * 1024 * 1024
    assert price(layer(tp=4), devices=(0, 1, 2, 3)).parameter_count == 4 * 1024 * 256
