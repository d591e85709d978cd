"""`SizeOptions`: every option of a request to `size`, declared once (see plan_options.py).

Quantities and ranges stay texts here, since all wrong ones are reported together
(shardwright/requests/sizing/size_flags.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardwright.options import read_text
from shardwright.options.option import PageField, SweepKey, option, option_as
from shardwright.options.plan_options import DEFAULT_PRICE, USUAL_OPTIMIZER, PlanOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOptions:
    """Options of a request to `size`; Shardwright chooses where one is None or ""."""

    model: str = option(
        "",
        help="name, config.json or package.module:factory; a list, or qwen3-*: the largest that "
        "fits",
        argument=True,
        keyword="",
        page=PageField(
            label="Model",
            start="llama-3.1-8b",
            help="a shipped name, or the path of a Hugging Face config.json on this machine",
        ),
    )
    on: str = option(
        "",
        help="device types: h100-sxm,b200; 8xgb200; a cluster file (default: the most common)",
        keyword="",
        page=PageField(
            label="Types of devices",
            start="h100-sxm,b200",
            help="a list: h100-sxm,b200; 8xgb200 for nodes of eight; their number is the answer",
        ),
    )
    stack: str = option(
        "",
        help="frameworks: a list, or any (default: compare those with measured runs)",
        page=PageField(
            label="Framework",
            start="megatron-core",
            help="one, a list, or any (slower); empty: compare those with measured runs",
            empty="compare those with measured runs",
        ),
    )
    nodes: str = option(
        "",
        help="number of nodes: 32 or 16..2048",
        page=PageField(
            label="Nodes", help="32, or 16..2048; empty: the best number, up to 32,768 devices"
        ),
    )
    tokens: str = option(
        "",
        help="tokens of the run: 15T, 300B, optimal; if left out: as many as possible",
        page=PageField(
            label="Tokens of the run",
            start="1T",
            help="15T, 300B, or optimal for the model; empty: as many as the limits allow",
        ),
    )
    deadline: str = option(
        "",
        help="days of the whole run: 60d",
        page=PageField(label="Deadline", start="30d", help="of the whole run: 60d"),
    )
    budget: str = option(
        "",
        help="dollars of the whole run: '20M$'",
        page=PageField(label="Budget", help="of the whole run: 5M$"),
    )
    price: str = option(
        DEFAULT_PRICE,
        help="on-demand, spot, ..., or dollars per device-hour",
        flag="--price-kind",
        page=PageField(
            label="Price",
            start=DEFAULT_PRICE,
            help="a kind of offer, or US dollars per device-hour: 2.50",
        ),
    )
    minimise: str = option(
        "",
        help="goal: cost, time, devices or energy (default: cost; with only a budget: time)",
        page=PageField(
            label="Minimize",
            help="empty: dollars, or days if only a budget is given",
            empty="the cheapest",
            more=True,
        ),
    )
    sure: str = option(
        "50%",
        help="required probability of keeping each limit: 80%",
        page=PageField(
            label="Confidence",
            start="50%",
            help="probability of meeting each limit: 80%",
            more=True,
        ),
    )
    devices: str = option(
        "",
        help="number of devices: 256..32768",
        page=PageField(label="Devices", help="instead of nodes: 256..32768", more=True),
    )
    global_batch: str = option(
        "",
        help="sequences per step: 2048, a list, or 1024..4096",
        unit="sequences",
        page=PageField(
            label="Sequences per step",
            help="2048; a list; 1024..4096; empty: as in published models of this size",
            more=True,
        ),
    )
    seq: int | None = option_as(
        PlanOptions,
        "seq",
        sweep=SweepKey.NONE,
        keyword="sequence_length",
        page=PageField(
            label="Tokens per sequence",
            help="8192 or 8k; empty: the model's sequence length, at most 4,096",
            more=True,
        ),
    )
    precision: str = option(
        "",
        help="bf16, fp8, mxfp8, ...",
        page=PageField(
            label="Precision",
            help="of the matrix products; empty: the devices' usual one, bf16 on accelerators",
            choices=("", "bf16", "fp8", "mxfp8", "nvfp4", "fp16", "fp32"),
            empty="as the devices train",
            more=True,
        ),
    )
    lora: int = option_as(PlanOptions, "lora", needs_framework=False, least=None)
    network: str = option(
        "",
        help="link between nodes: roce-400",
        page=PageField(
            label="Link between nodes",
            help="a link of the catalog; empty: each device's usual one",
            empty="the usual one",
            more=True,
        ),
    )
    pue: float | None = option(
        None,
        help="power usage effectiveness of the site: 1.2",
        read=read_text.number,
        page=PageField(label="PUE", help="of the site: 1.2; empty: as published", more=True),
    )
    region: str = option_as(
        PlanOptions,
        "region",
        page=PageField(
            label="Region of the grid",
            help="for CO2e; empty: the world's average",
            empty="the world's average",
            more=True,
        ),
    )
    prices: Path | None = option_as(PlanOptions, "prices")
    reliability: Path | None = option_as(
        PlanOptions,
        "reliability",
        page=PageField(
            label="Failures and storage",
            help="path of a file with your own values (docs/goodput.md)",
            more=True,
        ),
    )
    base_precision: str = option_as(PlanOptions, "base_precision", needs_framework=False)
    expert_imbalance: float = option_as(PlanOptions, "expert_imbalance", needs_framework=False)
    lengths: tuple[tuple[int, float], ...] = option_as(
        PlanOptions, "lengths", needs_framework=False
    )
    optimizer: str = option(USUAL_OPTIMIZER, help="adamw, adamw8bit, adamw4bit, muon")
    phases: Path | None = option(
        None, help="file with the phases of the run (docs/planning.md)", read=read_text.path
    )
