"""Weights whose module is called several times in a pass: what FSDP2 gathers and sums of them."""

from __future__ import annotations

import pytest

from profiles.model.graph import ModelGraph, parameter_name
from profiles.model.loaders import resolve_model
from profiles.model.tracing.traced import trace_model
from simulator.memory.data_group import Sharing
from simulator.memory.held import BlockBytes, held_parameters
from simulator.training_run.framework.framework import load_stack
from simulator.values.degrees import Degrees
from simulator.values.workload import Workload

# One tower of a table, three layers and a projection reads both inputs, its second layer twice.
WORDS, OUT = 32 * 12, 12 * 4 + 4
LAYER = 2 * 12 + 12 * 24 + 24 + 24 * 12 + 12


@pytest.fixture(scope="module")
def graph() -> ModelGraph:
    spec = resolve_model("tests.executor.weight_zoo:compared")
    return trace_model(spec, sequence_length=6, dtype="float32").at(2, 1)


def sharing(zero_stage: int, *, pipelined: bool = False) -> Sharing:
    return Sharing(
        degrees=Degrees(dp=2, pp=1 + pipelined),
        zero_stage=zero_stage,
        pipelined=pipelined,
        num_microbatches=2,
        workload=Workload(global_batch=8, sequence_length=6, precision="fp32"),
        stack=load_stack(),
    )


def moved(graph: ModelGraph, how: Sharing) -> tuple[int, ...]:
    none = dict.fromkeys(set(BlockBytes.__dataclass_fields__) - {"parameters"}, 0.0)
    blocks = (graph.kinds[ref.kind].parameters for ref in graph.chain)
    each = [BlockBytes(**none, parameters=held).moved(how) for held in blocks]
    return tuple(map(sum, zip(*each, strict=True)))


def test_calls_are_counted_in_the_block_where_they_happen(graph: ModelGraph) -> None:
    entries = [ref.entry for ref in graph.chain]
    assert entries == ["", *(f"tower.layers.{i}" for i in range(3)), "tower.out"]
    found = [
        {parameter_name(ref, p): p.calls for p in graph.kinds[ref.kind].parameters}
        for ref in graph.chain
    ]
    assert found[0]["tower.words.weight"] == (1, 1)
    # No argument of a table has a gradient: what its second call uses waits for the first.
    assert found[-1]["tower.words.weight"] == (1, 0)
    second = next(name for name in found[2] if name.startswith("tower.layers.1."))
    assert [calls.get(second) for calls in found] == [None, None, (1, 1), (1, 1), (2, 2)]
    assert found[-1]["tower.out.weight"] == (2, 2)


@pytest.mark.parametrize(
    ("zero_stage", "forward", "backward"),
    [
        (3, 2 * WORDS + 8 * LAYER + 2 * OUT, WORDS + 8 * LAYER + 2 * OUT),
        # What a later call has freed is gathered again.
        (2, WORDS + 3 * LAYER + OUT, 5 * LAYER + OUT),
    ],
)
def test_every_call_gathers_and_the_first_one_sums(
    graph: ModelGraph, zero_stage: int, forward: int, backward: int
) -> None:
    whole = WORDS + 3 * LAYER + OUT
    assert moved(graph, sharing(zero_stage)) == (forward, backward, whole)
    assert moved(graph, sharing(3, pipelined=True)) == (
        2 * WORDS + 8 * LAYER + 2 * OUT,
        WORDS + 8 * LAYER + 2 * OUT,
        0,
    )


def test_a_step_gathers_again_in_its_last_backward(graph: ModelGraph) -> None:
    held = held_parameters(graph, graph.chain)
    assert sum(held.trained) == WORDS + 3 * LAYER + OUT
    assert held.again == 5 * LAYER + OUT
    assert held.resummed == 3 * LAYER + OUT
