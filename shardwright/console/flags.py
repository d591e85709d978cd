"""Words and flags that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from profiles.errors import UnitError
from profiles.units import parse_quantity


class Precision(StrEnum):
    """Precision of the arithmetic."""

    BF16 = "bf16"
    FP32 = "fp32"
    FP16 = "fp16"
    FP8 = "fp8"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"


class Optimizer(StrEnum):
    """Optimizers that the cost model knows."""

    ADAMW = "adamw"
    SGD = "sgd"
    ADAMW8BIT = "adamw8bit"
    ADAMW4BIT = "adamw4bit"
    MUON = "muon"


LAYOUT_OPTIMIZERS = (Optimizer.ADAMW8BIT, Optimizer.ADAMW4BIT, Optimizer.MUON)
"""Of layouts (--stack) only."""


class Pareto(StrEnum):
    """What a front sets against the step time."""

    MEMORY = "memory"
    USD = "usd"


class Solver(StrEnum):
    """How a cell is solved exactly."""

    AUTO = "auto"
    DP = "dp"
    ILP = "ilp"


def samples(text: str) -> int:
    """`1024`, `4k` or `4M` samples; raises UnitError naming --global-batch."""
    return _count(str(text), "--global-batch")


def tokens(text: str) -> int:
    """`4096`, or `4k` for it: lengths of sequences are counted in steps of 1024."""
    short = str(text)[-1:] in ("k", "K") and str(text)[:-1].isdigit()
    return int(str(text)[:-1]) * 1024 if short else _count(str(text), "--seq")


def _count(text: str, flag: str) -> int:
    if text.lstrip("-").isdigit():
        return int(text)
    value = parse_quantity(text, "count", where=flag)
    if value != int(value):
        raise UnitError(f"{flag}: {text!r} is not a whole number; write for example 1024 or 4k")
    return int(value)


Model = Annotated[
    str, typer.Argument(help="shipped name, path of a config.json, or package.module:factory")
]
Local = Annotated[Path | None, typer.Option("--local", help="profile file for --on local")]
Seq = Annotated[
    int | None,
    typer.Option("--seq", parser=tokens, metavar="TOKENS", help="tokens per sequence: 4096 or 4k"),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Html = Annotated[Path | None, typer.Option("--html", help="write an HTML report")]
Trace = Annotated[Path | None, typer.Option("--trace", help="write a Chrome trace")]
Figure = Annotated[Path | None, typer.Option("--figure", help="write a figure: .pdf, .png or .svg")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="do not show progress")]
Prices = Annotated[
    Path | None,
    typer.Option("--prices", help="your own prices: .toml or .csv (docs/prices.md)"),
]
