"""Weights that several stages hold: a copy in each, and gradients that are summed between them."""

from __future__ import annotations

import pytest

from simulator.memory.held import held_parameters
from simulator.traced.comm_cost import price_collective
from simulator.traced.predict import predict
from tests.executor.test_branch_stages import graph_of
from tests.executor.tiny_models import loose
from tests.planner.hand_made_model import VOCABULARY, WIDTH, HandMadeModel
from tests.simulator.hand_made import cluster, plan

TABLE = VOCABULARY * WIDTH
# The same but for the tie: both have a table in the first block and one in the last.
TIED, ALONE = HandMadeModel(6, tied=True), HandMadeModel(6)


@pytest.mark.parametrize(("zero_stage", "dp", "size"), [(0, 1, 4 * TABLE), (2, 2, 2 * TABLE)])
def test_gradients_of_a_tie_are_summed_between_the_stages(zero_stage, dp, size):
    on = cluster(1, 4)
    the_plan = plan(pp=2, dp=dp, zero_stage=zero_stage)
    tied, alone = (predict(the_plan, model, on) for model in (TIED, ALONE))
    wanted = price_collective("all_reduce", size, (0, dp), on).time_s
    for one, other in zip(tied.stages, alone.stages, strict=True):
        assert one.data_parallel_s - other.data_parallel_s == pytest.approx(wanted)
    assert tied.peak_memory_bytes == alone.peak_memory_bytes


def test_a_rank_with_both_ends_holds_a_tie_twice_and_sends_nothing():
    # Each of a rank's stages has its own copy, with gradients and states (executor/rank.py).
    v = plan(pp=2, vpp=2, schedule="zbv")
    tied, alone = (predict(v, model, cluster(1, 4)) for model in (TIED, ALONE))
    assert tied.ranks[0].static_bytes == alone.ranks[0].static_bytes
    assert tied.stages[0].data_parallel_s == 0.0


def test_weights_that_stand_in_no_layer_are_held_once_however_many_blocks_read_them():
    graph = graph_of("tests.executor.tiny_models:loose")
    trained = [p.numel() for p in loose()[0].parameters() if p.requires_grad]
    assert sum(held_parameters(graph, graph.chain).trained) == sum(trained)
