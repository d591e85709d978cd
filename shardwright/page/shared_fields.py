"""Fields common to both pages; a page replaces some of their properties."""

from __future__ import annotations

from profiles.hardware.prices.offer import KINDS
from profiles.model.loaders import model_names
from shardwright.page.fields import Field
from shardwright.requests.plan_options import ANY_STACK
from simulator.training_run.framework.framework import offered_frameworks

STACKS = tuple(dict.fromkeys(("megatron-core", ANY_STACK, *offered_frameworks())))
"""Frameworks to choose from."""

MODEL = Field(
    name="model",
    label="Model",
    start="llama-3.1-70b",
    help="a shipped name, or the path of a Hugging Face config.json on this machine",
    options=model_names(),
    argument=True,
)
SEQUENCE = Field(
    name="seq",
    label="Tokens per sequence",
    help="8192 or 8k; empty: the model's sequence length, at most 4,096",
)
PRICE = Field(
    name="price",
    label="Price",
    usual="on-demand",
    start="on-demand",
    help="a kind of offer, or US dollars per device-hour: 2.50",
    options=KINDS,
)
PRECISION = Field(
    name="precision",
    label="Precision",
    help="of the matrix products; empty: the devices' usual one, bf16 on accelerators",
    options=("", "bf16", "fp8", "mxfp8", "nvfp4", "fp16", "fp32"),
    empty="as the devices train",
    more=True,
)
LORA = Field(
    name="lora",
    label="LoRA rank",
    help="rank of the trained adapters; empty: train all weights",
    more=True,
)
PRICE_FILE = Field(
    name="prices",
    label="Price file",
    help="path of a file with your own prices (docs/prices.md)",
    more=True,
)
