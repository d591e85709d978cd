"""What FSDP2 makes beside a block, by hand and as its peaks follow from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.memory.held import BlockBytes
from simulator.memory.sharded_units import UnitBuffers, largest_by_kind, unit_buffers
from simulator.traced.predict import predict
from tests.planner.hand_made_model import VOCABULARY, WIDTH, HandMadeModel, parameter
from tests.simulator.hand_made import cluster, device, plan, replicas

V, L = VOCABULARY * WIDTH, 8 * WIDTH**2  # elements of the table, the head, and of a layer


def buffers(zero_stage, *, on_cpu=False, num_microbatches=2, dp=4, pp=1, tied=False):
    """The most of the table's block, the layers' and the head's; bf16: 2 bytes gathered, 4
    summed."""
    on = cluster(of=replace(device(), type="cpu" if on_cpu else "gpu"))
    group = replicas(on, dp=dp, pp=pp, zero_stage=zero_stage, num_microbatches=num_microbatches)
    graph = HandMadeModel(2, tied=tied).at(1)
    return largest_by_kind(graph, unit_buffers(graph, group))


def test_units_are_gathered_flat_and_taken_apart():
    table, layer, head = buffers(3)
    assert (table.forward, layer.forward, head.forward) == (4 * V, 4 * L, 4 * V)
    # In the loss the head's weights are freed, but for the flat tensor in the forward.
    assert (head.loss_forward, head.loss_backward) == (2 * V, 0)
    # The flat tensor of the unit before, this one's, and what is taken out of it; gloo's copy
    # comes with this rank's share as cast.
    assert layer.gathering == pytest.approx(2 * V + 4 * L)
    assert head.gathering == pytest.approx(2 * L + 4 * V)
    assert buffers(3, on_cpu=True)[2].gathering == pytest.approx(2 * L + 4 * V + 2 * V / 4)


@pytest.mark.parametrize(("experts", "rearranged"), [(2, True), (3, False), (4, False)])
def test_fewer_experts_than_replicas_are_taken_apart_through_another_copy(experts, rearranged):
    """Four replicas shard the second dimension of two experts. Of three they pad the rows to four,
    since they do not divide the other dimensions."""
    inner = 8 * WIDTH // experts if rearranged else 8 * WIDTH // experts + 1
    graph = HandMadeModel(2).at(1)
    layer = replace(graph.kinds[1], parameters=(parameter("up", (experts, inner, 1)),))
    graph = replace(graph, kinds=(graph.kinds[0], layer, graph.kinds[2]))
    found = unit_buffers(graph, replicas(cluster(), dp=4, zero_stage=3))[2]
    rows = experts if rearranged else 4
    weights = 2 * rows * inner
    assert found.gathering == weights + 2 * weights + rearranged * weights


def test_a_unit_s_backward_has_the_next_gathered_and_the_last_sums_beside():
    table, layer, head = buffers(3)
    # The layer beside the head: weights, the layer before fetched ahead, one of its two gradients
    # beside that which is being made, and the sums of the head's that were sent.
    assert layer.backward == 2 * L + 2 * L + 2 * L / 2 + 4 * V
    # The table's: nothing comes before it.
    assert table.backward == 2 * V + 4 * L
    assert head.backward == 2 * V + 2 * L
    # With its last op all gradients of a layer are made, and the input's gradient.
    assert layer.ending == 2 * L + 2 * L + 2 * L + 4 * V


@pytest.mark.parametrize(
    ("more", "block", "forward", "backward"),
    [
        # Ops, the gather before them and the sum behind them, of which nothing is saved.
        ({"gathering": 30, "ending": 40, "summing": 50}, {}, 30 - 5, 50 - 5),
        ({"ending": 40}, {}, 7 + 10, 40 + 3 - 5),
        ({}, {}, 7 + 10, 8 + 20),
        # In the loss weights are not gathered, beside its products they are.
        ({}, {"output_bytes": 0.0}, 6 + 10, 6 + 20),
        ({"loss_forward": 9.5, "loss_backward": 19}, {"output_bytes": 0.0}, 16.5, 8 + 19),
        ({"loss_forward": 99, "loss_backward": 99}, {"output_bytes": 0.0}, 7 + 10, 8 + 20),
    ],
)
def test_a_block_with_its_buffers_by_hand(more, block, forward, backward):
    plain = BlockBytes(
        saved_bytes=5.0,
        weight_bytes=6.0,
        input_bytes=3.0,
        output_bytes=1.0,
        forward_transient_bytes=7.0,
        backward_transient_bytes=8.0,
        parameters=(),
    )
    found = UnitBuffers(forward=10.0, backward=20.0, **more).add_to(replace(plain, **block))
    assert (found.forward_transient_bytes, found.backward_transient_bytes) == (forward, backward)


def test_a_dominant_table_s_peak_is_where_its_gradients_are_summed():
    # What is sent, this rank's share, and the gradient that torch's loop still names.
    assert buffers(3)[0].summing == 4 * V + V + 2 * V
    # Of the others with the unit before fetched ahead; of a layer's two gradients one is named.
    layer, head = buffers(3)[1:]
    assert layer.summing == 2 * max(V, L) + 4 * L + L + 2 * L / 2
    assert head.summing == 2 * L + 4 * V + V + 2 * V
    assert buffers(3, num_microbatches=1)[0].summing == 4 * V + 2 * V
    assert buffers(3, on_cpu=True)[0].summing == 4 * V + V + 4 * V + 2 * V


def test_a_table_behind_a_layer_keeps_weights_and_gradients_until_the_backward_is_over():
    model = HandMadeModel(2).at(1)
    (table, first, second, head), group = model.chain, replicas(cluster(), dp=4, zero_stage=3)
    chain = (table, first, replace(table, entry="more"), second, head)
    opening, before, _, behind, _ = unit_buffers(replace(model, chain=chain), group)
    # Before the table: weights, the first table fetched ahead, one of two gradients, the sums of
    # the next layer's that were sent, and the table's weights and gradients.
    assert before.backward == 2 * L + 2 * V + 2 * L / 2 + 4 * L + (2 + 2) * V
    # Behind it: the table fetched ahead, and the sums of the head's.
    assert behind.backward == 2 * L + 2 * V + 2 * L / 2 + 4 * V
    # At the end the first is summed next to the other's weights and gradients.
    assert opening.summing == (4 * V + V + 2 * V) + (2 + 2) * V


def test_zero_2_keeps_weights_whole_and_frees_them_with_the_backward():
    three, two = buffers(3), buffers(2)
    whole = 2 * (2 * V + 2 * L)  # is counted as held all step long
    assert two[2].forward == 2 * V
    assert two[0].summing == three[0].summing - whole
    assert two[0].backward == three[0].backward - whole


@pytest.mark.parametrize("wide_first", [False, True])
@pytest.mark.parametrize("zero_stage", [2, 3])
def test_units_of_one_block_are_gathered_and_summed_in_turn(zero_stage, wide_first):
    """The second layer has another module next to it: one weight of 2 L elements. A unit that is
    summed needs 4 bytes per element sent, a quarter of it received, and its last weight's gradient:
    4 L + L + 2 L / 2 of the layer, 8 L + 2 L + 4 L of the module."""
    model = HandMadeModel(2).at(1)
    layer = model.kinds[1]
    wide = replace(parameter("", (WIDTH, 16 * WIDTH)), whole_name="between.weight")
    parameters = (wide, *layer.parameters) if wide_first else (*layer.parameters, wide)
    kinds = (*model.kinds, replace(layer, parameters=parameters))
    chain = (*model.chain[:2], replace(model.chain[2], kind=3), model.chain[3])
    model = replace(model, kinds=kinds, chain=chain)
    found = unit_buffers(model, replicas(cluster(), dp=4, zero_stage=zero_stage))[2]
    if zero_stage == 3:
        # The flat tensor of the layer before, and two copies; in the backward it is fetched ahead.
        assert found.gathering == 2 * L + 2 * (2 * 2 * L)
        assert found.summing == 2 * L + 14 * L
        assert found.forward == 2 * (2 * 2 * L)
        assert found.backward == 2 * 2 * L + 2 * L + 4 * V
        assert found.ending == found.backward + 2 * 2 * L
        return
    # Whole: the table, the first layer, and units of this block that are gathered earlier.
    whole, before = 2 * (2 * V + 4 * L), 2 * (V + L)
    if wide_first:
        assert found.gathering + whole == before + 2 * 2 * L + 2 * 2 * L + 2 * (2 * L)
        assert found.summing + whole == before + 14 * L
    else:
        assert found.gathering + whole == before + 2 * L + 2 * L + 2 * (2 * 2 * L)
        assert found.summing + whole == before + 2 * L + 14 * L
    assert found.forward + whole == before + 2 * 3 * L + 2 * 2 * L
    assert found.backward + whole == before + 2 * 3 * L + 4 * V
    assert found.ending == found.backward + 2 * 2 * L


@pytest.mark.parametrize("zero_stage", [2, 3])
def test_a_unit_that_is_called_again_keeps_gradients_until_its_first_call(zero_stage):
    """The head's block calls both layers again; the second one has only one weight, L / 2."""
    model = HandMadeModel(2).at(1)
    table, layer, head = model.kinds
    called = [
        replace(each, whole_name=f"layers.{index}.{each.name}", calls=(1, 1))
        for index, own in enumerate((layer.parameters, layer.parameters[:1]))
        for each in own
    ]
    kinds = (
        table,
        replace(layer, parameters=tuple(called[:2])),
        replace(layer, parameters=tuple(called[2:])),
        replace(head, parameters=(*head.parameters, *called)),
    )
    chain = tuple(replace(ref, kind=kind) for kind, ref in enumerate(model.chain))
    group = replicas(cluster(), dp=4, zero_stage=zero_stage)
    found = unit_buffers(replace(model, kinds=kinds, chain=chain), group)
    first, second, last = found[1:]
    if zero_stage == 3:
        # Weights, the unit before fetched ahead, gradients of the later calls, sums of the next.
        later = 2 * (L + L / 2)
        assert first.backward == 2 * L + 2 * V + later + 4 * L / 2 + 2 * L / 2
        assert first.summing == 2 * V + later + 6 * L
        assert second.backward == 2 * L / 2 + 2 * L + later + 4 * V
        assert second.summing == 2 * L + later + (4 + 1 + 2) * L / 2
        # The layers run after the head within the block: the larger may be fetched ahead or summed.
        assert last.backward == 2 * V + 2 * L + 4 * L
        assert (last.gathering, last.summing) == (2 * L / 2 + 4 * V, 2 * L / 2 + 7 * V)
        return
    whole, before = 2 * (2 * V + L + L / 2), 2 * (V + L + L / 2)
    assert second.summing + whole == 2 * (V + L) + (4 + 1 + 2) * L / 2
    assert last.gathering + whole == before + 2 * L / 2 + 4 * V
    assert last.summing + whole == before + 7 * V


