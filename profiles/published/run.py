"""`PublishedRun`: what a source says about a training run, and nothing of what it measured.

A prediction is made from these values alone. The measured columns are skipped while reading, and
so are the notes, which may print the result (`profiles.published.measured` reads them for those
who compare). Empty means that the source does not say: None for numbers, "" for text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from profiles.errors import DocumentError
from profiles.published.table import (
    Row,
    Table,
    count_cell,
    flag_cell,
    number_cell,
    read_header,
    read_table,
    text_cell,
)

# The project's own table of published runs (profiles/data/published/README.md).
FIGURES = Path(__file__).parents[1] / "data" / "published" / "figures.csv"

# Columns that a table of runs may carry and that no prediction may see.
MEASURED_COLUMNS = (
    "step_time_s",
    "step_time_kind",
    "peak_memory_gib",
    "peak_memory_kind",
    "quality",
    "notes",
    "source_url",
    "source_date",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """A training run as its source describes it; names are the columns of a table of runs.

    row                     its place in the table, from 1
    family                  `dense`, `moe` or `lora`
    ffn_size, moe_ffn_size  inner width of a dense feed-forward and of one expert
    top_k                   experts per token
    vocab_size              as published, before any padding
    seq_len                 tokens per sequence
    dp, tp, pp, vpp, cp, ep degrees; vpp is the number of model chunks per pipeline rank
    micro_batch             sequences per data-parallel rank and pass
    global_batch            sequences per optimizer step
    recompute, precision, schedule, framework    in the source's own words
    sliding_window, window_layers   keys that a query meets at most, 0 for all, and in how many of
                            the layers
    mtp_layers              further tokens that the model is trained to predict
    recompute_layers        first so many layers of a stage that full recomputation runs again
    lora_rank               of adapters
    expert_imbalance        tokens of the fullest expert rank over the mean
    optimizer_offload, activation_offload   states in host memory; share of the activations there
    reduce, compress, local_steps, local_workers, wide_layers, order   as the options of
                            `plan --stack`
    faults                  cells that could not be read, as messages (only with `lenient`)
    """

    row: int
    id: str
    source: str = ""
    model: str = ""
    family: str = ""
    num_layers: int | None = None
    hidden_size: int | None = None
    ffn_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None
    seq_len: int | None = None
    gated_mlp: bool | None = None
    tied_embeddings: bool | None = None
    num_experts: int | None = None
    top_k: int | None = None
    moe_ffn_size: int | None = None
    num_shared_experts: int | None = None
    first_dense_layers: int | None = None
    device: str = ""
    num_devices: int | None = None
    devices_per_node: int | None = None
    inter_node_link: str = ""
    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    cp: int | None = None
    ep: int | None = None
    sequence_parallel: bool | None = None
    zero_stage: int | None = None
    recompute: str = ""
    micro_batch: int | None = None
    global_batch: int | None = None
    precision: str = ""
    schedule: str = ""
    framework: str = ""
    sliding_window: int | None = None
    window_layers: int | None = None
    mtp_layers: int | None = None
    recompute_layers: int | None = None
    lora_rank: int | None = None
    expert_imbalance: float | None = None
    optimizer_offload: bool | None = None
    activation_offload: float | None = None
    reduce: str = ""
    compress: str = ""
    local_steps: int | None = None
    local_workers: int | None = None
    wide_layers: int | None = None
    order: str = ""
    faults: tuple[str, ...] = ()


RUN_COLUMNS = tuple(
    field.name for field in fields(PublishedRun) if field.name not in ("row", "faults")
)
# 0 experts of width 0 is how many tables write a dense model.
_MAY_BE_ZERO = frozenset(
    {
        "num_experts",
        "top_k",
        "moe_ffn_size",
        "num_shared_experts",
        "first_dense_layers",
        "zero_stage",
        "sliding_window",
        "window_layers",
        "mtp_layers",
        "recompute_layers",
        "wide_layers",
    }
)
_LAST_ZERO_STAGE = 3
_FLAGS = frozenset({"gated_mlp", "tied_embeddings", "sequence_parallel", "optimizer_offload"})
_NUMBERS = frozenset({"expert_imbalance", "activation_offload"})
_TEXTS = frozenset(
    {
        "id",
        "source",
        "model",
        "family",
        "device",
        "inter_node_link",
        "recompute",
        "precision",
        "schedule",
        "framework",
        "reduce",
        "compress",
        "order",
    }
)
_FAMILIES = ("", "dense", "moe", "lora")
# How the Zero Bubble paper's table 4 is transcribed: as many chunks as there are layers.
_ONE_LAYER_PER_CHUNK = "max (1 layer per chunk)"


def read_runs(path: str | Path, *, lenient: bool = False) -> tuple[PublishedRun, ...]:
    """The runs of a CSV file, in its order; a table of failed layouts is recognised by its header.

    With `lenient` a cell that cannot be read is left empty and its message kept in `faults`, so
    that one bad cell does not cost a whole table its predictions.

    Raises UnknownNameError for an unknown column; DocumentError for a missing `id` or `num_layers`
    column, an empty or repeated id and (unless `lenient`) any cell that is not what its column
    holds.
    """
    # Here, since that module needs the value above.
    from profiles.published.failed_layout import is_failed_table, read_failed_layouts

    if is_failed_table(read_header(path)):
        return read_failed_layouts(path, lenient=lenient)
    table = read_table(path, RUN_COLUMNS, skipped=MEASURED_COLUMNS, required=("id", "num_layers"))
    lines: dict[str, int] = {}
    runs = []
    for row in table.rows:
        run = _run(table, row, lenient)
        if run.id in lines:
            raise DocumentError(
                f"{table.where(row, 'id')}: {run.id!r} is the id of line {lines[run.id]} already; "
                "ids must differ, since measurements are found by them"
            )
        lines[run.id] = row.line
        runs.append(run)
    return tuple(runs)


def _run(table: Table, row: Row, lenient: bool) -> PublishedRun:
    values: dict[str, Any] = {}
    faults: list[str] = []
    for column, text in zip(table.columns, row.cells, strict=True):
        try:
            values[column] = _cell(column, text, table.where(row, column))
        except DocumentError as error:
            if not lenient or column == "id":
                raise
            faults.append(str(error))
    if values.get("vpp") == _ONE_LAYER_PER_CHUNK:
        values["vpp"] = _chunks_of_one_layer(values.get("num_layers"), values.get("pp"))
    return PublishedRun(row=row.number, faults=tuple(faults), **values)


def _cell(column: str, text: str, where: str) -> str | int | float | bool | None:
    if column == "id" and not text:
        raise DocumentError(f"{where}: the id is empty; every run needs one")
    if column == "family":
        if text_cell(text).lower() not in _FAMILIES:
            raise DocumentError(f"{where}: {text!r} is not a family; use dense, moe or lora")
        return text_cell(text).lower()
    if column in _TEXTS:
        return text_cell(text)
    if column in _FLAGS:
        return flag_cell(text, where)
    if column in _NUMBERS:
        return number_cell(text, where)
    if column == "vpp" and text == _ONE_LAYER_PER_CHUNK:
        return text
    count = count_cell(text, where, least=0 if column in _MAY_BE_ZERO else 1)
    if column == "zero_stage" and count is not None and count > _LAST_ZERO_STAGE:
        raise DocumentError(f"{where}: {text!r} is not a ZeRO stage; use 0, 1, 2 or 3")
    return count


def _chunks_of_one_layer(num_layers: int | None, pp: int | None) -> int | None:
    """Chunks per rank of one layer each, rounded up: such models have k * pp - 2 layers, the
    embedding and the head standing for the other two (Zero Bubble README, "Notices",
    https://github.com/sail-sg/zero-bubble-pipeline-parallelism)."""
    return None if num_layers is None or pp is None else math.ceil(num_layers / pp)
