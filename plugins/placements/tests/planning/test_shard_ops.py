"""Op-level sharding: transformer blocks beside Megatron's layout, and brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shardwright_placements.op_graph.op_graph import GraphBlock, GraphOp, GraphTensor, OpGraph
from shardwright_placements.op_graph.trace_op_graph import trace_op_graph
from shardwright_placements.planning.answer_file import placement_rules
from shardwright_placements.planning.megatron import megatron_strategies
from shardwright_placements.planning.mesh import Mesh
from shardwright_placements.planning.placement_problem import NANOSECOND_S, build_problem
from shardwright_placements.planning.solve_block import OpSharding, shard_ops
from shardwright_placements.strategy_graph.solve import Status
from torch import Tensor, nn

from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.model.building.build import BuiltModel, assumed_loss, build_model
from profiles.model.graph import MatmulShape, Op, OpKind, Phase
from profiles.model.loaders import resolve_model
from simulator.traced.comm_cost import price_collective

NODE = get_cluster("8xh100-sxm")
KINDS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head"), "column"),
    **dict.fromkeys(("o_proj", "down_proj"), "row"),
}


def mesh(size: int = 8) -> Mesh:
    return Mesh(cluster=NODE, sizes=(size,))


def traced(name: str, seq: int, **config: Any) -> OpGraph:
    spec = resolve_model(name)
    spec = replace(spec, config={**spec.config, **config})
    built = build_model(spec, micro_batch=1, sequence_length=seq, dtype="bfloat16")
    return trace_op_graph(built, name=name)


@pytest.fixture(scope="module")
def llama() -> OpGraph:
    return traced("llama-3.1-70b", 8192, num_hidden_layers=4)


@pytest.fixture(scope="module")
def answer(llama: OpGraph) -> OpSharding:
    return shard_ops(llama, mesh())


def kinds_by_layer(answer: OpSharding, graph: OpGraph) -> dict[str, str]:
    return {r.pattern.rpartition(".")[2]: r.kind for r in placement_rules(answer, graph)}


def test_the_trace_holds_one_block_for_all_its_repeats(llama: OpGraph) -> None:
    assert [(b.label, b.repeats) for b in llama.blocks][1] == ("LlamaDecoderLayer", 4)
    ((entering, leaving),) = llama.blocks[1].carried
    assert llama.tensors[entering].shape == llama.tensors[leaving].shape == (1, 8192, 8192)
    down = next(op for op in llama.ops if op.module.endswith("down_proj"))
    products = [k.matmul for k in (*down.forward, *down.backward) if k.matmul]
    assert products[0] == MatmulShape(batch=1, m=8192, n=8192, k=28672)
    assert len(products) == 3
    assert llama.tensors[down.inputs[0]].producer is not None


def test_a_llama_block_is_split_as_megatron_does(llama: OpGraph, answer: OpSharding) -> None:
    assert answer.status is Status.OPTIMAL
    assert answer.cost.gap == 0.0
    kinds = kinds_by_layer(answer, llama)
    assert {name: kinds[name] for name in KINDS} == KINDS
    assert kinds["input_layernorm"] == kinds["post_attention_layernorm"] == "sequence"
    rules = placement_rules(answer, llama)
    assert ("model.layers.*.self_attn.o_proj", "row") in {(r.pattern, r.kind) for r in rules}
    texts = {r.pattern: r.placements for r in rules}
    assert texts["model.layers.*.mlp.down_proj"] == (
        "input [Shard(2)], weight [Shard(1)], output [Partial()]"
    )


def test_its_messages_are_those_of_the_published_formula(
    llama: OpGraph, answer: OpSharding
) -> None:
    """Korthikanti et al. (arXiv 2205.05198, section 4.2.2): two all-gathers and two
    reduce-scatters of s b h elements in each pass of a layer; and sums of two norms' gradients."""
    ranks, size = tuple(range(8)), 8192 * 8192 * 2
    gather = price_collective("all_gather", size, ranks, NODE).time_s
    scatter = price_collective("reduce_scatter", size, ranks, NODE).time_s
    norms = 2 * price_collective("all_reduce", 8192 * 4, ranks, NODE).time_s
    layer = 4 * (gather + scatter) + norms
    inside = [r for r in answer.reshards if llama.ops[r.maker].block == 1]
    found = sum(r.forward_s + r.backward_s for r in inside)
    found += sum(p.price.weight_sync_s for p in answer.ops if p.op.block == 1)
    assert found <= layer * (1 + 1e-9)
    assert found == pytest.approx(layer)
    megatron = shard_ops(llama, mesh(), allowed=megatron_strategies(llama, 8, KINDS))
    assert answer.seconds <= megatron.seconds * (1 + 1e-9)