def test_what_two_blocks_read_is_the_root_s_and_gathered_all_along():
    table, layer, _ = buffers(3, tied=True)
    assert layer.forward == 2 * V + 4 * L
    assert table.summing == buffers(3)[0].summing
    graph = HandMadeModel(2, tied=True).at(1)
    _, first, second, head = unit_buffers(graph, replicas(cluster(), dp=4, zero_stage=3))
    # The head makes that gradient itself, with the layer before it fetched ahead.
    assert head.backward == 2 * V + 2 * L
    # The root's weights and the gradient that the head made of them; of a layer as if it were
    # untied. The first has the other's sums beside it, and nothing to fetch ahead.
    assert first.backward == 4 * V + 2 * L + 2 * L / 2 + 4 * L
    assert second.backward == 4 * V + 2 * L + 2 * L / 2 + 2 * L
    # While they are summed: 4 L sent, L received, the last of two gradients.
    assert first.summing == 4 * V + 6 * L
    assert second.summing == 4 * V + 2 * L + 6 * L
    # With a module of one weight of 2 L next to the head: 8 L sent, 2 L received, one gradient.
    wide = replace(parameter("", (WIDTH, 16 * WIDTH)), whole_name="between.weight")
    kinds = (
        *graph.kinds[:2],
        replace(graph.kinds[2], parameters=(*graph.kinds[2].parameters, wide)),
    )
    found = unit_buffers(replace(graph, kinds=kinds), replicas(cluster(), dp=4, zero_stage=3))
    assert found[3].gathering == 2 * V + 2 * L + 2 * (2 * 2 * L)
    assert found[3].summing == 2 * V + 2 * L + 2 * V + 14 * L
    assert found[3].backward == 2 * V + 2 * 2 * L + 2 * L


