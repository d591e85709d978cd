"""`PlanOptions`: every option of `plan`, declared once.

A new option is one field here. Its flag, help, Python keyword (keywords.py), sweep key, field of
the web page and row of docs/options.md follow; `python -m tools.option_files` writes the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardwright.options import read_text
from shardwright.options.option import PageField, SweepKey, option

DEFAULT_PRICE = "on-demand"
# Those of simulator/training_run/run/low_bits.py, which --help does not import; a test compares.
USUAL_OPTIMIZER = "adamw"
LAYOUT_OPTIMIZERS = ("adamw8bit", "adamw4bit", "muon")
"""Optimizers of layouts (--stack) only."""
_PINNED = "a value, or a list of allowed values; empty: chosen by the search"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Options of `plan`; Shardwright chooses where one is None, "" or ()."""

    model: str = option(
        "",
        help="name, config.json or package.module:factory; or a list",
        argument=True,
        sweep=SweepKey.GRID,
        keyword="",
        page=PageField(
            label="Model",
            start="llama-3.1-70b",
            help="a shipped name, or the path of a Hugging Face config.json on this machine",
        ),
    )
    on: str = option(
        "",
        help="cluster: 4x8xh100-sxm, a cluster file, or local; or a list",
        sweep=SweepKey.GRID,
        keyword="",
        page=PageField(
            label="Cluster",
            start="16x8xh100-sxm",
            help="nodes x devices of a node x type (16x8xh100-sxm), or the path of a cluster file",
            counted=True,
        ),
    )
    stack: str = option(
        "",
        help="framework: megatron-core, nanotron, ..., a list, or any (default: compare)",
        sweep=SweepKey.GRID,
        keyword="",
        page=PageField(
            label="Framework",
            start="megatron-core",
            help="a framework, a list with commas, or any; empty: Shardwright's own executor",
            empty="Shardwright's own executor (torch)",
        ),
    )
    global_batch: int | None = option(
        None,
        help="samples per step: 1024 or 4k (default: that of published runs)",
        unit="samples",
        read=read_text.count,
        metavar="COUNT",
        sweep=SweepKey.GRID,
        keyword="",
        page=PageField(
            label="Sequences per step",
            start="1024",
            help="the global batch: 1024, or 4k for 4,000",
        ),
    )
    seq: int | None = option(
        None,
        help="tokens per sequence: 4096 or 4k",
        unit="tokens",
        read=read_text.tokens,
        metavar="TOKENS",
        sweep=SweepKey.GRID,
        keyword="",
        page=PageField(
            label="Tokens per sequence",
            start="8192",
            help="8192 or 8k; empty: the model's sequence length, at most 4,096",
        ),
    )
    price: str = option(
        DEFAULT_PRICE,
        help="on-demand, spot, reserved-1y, reserved-3y, or dollars per device-hour",
        sweep=SweepKey.GRID,
        keyword="",
        page=PageField(
            label="Price",
            start=DEFAULT_PRICE,
            help="a kind of offer, or US dollars per device-hour: 2.50",
        ),
    )
    pareto: str = option(
        "",
        layouts_only=True,
        help="print the Pareto front of step time and memory or dollars",
        choices=("memory", "usd"),
        keyword="",
        page=PageField(
            label="Answer",
            help="the best plan, or the Pareto front: all plans that no other beats in both",
            choices=("", "memory", "usd"),
            empty="the best plan",
        ),
    )
    precision: str = option(
        "",
        help="bf16, fp16, fp32; not for torch: fp8, mxfp8, nvfp4, a list, or any "
        "(default: bf16; fp32 on a CPU)",
        sweep=SweepKey.GRID,
        keyword="",
        page=PageField(
            label="Precision",
            help="of the matrix products; a list or any: chosen by the search; empty: the "
            "devices' usual one, bf16 on accelerators",
            choices=("", "bf16", "fp8", "mxfp8", "nvfp4", "fp16", "fp32", "any"),
            empty="as the devices train",
            more=True,
        ),
    )
    tp: tuple[int, ...] | None = option(
        None,
        help="tensor-parallel degree: 4, or a list 1,2,4",
        read=read_text.counts,
        sweep=SweepKey.PIN,
        page=PageField(label="Tensor parallel", help=_PINNED, more=True),
    )
    pp: tuple[int, ...] | None = option(
        None,
        help="pipeline-parallel degree: 4, or a list",
        read=read_text.counts,
        sweep=SweepKey.PIN,
        page=PageField(label="Pipeline stages", help=_PINNED, more=True),
    )
    dp: tuple[int, ...] | None = option(
        None,
        help="data-parallel degree: 4, or a list",
        read=read_text.counts,
        sweep=SweepKey.PIN,
        page=PageField(label="Replicas", help=_PINNED, more=True),
    )
    dp_replicate: tuple[int, ...] | None = option(
        None,
        help="replicated groups of hybrid sharding (HSDP): 2, or a list (default: 1)",
        read=read_text.counts,
        sweep=SweepKey.PIN,
        page=PageField(
            label="Replicated groups",
            help="hybrid sharding: ZeRO shards within each of so many groups of replicas; empty: 1",
            more=True,
        ),
    )
    cp: tuple[int, ...] | None = option(
        None,
        help="context-parallel degree (not for torch)",
        read=read_text.counts,
        sweep=SweepKey.PIN,
        page=PageField(label="Context parallel", help=_PINNED, more=True),
    )
    ep: tuple[int, ...] | None = option(
        None,
        help="expert-parallel degree (not for torch)",
        read=read_text.counts,
        sweep=SweepKey.PIN,
        page=PageField(label="Expert parallel", help=_PINNED, more=True),
    )
    micro_batch: tuple[int, ...] | None = option(
        None,
        help="samples per micro-batch: 4 or 1,2,4",
        unit="samples",
        read=read_text.counts,
        sweep=SweepKey.PIN,
        page=PageField(label="Micro-batch", help=_PINNED, more=True),
    )
    zero: tuple[int, ...] | None = option(
        None,
        help="ZeRO stage: 0, 1, 2, 3, or a list",
        read=read_text.counts,
        sweep=SweepKey.PIN,
        page=PageField(label="ZeRO stage", help=f"0 to 3; {_PINNED}", more=True),
    )
    vpp: tuple[int, ...] | None = option(
        None,
        help="stages per pipeline rank (interleaved)",
        read=read_text.counts,
        sweep=SweepKey.PIN,
        page=PageField(label="Stages per rank", help=f"interleaved; {_PINNED}", more=True),
    )
    recompute: tuple[str, ...] | None = option(
        None,
        help="recomputation: none, selective, full, or a list",
        read=read_text.names,
        sweep=SweepKey.PIN,
        page=PageField(label="Recompute", help="none, selective, full, or a list", more=True),
    )
    schedule: tuple[str, ...] | None = option(
        None,
        help="gpipe, 1f1b, interleaved, interleaved-overlap (hides all-to-alls of experts); "
        "searched only if named: zb-h1, zbv, v-half, dualpipev",
        read=read_text.names,
        sweep=SweepKey.PIN,
        page=PageField(label="Schedule", help="1f1b, interleaved, zb-h1, zbv, ...", more=True),
    )
    fit_risk: float | None = option(
        None,
        layouts_only=True,
        help="highest accepted probability of running out of memory (default: 10%)",
        unit="probability",
        read=read_text.probability,
        page=PageField(
            label="Out-of-memory risk",
            help="largest allowed probability of running out of memory: 10%",
            more=True,
        ),
    )
    calibration: Path | None = option(
        None, layouts_only=True, help="coefficients fitted by profile --from", read=read_text.path
    )
    order: tuple[str, ...] = option(
        (),
        help="order of ranks: tp-cp-dp-pp, tp-cp-pp-dp (innermost first), or any",
        read=read_text.names,
        needs_framework=True,
        sweep=SweepKey.OPTION,
    )
    reduce: tuple[str, ...] = option(
        (),
        help="precision of the gradient reduction: fp32, bf16",
        read=read_text.names,
        needs_framework=True,
        sweep=SweepKey.OPTION,
    )
    compress: tuple[str, ...] = option(
        (),
        help="gradient compression: none, powersgd-4, topk-0.01",
        read=read_text.names,
        needs_framework=True,
        sweep=SweepKey.OPTION,
    )
    local_steps: tuple[int, ...] = option(
        (),
        help="steps between exchanges (DiLoCo): 1,50",
        read=read_text.counts,
        needs_framework=True,
        sweep=SweepKey.OPTION,
    )
    local_workers: int = option(
        0,
        help="number of DiLoCo workers (default: one per site)",
        read=read_text.whole,
        needs_framework=True,
        sweep=SweepKey.OPTION,
    )
    wide_layers: int = option(
        0,
        help="number of first and last layers kept in bf16, with fp8 or less elsewhere",
        read=read_text.whole,
        needs_framework=True,
        sweep=SweepKey.OPTION,
    )
    optimizer_offload: bool = option(
        False,
        help="allow optimizer states in host memory",
        read=read_text.switch,
        needs_framework=True,
        sweep=SweepKey.OPTION,
    )
    sequence_parallel: bool = option(
        False,
        help="tensor-parallel ranks share the tokens between their layers; without it, the search "
        "over layouts decides",
        read=read_text.switch,
        needs_framework=True,
        sweep=SweepKey.OPTION,
    )
    activation_offload: tuple[float, ...] = option(
        (),
        help="share of activations in host memory, or any",
        read=read_text.shares,
        needs_framework=True,
        sweep=SweepKey.OPTION,
    )
    lora: int = option(
        0,
        help="train only low-rank adapters, of this rank",
        read=read_text.whole,
        least=0,
        needs_framework=True,
        page=PageField(
            label="LoRA rank",
            help="rank of the trained adapters; empty: train all weights",
            more=True,
        ),
    )
    base_precision: str = option(
        "",
        help="with --lora: store frozen weights in nf4 (QLoRA) or int8",
        needs_framework=True,
    )
    expert_imbalance: float = option(
        1.0,
        help="tokens of the fullest expert-parallel rank, relative to the mean: 1.2",
        read=read_text.number,
        needs_framework=True,
        sweep=SweepKey.OPTION,
    )
    pipeline_layout: str = option(
        "",
        help="Megatron's layout of pipeline stages: 'Et*3|(tt|)*29m|L'",
        needs_framework=True,
        sweep=SweepKey.OPTION,
    )
    lengths: tuple[tuple[int, float], ...] = option(
        (),
        help="packed documents, length:number (attention stays in a document): 512:3,4k:1",
        unit="tokens",
        read=read_text.lengths,
        needs_framework=True,
        sweep=SweepKey.OPTION,
    )
    optimizer: str = option(
        USUAL_OPTIMIZER,
        help="optimizer and its state",
        choices=(USUAL_OPTIMIZER, "sgd", *LAYOUT_OPTIMIZERS),
        sweep=SweepKey.OPTION,
    )
    solver: str = option(
        "auto",
        help="solver of plans block by block",
        choices=("auto", "dp", "ilp"),
        sweep=SweepKey.GRID,
    )
    time_limit_s: float | None = option(
        None,
        help="limit of the search: 30s, 10min (default: 60s)",
        unit="s",
        read=read_text.seconds,
        flag="--time-limit",
    )
    seed: int = option(
        0, help="seed of the search", read=read_text.whole, least=0, sweep=SweepKey.GRID
    )
    prices: Path | None = option(
        None,
        help="your own prices: .toml or .csv (docs/prices.md)",
        read=read_text.path,
        sweep=SweepKey.FLAG,
        page=PageField(
            label="Price file",
            help="path of a file with your own prices (docs/prices.md)",
            more=True,
        ),
    )
    reliability: Path | None = option(
        None,
        layouts_only=True,
        help="your failure rates and storage (docs/goodput.md)",
        read=read_text.path,
    )
    region: str = option("", layouts_only=True, help="power grid: FR, DE, aws us-east-1, ...")