def test_no_sequence_split_costs_no_less(llama: OpGraph, answer: OpSharding) -> None:
    plain = megatron_strategies(llama, 8, KINDS, sequence_dim=None)
    assert shard_ops(llama, mesh(), allowed=plain).seconds > answer.seconds


def test_a_mesh_of_two_axes_is_answered_without_a_limit_and_in_little_time(
    llama: OpGraph, answer: OpSharding
) -> None:
    """Its graph is too wide for elimination; the optimum on 2 x 4 is 0.4 % below that on 8."""
    two = Mesh(cluster=NODE, sizes=(2, 4))
    found = shard_ops(llama, two, time_limit_s=3.0)
    assert found.status is Status.FEASIBLE
    assert 0.99 * answer.seconds < found.seconds < 1.5 * answer.seconds
    assert found.cost.lower_bound_s <= 0.997 * answer.seconds


@pytest.mark.parametrize("heads", [1, 2])
def test_few_key_value_heads_beat_columns(heads: int) -> None:
    graph = traced("llama-3.1-70b", 8192, num_hidden_layers=4, num_key_value_heads=heads)
    best = shard_ops(graph, mesh())
    megatron = shard_ops(graph, mesh(), allowed=megatron_strategies(graph, 8, KINDS))
    assert best.status is Status.OPTIMAL
    assert best.seconds < 0.995 * megatron.seconds


def test_a_large_vocabulary_stays_split_through_the_loss(
    llama: OpGraph, answer: OpSharding
) -> None:
    loss = next(p for p in answer.ops if p.op.name == "cross_entropy")
    assert loss.strategy.label == "S(1) R -> R"
    head = next(i for i, op in enumerate(llama.ops) if op.module == "lm_head")
    whole = shard_ops(llama, mesh(), allowed={head: frozenset({"R R -> R"})})
    assert answer.seconds < whole.seconds


def test_experts_are_split_by_experts() -> None:
    graph = traced("mixtral-8x7b", 4096, num_hidden_layers=4)
    best = shard_ops(graph, mesh())
    assert best.status is Status.OPTIMAL
    grouped = [i for i, p in enumerate(best.ops) if p.op.name == "_grouped_mm"]
    assert {best.ops[i].strategy.label for i in grouped} == {"S(0) S(0) R -> S(0)"}
    split = {
        grouped[0]: frozenset({"R/P S(2) R -> S(1)"}),
        grouped[1]: frozenset({"S(1) S(1) R -> P/R"}),
    }
    assert best.seconds < 0.9 * shard_ops(graph, mesh(), allowed=split).seconds


# --- brute force ------------------------------------------------------------------------------


