"""Random small models whose blocks branch, and every plan of them, each with the event timeline."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from profiles.model.graph import (
    Block,
    BlockRef,
    Branch,
    ModelGraph,
    Parameter,
    Phase,
    SavedTensor,
    TensorSpec,
    with_kind,
)
from simulator.values.degrees import Degrees
from simulator.values.plan import Plan, Recompute, Stage
from simulator.values.workload import Workload
from tests.simulator.hand_made import matmul, memory_op

WIDTH = 512
SHAPES = ("towers", "skips", "any")


def drawn_flows(rng: np.random.Generator, shape: str, n: int) -> dict[int, list[int]]:
    """Per block the blocks that take its tensor; every block's is taken, the last block's apart."""
    takes: dict[int, set[int]] = {k: set() for k in range(n)}
    if shape == "towers":
        cut = int(rng.integers(1, n - 1))
        for k in range(n - 1):
            takes[k] = {k + 1} if k not in (cut - 1, n - 2) else {n - 1}
    elif shape == "skips":
        for k in range(n - 1):
            takes[k] = {k + 1} | ({int(rng.integers(k + 1, n))} if rng.random() < 0.5 else set())
    else:
        for k in range(1, n):
            for producer in rng.choice(k, size=min(k, int(rng.integers(0, 3))), replace=False):
                takes[int(producer)].add(k)
        for k in range(n - 1):
            takes[k] = takes[k] or {n - 1}
    return {k: sorted(takes[k]) for k in range(n - 1)}


class BranchModel:
    """A model as the planner asks for it, of `n` random blocks; micro-batches are of one sequence
    whatever they are called."""

    content_hash = "drawn"
    tensor_parallel = ()
    tied_parameters = ()
    tp_degrees = (1,)
    why_not_tensor_parallel = ""
    name = "drawn"

    def __init__(self, rng: np.random.Generator, shape: str, n: int, *, unlike: bool) -> None:
        flows = drawn_flows(rng, shape, n)
        sizes = rng.integers(1, 2 if not unlike else 9, n)
        specs = [TensorSpec(shape=(int(64 * size), WIDTH), dtype="bfloat16") for size in sizes]
        kinds: dict[str, int] = {}
        blocks: list[Block] = []
        chain = []
        for k in range(n):
            tokens = int(256 * (rng.integers(2, 12) if unlike or k in (0, n - 1) else 6))
            taken = [specs[p] for p in flows if k in flows[p]]
            block = _block(rng, tokens, tuple(taken), (specs[k],) if k < n - 1 else (), unlike)
            chain.append(
                BlockRef(entry=f"b{k}" if k else "", kind=kinds.setdefault(block.kind, len(kinds)))
            )
            if len(blocks) < len(kinds):
                blocks.append(block)
        branches = tuple(
            Branch(producer=p, consumers=tuple(users), spec=specs[p]) for p, users in flows.items()
        )
        plain = all(branch.consumers == (branch.producer + 1,) for branch in branches)
        self.graph = ModelGraph(
            name="drawn",
            source="random_branches.py",
            micro_batch=1,
            sequence_length=1,
            dtype="bfloat16",
            tp=1,
            kinds=tuple(blocks),
            chain=tuple(chain),
            branches=() if plain else branches,
        )
        self.flows = flows

    def at(self, micro_batch: int, tp: int = 1) -> ModelGraph:
        return replace(self.graph, micro_batch=micro_batch)


def _block(
    rng: np.random.Generator,
    tokens: int,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    unlike: bool,
) -> Block:
    saved = int(2**20 * (rng.integers(1, 20) if unlike else 8))
    peak = int(2**20 * (rng.integers(1, 20) if unlike else 8))
    backward = (
        memory_op("gelu_backward", 2**20, phase=Phase.BACKWARD),
        matmul(tokens, WIDTH, WIDTH, phase=Phase.BACKWARD, dtype="bfloat16"),
        matmul(WIDTH, WIDTH, tokens, phase=Phase.BACKWARD, dtype="bfloat16"),
    )
    return with_kind(
        Block(
            kind="",
            label="Drawn",
            inputs=inputs,
            outputs=outputs,
            forward_ops=(
                matmul(tokens, WIDTH, WIDTH, dtype="bfloat16"),
                memory_op("gelu", 2**20),
                memory_op("_softmax", saved),
            ),
            backward_ops=backward,
            parameters=(
                Parameter(
                    name="weight",
                    spec=TensorSpec(shape=(WIDTH, WIDTH), dtype="bfloat16"),
                    full_shape=(WIDTH, WIDTH),
                ),
            ),
            saved=(SavedTensor(module="", memory_bytes=saved),),
            attention_module="",
            attention_input_bytes=0,
            forward_peak_bytes=peak,
            backward_peak_bytes=peak,
        )
    )


def nested(model: BranchModel, stages: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every way to fill so many stages: a stage holds no block without what that one takes being in
    it or before it, something crosses every cut, and the last block (the loss) is last."""
    n = len(model.graph.chain)
    for of in itertools.product(range(stages), repeat=n - 1):
        stage_of = (*of, stages - 1)
        if set(stage_of) != set(range(stages)):
            continue
        pairs = [(stage_of[p], stage_of[k]) for p, users in model.flows.items() for k in users]
        if any(a > b for a, b in pairs):
            continue
        if any(not any(a < cut <= b for a, b in pairs) for cut in range(1, stages)):
            continue
        yield tuple(tuple(k for k in range(n) if stage_of[k] == s) for s in range(stages))


def plan_of(
    model: BranchModel,
    stages: tuple[tuple[int, ...], ...],
    recompute: tuple[Recompute, ...],
    *,
    pp: int,
    micro: int,
    schedule: str,
) -> Plan:
    """The plan with these blocks in the stages, `recompute` per block of the traced order."""
    made, begin = [], 0
    for blocks in stages:
        made.append(
            Stage(
                first_block=begin,
                last_block=begin + len(blocks),
                recompute=tuple(recompute[k] for k in blocks),
            )
        )
        begin += len(blocks)
    return Plan(
        model="drawn",
        model_hash="drawn",
        block_entries=tuple(model.graph.chain[k].entry for blocks in stages for k in blocks),
        cluster="drawn",
        cluster_hash="",
        workload=Workload(global_batch=micro, sequence_length=1, precision="bf16"),
        degrees=Degrees(pp=pp, vpp=len(stages) // pp),
        micro_batch=1,
        schedule=schedule,
        stages=tuple(made),
    )
