"""`KINDS`: the kinds of fitted coefficients, with meaning, starting value and owner."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of coefficient.

    owner    who has one each: `stack` (a framework), `device and bits` (of the matmuls' data type),
             `attention kernel`, or "" for one value shared by all runs
    start    the physical starting value, its origin in `source`
    spread   prior standard deviation of the logarithm around the start
    between  prior standard deviation of the logarithm between sources: how far one source's value
             lies from the common one, 2 x `spread` if 0. The fit estimates it from here
    least, most   physical limits: a message is never faster than alone, no share exceeds 1
    """

    name: str
    start: float
    spread: float
    meaning: str
    source: str
    owner: str = ""
    between: float = 0.0
    least: float = 0.0
    most: float = math.inf

    def __post_init__(self) -> None:
        if not self.between:
            object.__setattr__(self, "between", 2.0 * self.spread)


KINDS = (
    Kind(
        name="level",
        owner="stack",
        start=1.0,
        spread=0.05,
        meaning="measured step time over the sum of all other terms",
        source="1 by definition; its variation between sources is the effect of a source",
    ),
    Kind(
        name="matmul",
        start=0.8,
        spread=0.03,
        meaning="matmul time in a step over that of the kernel surface (power limit, layouts of "
        "gradients, cache contents)",
        source="kernels of 3 ms run 7 to 18 % slower than bursts (gemm_surface.py). `power` covers "
        "the same effect; where both bind, their 6-norm is up to 1.12 times either",
    ),
    Kind(
        name="power",
        owner="device and bits",
        start=1.40,
        spread=0.10,
        between=0.10,
        meaning="matmul time over that at the data sheet's peak when matmuls run back to back "
        "under the power limit",
        source="kernels of 3 ms and more: 0.87 of the peak on A100, 0.73 on H100, 0.58 on GB200 "
        "(gemm_surface.py)",
    ),
    Kind(
        name="grouped",
        start=1.3,
        spread=0.12,
        between=0.25,
        meaning="time of experts' matmuls over that of equal shares one after the other: uneven "
        "routing, padding, launches",
        source="assumed",
    ),
    Kind(
        name="attention",
        owner="attention kernel",
        start=1.1,
        spread=0.06,
        between=0.08,
        meaning="time of the attention core over that of the surface",
        source="attention_surface.py: the backward is derived",
    ),
    Kind(
        name="state",
        start=1.5,
        spread=0.25,
        meaning="time of the recurrence of state layers (Mamba-2 and relatives) over that of its "
        "products as batched matmuls and of its bytes at full bandwidth",
        source="assumed: kernels in Triton, tiles of 64 to 128; one measured forward takes 0.8 of "
        "what is counted (state_work.py)",
    ),
    Kind(
        name="passes",
        start=1.6,
        spread=0.17,
        between=0.25,
        meaning="bytes that elementwise work moves over those counted, at full bandwidth",
        source="in steps of modules norms reach 0.42 to 0.49 of the bandwidth and elementwise "
        "kernels 0.98 (profiles/data/calibration/module_steps.toml); half of a layer's passes are "
        "of norms",
    ),
    Kind(
        name="casts",
        start=0.5,
        spread=0.25,
        meaning="bytes of casts to 8 or 4 bits over those of separate kernels "
        "(matmul.py); casts fused into the preceding kernel cost nothing",
        source="assumed: Transformer Engine fuses the cast into two of a layer's four inputs",
    ),
    Kind(
        name="scores",
        start=1.1,
        spread=0.15,
        meaning="bytes that softmax and dropout of an unfused attention core move over those "
        "counted, at full bandwidth",
        source="measured copies reach 0.78 to 0.96 of the bandwidth (kernels/memory_rates.toml)",
    ),
    Kind(
        name="launch_us",
        start=25.0,
        spread=0.3,
        meaning="host microseconds per kernel counted: dispatch, autograd, Python",
        source="assumed: a launch takes 4 to 10 us (device files, launch_us); eager PyTorch adds "
        "Python and autograd of each op, of which some are no kernel",
    ),
    Kind(
        name="hop_us",
        start=400.0,
        spread=0.25,
        meaning="latency of a hop between nodes in a collective of tensor parallelism in jobs "
        "whose hosts block on messages, for links of 12 us: every rank waits for the others' hosts",
        source="layers of nanotron take 3.3 ms longer with tp 16 than they compute and move bytes "
        "and 9.5 ms with tp 32, at hidden sizes of 2048 to 8192 alike: eight collectives of one "
        "and of three hops (ultra rows with one sequence per micro-batch, 2026-11-24)",
    ),
    Kind(
        name="wait_us",
        start=300.0,
        spread=0.25,
        meaning="host microseconds per rank of a collective in jobs whose collectives wait for the "
        "host (blocked_host.py)",
        source="nanotron with stages on several nodes: layers of eight collectives take 5 ms + "
        "2.45 ms x tp; without stages on 64 nodes: 0.37 ms per rank of those and 0.35 ms per rank "
        "of a gradient bucket (ultra rows, 2026-11-24)",
    ),
    Kind(
        name="stall_ms",
        start=280.0,
        spread=0.15,
        meaning="milliseconds of a message between stages in jobs whose messages stall",
        source="nanotron: 280 ms, 5 % apart, over 2 to 64 nodes and 4 to 32 stages (ultra rows, "
        "2026-11-21)",
    ),
    Kind(
        name="inner",
        start=1.05,
        spread=0.05,
        least=1.0,
        meaning="time of messages inside a node in a step over that of the measured curves, or of "
        "the link's rate and efficiency where no curve was measured",
        source="nccl-tests (profiles/data/collectives)",
    ),
    Kind(
        name="outer",
        start=1.02,
        spread=0.03,
        between=0.1,
        least=1.0,
        meaning="time of messages between nodes in a step over that at the rate and efficiency of "
        "the link",
        source="collectives alone reach the links' efficiency (profiles/data/links)",
    ),
    Kind(
        name="congestion",
        start=0.03,
        spread=0.35,
        meaning="share by which bytes between nodes take longer, per doubling of the nodes: flows "
        "of different groups collide on shared switches",
        source="assumed: collisions of hashed flows cost a third of the rate at a thousand nodes. "
        "nanotron's tensor parallelism between nodes takes 10 % longer per doubling (ultra rows, 2 "
        "to 64 nodes)",
    ),
    Kind(
        name="inner_step_us",
        start=12.0,
        spread=0.25,
        meaning="latency in a step of a message inside a node where no curve was measured",
        source="small collectives of 8 GPUs take 20 to 40 us (collectives.csv.gz)",
    ),
    Kind(
        name="outer_step_us",
        start=30.0,
        spread=0.5,
        meaning="latency in a step of a message of data parallelism between nodes whose link has "
        "12 us alone; links of other latency in proportion (run_links.py)",
        source="12 us alone (profiles/data/links/ib-ndr.toml); exchanges whose buckets are not "
        "counted (Framework.bucket_bytes) are several collectives, each with this latency",
    ),
    Kind(
        name="cut_step_us",
        start=60.0,
        spread=0.3,
        meaning="microseconds of a send between stages in addition to its bytes: launch, "
        "synchronization, waiting for the peer's host",
        source="assumed",
    ),
    Kind(
        name="reduce_exposed",
        start=1.1,
        spread=0.2,
        meaning="time of a gradient exchange that nothing hides over that of its messages: bucket "
        "copies, waiting for the slowest rank",
        source="1 and the copies: a bucket is read and written once more at memory bandwidth, some "
        "ten times that of the network",
    ),
    Kind(
        name="slice_us",
        start=10.0,
        spread=0.25,
        meaning="host microseconds to copy one rank's slice of a gathered tensor to its place",
        source="an op of PyTorch without autograd takes the host about 5 us; here two (a view, a "
        "copy) and a slice in Python",
    ),
    Kind(
        name="tensor_exposed",
        start=0.95,
        spread=0.07,
        between=0.15,
        most=1.0,
        meaning="exposed share of tensor-parallel messages",
        source="blocking calls of Megatron-LM",
    ),
    Kind(
        name="expert_exposed",
        start=0.8,
        spread=0.15,
        most=1.0,
        meaning="exposed share of the experts' all-to-alls",
        source="assumed: shared experts and the sorting of tokens may overlap with them",
    ),
    Kind(
        name="context_exposed",
        start=0.5,
        spread=0.25,
        most=1.0,
        meaning="exposed share of context-parallel messages that fit under the attention",
        source="assumed: a ring's next keys and values arrive while the last are processed",
    ),
    Kind(
        name="gather_exposed",
        start=0.25,
        spread=0.3,
        most=1.0,
        meaning="exposed share of messages of weights and gradients that fit under the layers "
        "during which they are sent",
        source="assumed: the first and last unit of a pass have nothing to hide under (2 of some "
        "30), and collectives take some of the multiprocessors that matmuls need",
    ),
    Kind(
        name="cut_exposed",
        start=0.7,
        spread=0.3,
        most=1.0,
        meaning="exposed share of sends between stages in the steady state",
        source="assumed",
    ),
    Kind(
        name="optimizer",
        start=1.3,
        spread=0.2,
        meaning="time of the optimizer over that of its bytes at full bandwidth",
        source="assumed",
    ),
    Kind(
        name="step_ms",
        start=10.0,
        spread=0.4,
        meaning="milliseconds per step of any size: gradient norm, loss scale, data, logging",
        source="assumed",
    ),
    Kind(
        name="microbatch_ms",
        start=1.0,
        spread=0.4,
        meaning="milliseconds of host work outside the layers per micro-batch and model chunk",
        source="assumed",
    ),
)
BY_NAME = {kind.name: kind for kind in KINDS}