def brute_force(graph: OpGraph, on: Mesh, limit: float | None = None) -> tuple[int, int]:
    """The least cost in nanoseconds over all combinations of strategies, and how many there are.

    Each tensor is brought into exactly what its readers read (and what its maker keeps).
    """
    problem = build_problem(graph, on)
    nodes = problem.strategy_graph(limit)
    best, count, ops = 10**17, 0, len(graph.ops)
    for chosen in itertools.product(*(range(len(s)) for s in problem.strategies)):
        count += 1
        cost = sum(
            round(graph.blocks[graph.ops[i].block].repeats * p[c].total_s / NANOSECOND_S)
            for i, (p, c) in enumerate(zip(problem.prices, chosen, strict=True))
        )
        states = []
        for uses in problem.uses:
            read = {
                layout
                for r in uses.readers
                for t, layout in zip(
                    graph.ops[r].inputs, problem.strategies[r][chosen[r]].inputs, strict=True
                )
                if t == uses.tensor
            }
            for maker, output, _ in uses.made:
                made = problem.strategies[maker][chosen[maker]].outputs[output]
                if uses.tensor in graph.ops[maker].saved:
                    read.add(made)
            for maker, output, times in uses.made:
                made = problem.strategies[maker][chosen[maker]].outputs[output]
                tensor = graph.tensors[uses.tensor]
                seconds = problem.resharding.total_seconds(tensor, made, tuple(read))
                cost += round(times * seconds / NANOSECOND_S)
            states.append([set(s) for s in uses.states].index(read))
        if limit is not None:
            usage = nodes.usage_over_time((*chosen, *states))
            if usage.max() > limit:
                continue
        best = min(best, cost)
    assert ops == len(problem.strategies)
    return best, count


def product(m: int, n: int, k: int, phase: Phase) -> Op:
    return Op(
        name="mm",
        kind=OpKind.MATMUL,
        phase=phase,
        module="",
        dtype="bfloat16",
        work_flop=2 * m * n * k,
        read_bytes=2 * (m * k + n * k),
        written_bytes=2 * m * n,
        matmul=MatmulShape(batch=1, m=m, n=n, k=k),
    )


def pass_over(size: int, phase: Phase) -> Op:
    return Op(
        name="relu",
        kind=OpKind.MEMORY,
        phase=phase,
        module="",
        dtype="bfloat16",
        work_flop=0,
        read_bytes=2 * size,
        written_bytes=2 * size,
    )


def random_graph(kinds: list[str], sources: list[int], rows: int, width: int) -> OpGraph:
    """A graph of square linear layers, sums and activations over [rows, width]."""
    tensors = [GraphTensor(shape=(rows, width), dtype="bfloat16", needs_gradient=True, storage=0)]
    ops: list[GraphOp] = []
    made = [0]
    f, b = Phase.FORWARD, Phase.BACKWARD
    for kind, source in zip(kinds, sources, strict=True):
        first = made[source % len(made)]
        inputs, saved = [first], [first]
        kernels = [pass_over(rows * width, f)], [pass_over(rows * width, b)]
        if kind == "linear":
            tensors.append(
                GraphTensor(
                    shape=(width, width),
                    dtype="bfloat16",
                    needs_gradient=True,
                    parameter=f"w{len(ops)}",
                    storage=len(tensors),
                )
            )
            inputs.append(len(tensors) - 1)
            backward = [product(rows, width, width, b), product(width, width, rows, b)]
            kernels = [product(rows, width, width, f)], backward
        elif kind == "add":
            inputs.append(made[-1])
            saved = []
        tensors.append(
            GraphTensor(
                shape=(rows, width),
                dtype="bfloat16",
                producer=len(ops),
                needs_gradient=True,
                storage=len(tensors),
            )
        )
        made.append(len(tensors) - 1)
        ops.append(
            GraphOp(
                name=kind,
                module=f"m{len(ops)}",
                block=0,
                inputs=tuple(inputs),
                outputs=(made[-1],),
                forward=tuple(kernels[0]),
                backward=tuple(kernels[1]),
                saved=tuple(saved),
            )
        )
    blocks = (GraphBlock(label="random", entries=("",)),)
    return OpGraph(name="random", tensors=tuple(tensors), ops=tuple(ops), blocks=blocks)


graphs = st.integers(2, 4).flatmap(
    lambda n: st.builds(
        random_graph,
        st.lists(st.sampled_from(["linear", "relu", "add"]), min_size=n, max_size=n),
        st.lists(st.integers(0, 5), min_size=n, max_size=n),
        st.sampled_from([512, 4096, 6]),
        st.sampled_from([1024, 4096]),
    )
)


@settings(max_examples=12, deadline=None)
@given(graphs)
def test_the_answer_equals_brute_force(graph: OpGraph) -> None:
    found = shard_ops(graph, mesh(2))
    best, count = brute_force(graph, mesh(2))
    assert count > 1
    assert found.status is Status.OPTIMAL
    assert round(found.seconds / NANOSECOND_S) == pytest.approx(best, abs=40)


