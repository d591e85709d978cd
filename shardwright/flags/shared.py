"""Words and flags that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


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


class Pareto(StrEnum):
    """What a front sets against the step time."""

    MEMORY = "memory"
    USD = "usd"


class Solver(StrEnum):
    """How a cell is solved exactly."""

    AUTO = "auto"
    DP = "dp"
    ILP = "ilp"


Model = Annotated[
    str, typer.Argument(help="shipped name, path of a config.json, or package.module:factory")
]
On = Annotated[str, typer.Option("--on", help="4x8xh100-sxm, a cluster file, or local")]
Local = Annotated[
    Path | None, typer.Option("--local", help="file of this machine's profile (--on local)")
]
Seq = Annotated[int | None, typer.Option("--seq", help="tokens per sequence")]
Json = Annotated[bool, typer.Option("--json", help="machine output on stdout")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="no progress")]
