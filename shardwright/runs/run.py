"""`PublishedRun`: the published description of a training run, without its measurements.

Predictions use only these values. Measured columns are skipped while reading, and so are notes,
which may contain results (`shardwright.runs.run_table` reads the measurements). A value that the
source does not state is None or "".
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

# The project's own table of published runs (profiles/data/published/README.md).
FIGURES = Path(__file__).parents[2] / "profiles" / "data" / "published" / "figures.csv"

# Columns of a table of runs that predictions must not use.
MEASURED_COLUMNS = (
    "step_time_s",
    "step_time_kind",
    "peak_memory_gib",
    "quality",
    "notes",
    "source_url",
    "source_date",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """A training run as its source describes it; names are the columns of a table of runs.

    row                     index in the table, from 1
    family                  `dense`, `moe` or `lora`
    ffn_size, moe_ffn_size  inner width of a dense feed-forward and of one expert
    top_k                   experts per token
    vocab_size              as published, before any padding
    seq_len                 tokens per sequence
    dp, tp, pp, vpp, cp, ep degrees; vpp is the number of model chunks per pipeline rank
    micro_batch             sequences per data-parallel rank and pass
    global_batch            sequences per optimizer step
    recompute, precision, schedule, framework    in the source's own words
    sliding_window, window_layers   most keys per query, 0 for all, and number of layers with it
    mtp_layers              further tokens that the model is trained to predict
    recompute_layers        number of first layers of a stage with full recomputation
    lora_rank               of adapters
    base_precision          nf4 or int8: frozen weights, where adapters alone are trained
    expert_imbalance        tokens of the most loaded expert rank over the mean
    document_length         mean over tokens of their document's length; attention stays in it
    pipeline_layout         Megatron's text for the virtual stages (`Et*3|(tt|)*29m|L`)
    optimizer_offload, activation_offload   states in host memory; share of activations there
    reduce, compress, local_steps, local_workers, wide_layers, order, dp_replicate   as the options
                            of `plan --stack`
    peak_memory_kind        in the source's words: `allocated` by tensors, `reserved` by the
                            allocator, or reported by the device
    faults                  messages about unreadable cells (only with `lenient`)
    ran                     False for a layout that failed according to its source
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
    base_precision: str = ""
    expert_imbalance: float | None = None
    document_length: float | None = None
    pipeline_layout: str = ""
    optimizer_offload: bool | None = None
    activation_offload: float | None = None
    reduce: str = ""
    compress: str = ""
    local_steps: int | None = None
    local_workers: int | None = None
    wide_layers: int | None = None
    order: str = ""
    dp_replicate: int | None = None
    peak_memory_kind: str = ""
    faults: tuple[str, ...] = ()
    ran: bool = True


RUN_COLUMNS = tuple(
    field.name for field in fields(PublishedRun) if field.name not in ("row", "faults", "ran")
)