@settings(max_examples=5, deadline=None)
@given(graphs, st.floats(0.5, 0.98))
def test_bounds_stay_under_brute_force_within_memory(graph: OpGraph, part: float) -> None:
    free = shard_ops(graph, mesh(2))
    limit = float(int(part * free.memory_bytes))
    best, _ = brute_force(graph, mesh(2), limit)
    found = shard_ops(graph, mesh(2), memory_limit_bytes=limit, time_limit_s=3.0)
    if best == 10**17:
        assert found.status is Status.INFEASIBLE
        return
    assert found.memory_bytes <= limit
    assert found.cost.lower_bound_s / NANOSECOND_S <= best + 40
    assert found.seconds / NANOSECOND_S == pytest.approx(best, abs=40)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(64, 256, 3, padding=1)
        self.second = nn.Conv2d(256, 64, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


@pytest.mark.parametrize("batch", [16, 1])
def test_convolutions_equal_brute_force(batch: int) -> None:
    with torch.device("meta"):
        module = Convolutions()
        images = torch.empty(batch, 64, 56, 56)
    built = BuiltModel(
        module=module, args=(images,), targets=None, call=lambda m, x: m(x), loss_fn=assumed_loss
    )
    graph = trace_op_graph(built, name="convolutions")
    graph = replace(graph, ops=graph.ops[:3])
    found = shard_ops(graph, mesh(4))
    best, _ = brute_force(graph, mesh(4))
    assert round(found.seconds / NANOSECOND_S) == pytest.approx(best, abs=40)
    labels = [p.strategy.label for p in found.ops]
    if batch == 1:
        assert labels[0].endswith("S(0) S(0) -> S(1)")
        assert labels[2].startswith("S(1) S(1)")
    else:
        by_batch = labels[0].endswith("-> S(0)") and labels[2].startswith("S(0)")
        by_channels = labels[0].endswith("-> S(1)") and labels[2].startswith("S(1) S(1)")
        assert by_batch or by_channels


def test_less_memory_splits_the_weights() -> None:
    """A wide batch and small weights: data parallel, until memory is short."""
    graph = random_graph(["linear", "relu", "linear", "relu"], [0, 1, 2, 3], 65536, 2048)
    free = shard_ops(graph, mesh(4), micro_batches=64)
    assert [p.strategy.label for p in free.ops if p.op.name == "linear"] == ["S(0) R/P -> S(0)"] * 2
    limit = free.memory_bytes - 2048 * 2048 * 16 // 2
    tight = shard_ops(graph, mesh(4), micro_batches=64, memory_limit_bytes=limit, time_limit_s=3.0)
    assert tight.memory_bytes <= limit < free.memory_bytes
    assert tight.seconds > free.seconds
    assert free.seconds <= tight.cost.lower_bound_s * (1 + 1e-6)


def test_two_axes_cost_no_more_than_either_alone() -> None:
    graph = random_graph(["linear", "relu", "linear", "relu"], [0, 1, 2, 3], 8192, 4096)
    two = Mesh(cluster=NODE, sizes=(2, 2))
    both = shard_ops(graph, two, micro_batches=4, time_limit_s=4.0)
    assert both.status is Status.OPTIMAL
    assert both.seconds < shard_ops(graph, mesh(2), micro_batches=4).seconds


def test_what_cannot_be_is_said() -> None:
    graph = random_graph(["linear"], [0], 6, 1024)
    with pytest.raises(InputError, match="16 devices does not fit the cluster 8xh100-sxm"):
        mesh(16)
    with pytest.raises(InputError, match="must be above 0"):
        shard_ops(graph, mesh(2), memory_limit_bytes=0.0)
    with pytest.raises(InputError, match="m0 cannot be a row layer over 3 ranks"):
        megatron_strategies(graph, 3, {"m0": "row"})
    least = shard_ops(graph, mesh(2), memory_limit_bytes=1000.0)
    assert least.status is Status.INFEASIBLE
    assert np.isinf(least.seconds)
