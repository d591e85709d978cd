"""Texts and flags shared by several commands."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from shardwright.options.read_text import tokens


class Precision(StrEnum):
    """Precision of the arithmetic."""

    BF16 = "bf16"
    FP32 = "fp32"
    FP16 = "fp16"
    FP8 = "fp8"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"


def _sequence(text: str) -> int:
    return tokens(str(text), "--seq")


Model = Annotated[
    str, typer.Argument(help="shipped name, path of a config.json, or package.module:factory")
]
Local = Annotated[Path | None, typer.Option("--local", help="profile file for --on local")]
Seq = Annotated[
    int | None,
    typer.Option(
        "--seq", parser=_sequence, metavar="TOKENS", help="tokens per sequence: 4096 or 4k"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Html = Annotated[Path | None, typer.Option("--html", help="write an offline HTML page")]
Markdown = Annotated[Path | None, typer.Option("--markdown", help="write Markdown; - for stdout")]
Csv = Annotated[
    Path | None, typer.Option("--csv", help="write a table, and NAME.columns.csv that explains it")
]
Trace = Annotated[Path | None, typer.Option("--trace", help="write a Chrome trace")]
Figure = Annotated[Path | None, typer.Option("--figure", help="write a figure: .pdf, .png or .svg")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="do not show progress")]
Prices = Annotated[
    Path | None,
    typer.Option("--prices", help="your own prices: .toml or .csv (docs/prices.md)"),
]
