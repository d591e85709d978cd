"""Flags of `plan --stack` beside the axes: choices of a layout, adapters, failures, the grid."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Order = Annotated[
    str | None,
    typer.Option(help="order of ranks: tp-cp-dp-pp, tp-cp-pp-dp (innermost first), or any"),
]
Reduce = Annotated[str | None, typer.Option(help="precision of gradient sums: fp32, bf16")]
Compress = Annotated[
    str | None, typer.Option(help="gradient compression: none, powersgd-4, topk-0.01")
]
LocalSteps = Annotated[str | None, typer.Option(help="steps between exchanges (DiLoCo): 1,50")]
LocalWorkers = Annotated[
    str | None,
    typer.Option(help="number of DiLoCo workers (default: one per site)"),
]
WideLayers = Annotated[
    str | None, typer.Option(help="number of first and last layers kept in bf16")
]
OptimizerOffload = Annotated[
    bool, typer.Option("--optimizer-offload", help="allow optimizer states in host memory")
]
ActivationOffload = Annotated[
    str | None, typer.Option(help="share of activations in host memory, or any")
]
Lora = Annotated[int, typer.Option(min=0, help="train only adapters of this rank")]
BasePrecision = Annotated[
    str | None,
    typer.Option(
        "--base-precision", help="with --lora: store frozen weights in nf4 (QLoRA) or int8"
    ),
]
FitRisk = Annotated[
    str | None,
    typer.Option(
        "--fit-risk", help="highest accepted probability of running out of memory (default: 10%)"
    ),
]
CalibrationFile = Annotated[
    Path | None, typer.Option("--calibration", help="coefficients written by profile --from")
]
ReliabilityFile = Annotated[
    Path | None,
    typer.Option("--reliability", help="your failure rates and storage (docs/goodput.md)"),
]
Region = Annotated[str, typer.Option("--region", help="power grid: FR, DE, aws us-east-1, ...")]
