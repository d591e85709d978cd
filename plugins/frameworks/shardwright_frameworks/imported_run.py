"""`ImportedRun`: a training run as configured for another framework.

Values are those in the files; None if a value is missing or known only in a run. The framework's
defaults for these are in `defaults`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from profiles.document import read_document, to_json, write_text
from profiles.errors import InputError
from shardwright.requests.imported_file import IMPORTED_SCHEMA
from shardwright_frameworks.plain_values import plain_values

Value = int | float | bool | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedModel:
    """The model as far as the files name it; figures are the columns of a table of runs.

    name         as in the files: a model on the Hugging Face hub, a `config.json`, or a framework's
                 name
    flavor       the framework's name of a size (`8B` of torchtitan's llama3)
    figures_of   source of figures that are not in the files: the framework's flavor, or a
                 config.json in the folder of the configuration; "" if all are in the files
    """

    name: str | None = None
    flavor: str | None = None
    figures_of: str = ""
    num_layers: int | None = None
    hidden_size: int | None = None
    ffn_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None
    max_positions: int | None = None
    gated_mlp: bool | None = None
    tied_embeddings: bool | None = None
    num_experts: int | None = None
    top_k: int | None = None
    moe_ffn_size: int | None = None
    num_shared_experts: int | None = None
    first_dense_layers: int | None = None
    sliding_window: int | None = None
    mtp_layers: int | None = None
    lora_rank: int | None = None


MODEL_FIGURES = tuple(
    each.name for each in fields(ImportedModel) if each.name not in ("name", "flavor", "figures_of")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """The framework's default for a value that the files do not have, and its version."""

    value: Value
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Two entries in the files that contradict each other.

    field   the affected key of the import, or ""
    text    both values with their places, and the one used
    places  `file:line` of both
    impossible  whether no run can have both, so that the layout cannot start
    """

    field: str
    text: str
    places: tuple[str, ...]
    impossible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresolved:
    """An option without a known value: a variable that is not set, the output of a
    command."""

    option: str
    why: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownOption:
    """An option that no known version of the framework has."""

    option: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedOption:
    """An unused key about parallelism, precision, the model or the optimizer, or one without
    effect."""

    option: str
    place: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """A run as configured.

    devices            ranks that train, of all nodes
    vpp                model chunks per pipeline rank
    dp                 replicas; if not in the files, derived from the other degrees
    dp_replicate       number of groups of replicas, each with all states sharded by ZeRO
    zero_stage         1 for a distributed optimizer, 2 and 3 as in DeepSpeed
    micro_batch        sequences per replica and pass
    global_batch       sequences per optimizer step
    precision          bf16, fp16, fp32, fp8, mxfp8, nvfp4 or tf32
    recompute          none, selective, full, or a kind as in a table of runs
    pipeline_layout    Megatron's text for the virtual stages
    device             the accelerator, if a file names it
    base_precision     nf4 or int8: type of frozen weights (only adapters are trained)
    activation_offload share of the layers whose activations are in host memory
    gradient_reduction fp32 or bf16: type of gradients and their sums
    options            `file:line` and option of each value, by key
    derived            derivation of each value that is in no file, by key
    defaults           the framework's defaults for values that the files do not have, by key
    overridden         values of a file that a command line replaces
    runs               number of training runs started by the files; this is the first
    files              names of the files read
    """

    framework: str | None = None
    framework_version: str | None = None
    model: ImportedModel = field(default_factory=ImportedModel)
    device: str | None = None
    devices: int | None = None
    devices_per_node: int | None = None
    nodes: int | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    dp: int | None = None
    dp_replicate: int | None = None
    zero_stage: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    gradient_accumulation: int | None = None
    seq_len: int | None = None
    precision: str | None = None
    recompute: str | None = None
    recompute_layers: int | None = None
    sequence_parallel: bool | None = None
    distributed_optimizer: bool | None = None
    optimizer: str | None = None
    schedule: str | None = None
    pipeline_layout: str | None = None
    optimizer_offload: bool | None = None
    activation_offload: float | None = None
    base_precision: str | None = None
    gradient_reduction: str | None = None
    flash_attention: bool | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    derived: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Default] = field(default_factory=dict)
    contradictions: tuple[Contradiction, ...] = ()
    overridden: tuple[Contradiction, ...] = ()
    unknown: tuple[UnknownOption, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()
    unused: tuple[UnusedOption, ...] = ()
    runs: int = 1
    files: tuple[str, ...] = ()

    def answer(self, key: str) -> Value:
        """The value of the files, otherwise the framework's default."""
        placed: Value = getattr(self, key)
        if placed is None and key in self.defaults:
            return self.defaults[key].value
        return placed


def need_possible(run: ImportedRun, path: str) -> None:
    """Raises InputError for a layout that cannot start, with every reason."""
    reasons = [each.text for each in run.contradictions if each.impossible]
    if reasons:
        raise InputError(f"{path}: cannot start: {'; '.join(reasons)}. Correct one of them")


def imported_json(run: ImportedRun) -> dict[str, Any]:
    """The run as plain values, with null for values that the files do not have."""
    return {"schema": IMPORTED_SCHEMA, **plain_values(run)}


def write_imported(path: str | Path, run: ImportedRun) -> None:
    """Writes the run; raises DocumentError if that fails."""
    write_text(path, to_json(imported_json(run)))


def read_imported(path: str | Path) -> ImportedRun:
    """The run of a file; raises DocumentError for another file and for a wrong entry."""
    return read_document(path, ImportedRun, schema=IMPORTED_SCHEMA)
