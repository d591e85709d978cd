"""Devices, clusters, models and plans with round numbers, small enough to compute by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from profiles.hardware.catalogue.cluster import Cluster, Level, NodeGroup
from profiles.hardware.catalogue.device import BlockPoint, Device, Measurements
from profiles.hardware.catalogue.link import Link, LinkPoint
from profiles.model.graph import (
    Block,
    BlockRef,
    Collective,
    MatmulShape,
    ModelGraph,
    Op,
    OpKind,
    Parameter,
    Phase,
    SavedTensor,
    TensorSpec,
    with_kind,
)
from profiles.model.kernels import DeviceKernel
from profiles.sourced import Sourced
from simulator.memory.data_group import DataGroup
from simulator.training_run.framework.framework import load_stack
from simulator.values.degrees import Degrees
from simulator.values.plan import Plan, Recompute, Stage
from simulator.values.workload import Workload

GIB = 2**30
PRODUCTS = ("attn.qkv", "attn.out", "mlp.up", "mlp.down")


def said(value: float, uncertainty: float = 0.0) -> Sourced:
    return Sourced(value=value, source="by hand", date="2026-11-21", uncertainty=uncertainty)


def device(
    *,
    flop_per_s: float = 100e12,
    bandwidth: float = 1e12,
    memory_bytes: float = 80 * GIB,
    launch_s: float = 1e-6,
    measurements: Measurements | None = None,
    name: str = "hand-gpu",
    rates: tuple[str, ...] = ("bfloat16", "float32"),
) -> Device:
    """A profiled device, so that no fitted coefficient comes between the numbers."""
    return Device(
        name=name,
        vendor="none",
        type="gpu",
        peak_flop_per_s={rate: said(flop_per_s) for rate in rates},
        memory_bytes=said(memory_bytes),
        reserved_bytes=said(0.0),
        memory_bandwidth_bytes_per_s=said(bandwidth),
        power_w=said(500.0),
        launch_s=said(launch_s),
        measurements=measurements or Measurements(source="by hand", date="2026-11-21"),
    )


def link(
    *,
    bandwidth: float = 100e9,
    latency_s: float = 1e-6,
    efficiency: float = 1.0,
    shared_by: int = 1,
    points: tuple[LinkPoint, ...] = (),
    name: str = "hand-link",
) -> Link:
    return Link(
        name=name,
        bandwidth_bytes_per_s=said(bandwidth),
        latency_s=said(latency_s),
        efficiency=said(efficiency),
        shared_by=shared_by,
        points=points,
    )


def cluster(
    nodes: int = 2,
    per_node: int = 4,
    *,
    of: Device | None = None,
    inner: Link | None = None,
    outer: Link | None = None,
    oversubscription: float = 1.0,
    overhead_power: float = 0.0,
) -> Cluster:
    """`nodes` x `per_node` devices: 100 GB/s inside a node, 10 GB/s per device between nodes."""
    levels = []
    if per_node > 1:
        levels.append(Level(name="node", domain_size=per_node, link=inner or link()))
    if nodes > 1:
        levels.append(
            Level(
                name="spine",
                domain_size=nodes * per_node,
                link=outer or link(bandwidth=10e9, latency_s=10e-6),
                oversubscription=oversubscription,
            )
        )
    return Cluster(
        name=f"{nodes}x{per_node}-hand",
        groups=(NodeGroup(count=nodes, devices_per_node=per_node, device=of or device()),),
        levels=tuple(levels),
        overhead_power=overhead_power,
    )


def matmul(
    m: int, n: int, k: int, *, phase: Phase = Phase.FORWARD, module: str = "", dtype: str
) -> Op:
    size = {"bfloat16": 2, "float32": 4}[dtype]
    return Op(
        name="mm",
        kind=OpKind.MATMUL,
        phase=phase,
        module=module,
        dtype=dtype,
        work_flop=2 * m * n * k,
        read_bytes=size * (m * k + k * n),
        written_bytes=size * m * n,
        matmul=MatmulShape(batch=1, m=m, n=n, k=k),
    )


def memory_op(
    name: str,
    moved_bytes: int,
    *,
    phase: Phase = Phase.FORWARD,
    module: str = "",
    dtype: str = "bfloat16",
) -> Op:
    return Op(
        name=name,
        kind=OpKind.MEMORY,
        phase=phase,
        module=module,
        dtype=dtype,
        work_flop=0,
        read_bytes=moved_bytes // 2,
        written_bytes=moved_bytes - moved_bytes // 2,
    )


def layer(
    *,
    tokens: int = 1024,
    width: int = 1024,
    label: str = "Layer",
    dtype: str = "bfloat16",
    tp: int = 1,
    loss: bool = False,
    first: bool = False,
) -> Block:
    """An attention of two products about a softmax, and an MLP of two about a gelu."""
    boundary = TensorSpec(shape=(tokens, width), dtype=dtype)
    size = boundary.memory_bytes
    inner = width // tp
    forward = (
        matmul(tokens, inner, width, module="attn.qkv", dtype=dtype),
        memory_op("_softmax", 2 * size // tp, module="attn", dtype=dtype),
        matmul(tokens, width, inner, module="attn.out", dtype=dtype),
        matmul(tokens, inner, width, module="mlp.up", dtype=dtype),
        memory_op("gelu", 2 * size // tp, module="mlp", dtype=dtype),
        matmul(tokens, width, inner, module="mlp.down", dtype=dtype),
        memory_op("add", 3 * size, dtype=dtype),
    )
    backward = tuple(
        matmul(tokens, inner, width, phase=Phase.BACKWARD, module=module, dtype=dtype)
        for module in reversed(PRODUCTS)
        for _ in range(2)
    )
    collectives = tuple(
        Collective(operation="all_reduce", phase=phase, module=module, size_bytes=size)
        for phase in (Phase.FORWARD, Phase.BACKWARD)
        for module in ("attn.out", "mlp.down")
    )
    return with_kind(
        Block(
            kind="",
            label=label,
            inputs=() if first else (boundary,),
            outputs=() if loss else (boundary,),
            forward_ops=forward,
            backward_ops=backward,
            parameters=tuple(
                Parameter(
                    name=f"{module}.weight",
                    spec=TensorSpec(shape=(inner, width), dtype=dtype),
                    full_shape=(width, width),
                )
                for module in PRODUCTS
            ),
            saved=(
                SavedTensor(module="attn", memory_bytes=3 * size // tp),
                SavedTensor(module="mlp", memory_bytes=2 * size // tp),
            ),
            attention_module="attn",
            attention_input_bytes=size,
            forward_peak_bytes=6 * size // tp,
            backward_peak_bytes=2 * size,
            collectives=collectives if tp > 1 else (),
        )
    )


def graph(
    num_blocks: int = 8, *, micro_batch: int = 1, tp: int = 1, dtype: str = "bfloat16"
) -> ModelGraph:
    """A first block, layers, and a last block; 1,024 tokens and width 1,024 per sequence."""
    tokens = 1024 * micro_batch
    settings = {"tokens": tokens, "dtype": dtype, "tp": tp}
    kinds = (
        layer(label="First", first=True, **settings),
        layer(label="Layer", **settings),
        layer(label="Last", loss=True, **settings),
    )
    chain = [BlockRef(entry="", kind=0)]
    chain += [BlockRef(entry=f"layers.{k}", kind=1) for k in range(1, num_blocks - 1)]
    chain.append(BlockRef(entry="head", kind=2))
    return ModelGraph(
        name="hand-made",
        source="hand_made.py",
        micro_batch=micro_batch,
        sequence_length=1024,
        dtype=dtype,
        tp=tp,
        kinds=kinds,
        chain=tuple(chain),
    )


def block_points(model: Traced, **more: Any) -> tuple[BlockPoint, ...]:
    """Every kind of block measured at 10 ms forward and 20 ms back."""
    return tuple(
        BlockPoint(
            kind=kind.kind,
            label=kind.label,
            forward_s=10e-3,
            backward_s=20e-3,
            sample_count=8,
            spread=0.01,
            **more,
        )
        for kind in model.at(1, 1).kinds
    )


class Traced:
    """The traced model that `predict` asks for."""

    content_hash = "hand"

    def __init__(self, num_blocks: int = 8, dtype: str = "bfloat16") -> None:
        self.num_blocks, self.dtype = num_blocks, dtype
        self._made: dict[tuple[int, int], ModelGraph] = {}

    def at(self, micro_batch: int, tp: int = 1) -> ModelGraph:
        key = (micro_batch, tp)
        if key not in self._made:
            self._made[key] = graph(
                self.num_blocks, micro_batch=micro_batch, tp=tp, dtype=self.dtype
            )
        return self._made[key]


def plan(
    *,
    pp: int = 1,
    dp: int = 1,
    tp: int = 1,
    vpp: int = 1,
    zero_stage: int = 0,
    micro_batch: int = 1,
    num_microbatches: int = 4,
    schedule: str | None = None,
    recompute: Recompute = Recompute.NONE,
    num_blocks: int = 8,
    precision: str = "bf16",
    optimizer: str = "adamw",
    model_hash: str = "hand",
) -> Plan:
    """An even split of `Traced(num_blocks)`."""
    stages = pp * vpp
    cuts = [round(index * num_blocks / stages) for index in range(stages + 1)]
    entries = ("", *(f"layers.{k}" for k in range(1, num_blocks - 1)), "head")
    return Plan(
        model="hand-made",
        model_hash=model_hash,
        block_entries=entries,
        cluster="hand",
        cluster_hash="",
        workload=Workload(
            global_batch=dp * micro_batch * num_microbatches,
            sequence_length=1024,
            precision=precision,
            optimizer=optimizer,
        ),
        degrees=Degrees(tp=tp, pp=pp, dp=dp, vpp=vpp),
        zero_stage=zero_stage,
        micro_batch=micro_batch,
        schedule=schedule or ("none" if pp == 1 else "interleaved" if vpp > 1 else "1f1b"),
        stages=tuple(
            Stage(first_block=i, last_block=j, recompute=(recompute,) * (j - i))
            for i, j in pairwise(cuts)
        ),
    )


def replicas(
    on: Cluster,
    *,
    tp: int = 1,
    dp: int = 1,
    pp: int = 1,
    vpp: int = 1,
    zero_stage: int = 0,
    pipelined: bool | None = None,
    num_microbatches: int = 4,
    precision: str = "bf16",
    optimizer: str = "adamw",
) -> DataGroup:
    """Replicas of our executor, from the first device on."""
    return DataGroup(
        degrees=Degrees(tp=tp, pp=pp, vpp=vpp, dp=dp),
        zero_stage=zero_stage,
        pipelined=pp > 1 if pipelined is None else pipelined,
        num_microbatches=num_microbatches,
        workload=Workload(
            global_batch=1, sequence_length=1, precision=precision, optimizer=optimizer
        ),
        stack=load_stack(),
        devices=tuple(range(0, dp * tp, tp)),
        cluster=on,
    )


def one_pass(
    *kernels: DeviceKernel, parameters: tuple[int, ...] = (1000,), peak: int = 0
) -> ModelGraph:
    """A forward pass of one op for each kernel."""
    ops = tuple(
        Op(
            name="op",
            kind=OpKind.MEMORY,
            phase=Phase.FORWARD,
            module="",
            dtype=kernel.dtype,
            work_flop=kernel.work_flop,
            read_bytes=kernel.read_bytes,
            written_bytes=kernel.written_bytes,
            kernels=(kernel,),
        )
        for kernel in kernels
    )
    weights = tuple(
        Parameter(
            name=str(place), spec=TensorSpec(shape=(size,), dtype="float32"), full_shape=(size,)
        )
        for place, size in enumerate(parameters)
    )
    block = Block(
        kind="",
        label="",
        inputs=(),
        outputs=(),
        forward_ops=ops,
        backward_ops=(),
        parameters=weights,
        saved=(),
        attention_module="",
        attention_input_bytes=0,
        forward_peak_bytes=0,
        backward_peak_bytes=peak,
    )
    return ModelGraph(
        name="step",
        source="step",
        micro_batch=1,
        sequence_length=1,
        dtype="float32",
        tp=1,
        kinds=(with_kind(block),),
        chain=(BlockRef(entry="", kind=0),),
    )