def test_a_pipeline_gathers_block_by_block_under_zero_3():
    table, layer, head = buffers(3, pp=2)
    alone = buffers(3)[1]
    assert (layer.forward, layer.gathering) == (alone.forward, alone.gathering)
    # The layer before one is fetched ahead; before the first, the table.
    assert layer.backward == 2 * L + 2 * max(L, V) + 2 * L / 2
    assert layer.summing == 2 * max(L, V) + 2 * L
    assert (table.backward, head.backward) == (2 * V, 2 * V + 2 * L)
    # A table that both ends of the pipeline hold is gathered by neither for the layers between.
    assert buffers(3, pp=2, tied=True)[1].forward == layer.forward


def test_gradients_of_a_pipeline_are_added_to_sums_of_another_type_behind_the_unit():
    none = UnitBuffers()
    _, layer, _ = buffers(2, pp=2)
    # Weights are whole. One of the two gradients is next to that which is being made.
    assert layer == none._replace(backward=2 * L / 2, ending=2 * L, summing=2 * L)
    graph = HandMadeModel(2).at(1)
    for zero_stage, precision in ((0, "bf16"), (2, "fp32")):
        group = replicas(cluster(), dp=4, pp=2, zero_stage=zero_stage, precision=precision)
        assert set(unit_buffers(graph, group)) == {none}


def test_the_first_block_of_a_stage_has_none_before_it():
    group = replicas(cluster(), dp=4, pp=2, zero_stage=3)
    model = HandMadeModel(2).at(1)
    _, first, second, head = unit_buffers(model, group, openings={0, 2})
    assert first.gathering == 2 * V + 4 * L
    assert (second.gathering, second.backward) == (4 * L, 2 * L + 2 * L / 2)
    assert head.gathering == 2 * L + 4 * V


@pytest.mark.parametrize("zero_stage", [2, 3])
def test_a_peak_follows_from_the_units(zero_stage):
    found = predict(plan(dp=4, zero_stage=zero_stage), HandMadeModel(6), cluster(1, 4)).ranks[0]
    n = 2 * V + 6 * L
    # Shards of weights, gradients and states, and at least the table's gradients being summed.
    shards = (4 + 4 + 8) * n / 4
    assert found.peak_bytes >= shards + 7 * V
