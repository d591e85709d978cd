"""Flags of `plan --stack` beside the axes: choices of a layout, adapters, failures, the grid."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Order = Annotated[
    str | None, typer.Option(help="with --stack: tp-cp-dp-pp, tp-cp-pp-dp (innermost first)")
]
Reduce = Annotated[str | None, typer.Option(help="with --stack: gradients reduced in fp32 or bf16")]
Compress = Annotated[
    str | None, typer.Option(help="with --stack: compressed gradients: powersgd-4, topk-0.01")
]
LocalSteps = Annotated[
    str | None, typer.Option(help="with --stack: steps between exchanges (DiLoCo), 1,50")
]
LocalWorkers = Annotated[
    str | None,
    typer.Option(help="with --stack: groups that synchronise rarely (DiLoCo) (default: sites)"),
]
WideLayers = Annotated[
    str | None, typer.Option(help="with --stack: first and last layers that stay in bf16")
]
OptimizerOffload = Annotated[
    bool, typer.Option("--optimizer-offload", help="with --stack: states may be in host memory")
]
ActivationOffload = Annotated[
    str | None, typer.Option(help="with --stack: share of activations in host memory, or any")
]
Lora = Annotated[
    int, typer.Option(min=0, help="with --stack: rank of adapters, which alone are trained")
]
BasePrecision = Annotated[
    str | None,
    typer.Option("--base-precision", help="with --lora: frozen weights in nf4 (QLoRA) or int8"),
]
FitRisk = Annotated[
    str | None,
    typer.Option("--fit-risk", help="with --stack: probability of running out of memory [10%]"),
]
CalibrationFile = Annotated[
    Path | None, typer.Option("--calibration", help="with --stack: a file of profile --from")
]
ReliabilityFile = Annotated[
    Path | None, typer.Option("--reliability", help="your own failures and storage")
]
Region = Annotated[str, typer.Option("--region", help="of the grid: FR, DE, aws us-east-1, ...")]
