"""`KINDS`: the kinds of fitted coefficients, each with its meaning, its start and whose it is."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of coefficient.

    owner   what has one each: `device`, `device and bits` (of the matmuls' data type), `stack`,
            `stack and sharding` (of the optimizer), `network` (the outer link), or "" for one in
            all
    start, spread   where the fit begins, and how far (in log) it believes its members may lie
    least, most   what physics allows: a message is never faster than alone, no share above 1
    meaning  in words; source  of the start
    """

    name: str
    owner: str
    start: float
    spread: float
    meaning: str
    source: str
    least: float = 0.0
    most: float = math.inf


KINDS = (
    Kind(
        name="matmul",
        owner="device",
        start=0.8,
        spread=0.06,
        meaning="matmul time in a training step over that of the kernel surface (power limit, "
        "layouts of gradients, neighbours in the cache)",
        source="kernels of 3 ms run 7 to 18 % slower than bursts (gemm_surface.py), which `power` "
        "says too: where both bind, their 6-norm is up to 1.12 of either, and fits that began at 1 "
        "ended near 0.75",
    ),
    Kind(
        name="power",
        owner="device and bits",
        start=1.40,
        spread=0.20,
        meaning="matmul time over that at the datasheet's peak when matmuls run back to back, "
        "under the power limit",
        source="kernels of 3 ms and more: 0.87 of the peak on A100, 0.73 on H100, 0.58 on GB200 "
        "(gemm_surface.py)",
    ),
    Kind(
        name="pace",
        owner="stack",
        start=1.0,
        spread=0.06,
        meaning="matmul time in a framework over that on the same device in others: layouts, casts "
        "of weights, what runs beside on other streams",
        source="one device's matmuls, by definition; the spread is what sources of one framework "
        "differ by",
    ),
    Kind(
        name="grouped",
        owner="stack",
        start=1.3,
        spread=0.25,
        meaning="time of experts' matmuls over that of equal shares one after the other: uneven "
        "routing, padding, launches",
        source="assumed",
    ),
    Kind(
        name="attention",
        owner="stack",
        start=1.1,
        spread=0.12,
        meaning="time of the attention core over that of the surface",
        source="attention_surface.py: the backward is derived",
    ),
    Kind(
        name="state",
        owner="",
        start=1.5,
        spread=0.5,
        meaning="time of the recurrence of state layers (Mamba-2 and its kin) over that of its "
        "products as batched matmuls and of its bytes at the full bandwidth",
        source="assumed: kernels in Triton, tiles of 64 to 128; one measured forward takes 0.8 of "
        "what is counted (state_work.py). One source alone has such layers (Megatron-Bridge's "
        "tables): where that is left out nothing else is known",
    ),
    Kind(
        name="passes",
        owner="stack",
        start=1.2,
        spread=0.35,
        meaning="bytes that elementwise work moves over those counted, at the full bandwidth",
        source="measured copies reach 0.78 to 0.96 of the bandwidth (kernels/memory_rates.toml)",
    ),
    Kind(
        name="casts",
        owner="stack",
        start=0.5,
        spread=0.5,
        meaning="bytes of casts to 8 or 4 bits over those of kernels of their own "
        "(quantised_bytes.py): what norms and activations before a matmul write in fewer bits "
        "themselves costs nothing",
        source="assumed: Transformer Engine fuses the cast into two of a layer's four inputs",
    ),
    Kind(
        name="scores",
        owner="stack",
        start=1.1,
        spread=0.3,
        meaning="bytes that the softmax and dropout of an unfused attention core move over those "
        "counted, at the full bandwidth",
        source="measured copies reach 0.78 to 0.96 of the bandwidth (kernels/memory_rates.toml)",
    ),
    Kind(
        name="launch_us",
        owner="stack",
        start=25.0,
        spread=0.6,
        meaning="host microseconds per kernel counted: dispatch, autograd and Python around it",
        source="assumed: a launch takes 4 to 10 us (device files, launch_us), and a first fit that "
        "began at 6 ended near 40 on these same runs",
    ),
    Kind(
        name="socket_us",
        owner="stack",
        start=30.0,
        spread=1.0,
        meaning="host microseconds per tensor-parallel collective whose processes sit on both "
        "sockets of a node: it bounds steps that the host bounds",
        source="assumed",
    ),
    Kind(
        name="ring_us",
        owner="stack",
        start=4.0,
        spread=0.5,
        meaning="microseconds per ring step of a tensor-parallel collective that crosses nodes, "
        "beyond its bytes",
        source="assumed: a step pipelines hops of 3 to 5 us in a node and 12 us between nodes "
        "(latency_us in profiles/data/links); two spreads reach from 1.5 to 11 us",
    ),
    Kind(
        name="wait_us",
        owner="stack",
        start=600.0,
        spread=0.5,
        meaning="host microseconds per rank of a tensor-parallel collective while messages between "
        "nodes are outstanding that the host waits for (blocked_host.py)",
        source="layers of nanotron with stages on several nodes take 5 ms + 2.45 ms x tp, four "
        "collectives each (ultra rows, 2026-11-21)",
    ),
    Kind(
        name="stall_ms",
        owner="stack",
        start=280.0,
        spread=0.3,
        meaning="milliseconds of a message between stages in jobs whose messages stall",
        source="nanotron: 280 ms, 5 % apart, over 2 to 64 nodes and 4 to 32 stages (ultra rows, "
        "2026-11-21)",
    ),
    Kind(
        name="inner",
        owner="device",
        start=1.05,
        spread=0.1,
        least=1.0,
        meaning="time of messages inside a node in a step over that alone: of the measured curves, "
        "or at the link's rate and efficiency where none was measured",
        source="nccl-tests themselves (profiles/data/collectives)",
    ),
    Kind(
        name="outer",
        owner="network",
        start=1.02,
        spread=0.03,
        least=1.0,
        meaning="time of messages between nodes in a step over that alone, at the rate and "
        "efficiency of the link",
        source="the links' efficiency is what collectives alone reach (profiles/data/links)",
    ),
    Kind(
        name="inner_step_us",
        owner="",
        start=12.0,
        spread=0.5,
        meaning="the same of a message inside a node, where no curve was measured",
        source="small collectives of 8 GPUs take 20 to 40 us (collectives.csv.gz)",
    ),
    Kind(
        name="outer_step_us",
        owner="stack",
        start=12.0,
        spread=0.5,
        meaning="latency in a step of a message between nodes whose link has 12 us alone; links of "
        "other latency in proportion (run_links.py)",
        source="profiles/data/links/ib-ndr.toml",
    ),
    Kind(
        name="cut_step_us",
        owner="stack",
        start=60.0,
        spread=0.6,
        meaning="microseconds that a send between stages takes beyond its bytes: launch, "
        "synchronisation, waiting for the peer's host",
        source="assumed",
    ),
    Kind(
        name="cut_peer_us",
        owner="stack",
        start=10.0,
        spread=1.2,
        meaning="microseconds that each tensor-parallel rank beside adds to a send to another node",
        source="assumed",
    ),
    Kind(
        name="reduce_exposed",
        owner="stack and sharding",
        start=0.6,
        spread=0.6,
        meaning="time of the gradients' exchange that shows, over its messages alone: below 1 what "
        "hides under the backward, above 1 what buckets, copies and waits add",
        source="assumed",
    ),
    Kind(
        name="reduce_rank_us",
        owner="stack and sharding",
        start=120.0,
        spread=1.2,
        meaning="microseconds per hop between nodes of the step's exchange beyond its bytes: the "
        "latency of a ring step times the number of collectives",
        source="assumed: 10 collectives of 12 us a step (latency_us in profiles/data/links)",
    ),
    Kind(
        name="tensor_exposed",
        owner="stack",
        start=0.95,
        spread=0.15,
        most=1.0,
        meaning="share of tensor-parallel messages that does not hide",
        source="blocking calls of Megatron-LM",
    ),
    Kind(
        name="expert_exposed",
        owner="stack",
        start=0.8,
        spread=0.3,
        most=1.0,
        meaning="share of experts' all-to-alls that does not hide",
        source="assumed: shared experts and the sorting of tokens may run beside them",
    ),
    Kind(
        name="context_exposed",
        owner="stack",
        start=0.5,
        spread=0.5,
        most=1.0,
        meaning="share of context parallelism's messages that does not hide under the attention",
        source="assumed: a ring's next keys and values arrive while the last are worked on",
    ),
    Kind(
        name="gather_exposed",
        owner="stack",
        start=0.15,
        spread=0.6,
        most=1.0,
        meaning="share of ZeRO-3's messages that costs time although they fit under the compute",
        source="assumed",
    ),
    Kind(
        name="cut_exposed",
        owner="stack",
        start=0.7,
        spread=0.6,
        most=1.0,
        meaning="share of sends between stages that does not hide in the steady state",
        source="assumed",
    ),
    Kind(
        name="optimizer",
        owner="stack",
        start=1.3,
        spread=0.4,
        meaning="time of the optimizer over that of its bytes at the full bandwidth",
        source="assumed",
    ),
    Kind(
        name="step_ms",
        owner="stack",
        start=10.0,
        spread=0.8,
        meaning="milliseconds per step whatever its size: gradient norm, loss scale, data, logging",
        source="assumed",
    ),
    Kind(
        name="microbatch_ms",
        owner="stack",
        start=1.0,
        spread=0.8,
        meaning="milliseconds of host work outside the layers per micro-batch and model chunk",
        source="assumed",
    ),
    Kind(
        name="spread",
        owner="",
        start=0.004,
        spread=0.7,
        meaning="what the slowest of many nodes costs, per doubling of the nodes",
        source="assumed",
    ),
)
