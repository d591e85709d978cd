"""torchtitan's configurations as a run: TOML files, `--section.key` overrides, and the values of
Python configurations by the same names.

Sections and keys: github.com/pytorch/torchtitan, torchtitan/config_manager.py (2024),
torchtitan/config/job_config.py (2025), torchtitan/config/configs.py (2026).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import Options
from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    count_of,
    degree_of,
    dtype_of,
    text_of,
    truth_of,
    word_of,
)
from shardwright_frameworks.configs.known_options import is_known
from shardwright_frameworks.frameworks.flavors import collect_figures
from shardwright_frameworks.shell.text_marks import Place, unknown_numbers

_DEFAULTS = "torchtitan v0.2, torchtitan/config/job_config.py"
_SECTIONS = frozenset(
    {"job", "profiling", "metrics", "model", "optimizer", "lr_scheduler", "training",
     "parallelism", "checkpoint", "activation_checkpoint", "float8", "comm", "memory_estimation",
     "fault_tolerance", "experimental", "mx", "quantize", "compile", "validation", "debug"}
)  # fmt: skip
# Sections of converters and extensions, which bring further keys.
_FREE = {"quantize", "experimental", "custom_config"}
_SCHEDULES = {
    "1f1b": "1f1b",
    "interleaved1f1b": "interleaved-1f1b",
    "gpipe": "gpipe",
    "interleavedzerobubble": "zb",
    "zbvzerobubble": "zbv",
    "dualpipev": "dualpipev",
    "loopedbfs": "looped-bfs",
}


def _schedule(value: Any) -> str | None:
    word = word_of(value)
    return _SCHEDULES.get(word or "", word)


def _optimizer(value: Any) -> str | None:
    word = word_of(value)
    return "muon" if word and "muon" in word else word


def _flag_precision(name: str) -> Reader:
    return lambda value: name if truth_of(value) else None


# The last key of a path is enough where no two sections have it.
_KEYS: dict[str, tuple[str, Reader]] = {
    "tensor_parallel_degree": ("tp", degree_of),
    "pipeline_parallel_degree": ("pp", degree_of),
    "context_parallel_degree": ("cp", degree_of),
    "expert_parallel_degree": ("ep", degree_of),
    "expert_tensor_parallel_degree": ("etp", degree_of),
    "enable_sequence_parallel": ("sequence_parallel", truth_of),
    "seq_len": ("seq_len", degree_of),
    "max_context_length": ("seq_len", degree_of),
    "global_batch_size": ("global_batch", degree_of),
    "gradient_accumulation_steps": ("gradient_accumulation", degree_of),
    "pipeline_parallel_schedule": ("schedule", _schedule),
    "enable_cpu_offload": ("optimizer_offload", truth_of),
    "flavor": ("model.flavor", text_of),
    "mixed_precision_reduce": ("gradient_reduction", {"bfloat16": "bf16", "float32": "fp32"}.get),
    "enable_float8_linear": ("precision", _flag_precision("fp8")),
    "enable_fp8_linear": ("precision", _flag_precision("fp8")),
    "ngpu": ("devices", degree_of),
}
# Keys of the same last name, by section.
_SECTIONED: dict[tuple[str, str], tuple[str, Reader]] = {
    ("model", "name"): ("model.name", text_of),
    ("optimizer", "name"): ("optimizer", word_of),
    ("param_groups", "optimizer_name"): ("optimizer", _optimizer),
    ("activation_checkpoint", "mode"): ("recompute", word_of),
    **dict.fromkeys(  # of forks
        (("training", "vocab_size"), ("model", "vocab_size")), ("model.vocab_size", degree_of)
    ),
}
# Fields of a run that these decide together with others.
_ABOUTS = {
    "local_batch_size": ("micro_batch", "global_batch"),
    "batch_size": ("micro_batch", "global_batch"),
    "num_tokens_per_microbatch_per_dp_rank": ("micro_batch",),
    "num_tokens_per_train_step": ("global_batch",),
    "data_parallel_shard_degree": ("dp", "zero_stage"),
    "data_parallel_degree": ("dp", "zero_stage"),
    "data_parallel_replicate_degree": ("dp",),
    "fsdp_reshard_after_forward": ("zero_stage",),
    "converters": ("precision",),
    "pipeline_parallel_microbatch_size": ("micro_batch",),
    "pipeline_parallel_microbatches": ("micro_batch",),
    "pipeline_parallel_layers_per_stage": ("vpp",),
    "mixed_precision_param": ("precision",),
    "dtype": ("precision",),
}
Values = Mapping[tuple[str, ...], tuple[Any, Place]]


def is_torchtitan(file: KeyedFile) -> bool:
    """Whether a TOML file is one of torchtitan's."""
    sections = file.sections()
    return "training" in sections and len(sections & _SECTIONS) >= 3


def values_of_file(file: KeyedFile) -> Values:
    """The values of a TOML file, by path."""
    return {path: (value, file.place(path)) for path, value in file.values.items()}


def values_of_options(options: Options, collected: Collected) -> Values:
    """The overrides given as `--section.key value` and `--section.no_key`."""
    found: dict[tuple[str, ...], tuple[Any, Place]] = {}
    for option in options.given:
        if "." not in option.name or not option.name.startswith("--"):
            continue
        path = tuple(option.key.split("."))
        if not option.values:
            negative = path[-1].startswith("no_")
            path = (*path[:-1], path[-1].removeprefix("no_"))
            found[path] = (not negative, option.place)
            continue
        written = options.value_of(option, reported := Collected())
        if written is None:
            found[path] = (Open(reported.unresolved[0].why), option.place)
        else:
            many = [word.plain for word in option.values]
            plain: Any = many if len(many) > 1 else written
            if path in found and found[path][0] != plain and path[-1] in _KEYS:
                collected.report_contradiction(
                    _KEYS[path[-1]][0],
                    f"{option.name} is {found[path][0]} ({found[path][1]}) and {plain} "
                    f"({option.place}); the later one wins",
                    found[path][1],
                    option.place,
                )
            found[path] = (plain, option.place)
    return found


def collect_torchtitan(given: list[Values], collected: Collected, *, check: bool = True) -> None:
    """Collects configurations; a later one overrides earlier ones."""
    last: dict[str, tuple[Any, Place, str]] = {}
    for values in given:
        for path, (value, place) in values.items():
            if path[0] == "validation":
                continue  # of other batches
            if isinstance(value, Open):
                weights = path[-1] in ("mixed_precision_param", "dtype")
                if weights and "precision" in collected.placed:
                    continue  # the precision of the matmuls is given
                for about in _fields_of_key(path):
                    collected.leave_open(about, ".".join(path), value.why, place)
                last.pop(path[-1], None)
                continue
            with collected.overriding_files():
                _collect_one(path, value, place, collected)
            last[path[-1]] = (value, place, ".".join(path))
            known = is_known("torchtitan", path[-1]) or path[-1].isdigit()
            if check and not known and not _FREE & set(path):
                collected.report_unknown(".".join(path), place)
    _collect_model(collected)
    _collect_together(last, collected)
    collected.default(
        _DEFAULTS, tp=1, pp=1, cp=1, ep=1, precision="bf16", recompute="selective",
        optimizer="adamw", sequence_parallel=True, schedule="1f1b",
    )  # fmt: skip


def _entry(path: tuple[str, ...]) -> tuple[str, Reader] | None:
    entry = _SECTIONED.get((path[-2], path[-1])) if len(path) > 1 else None
    return entry or _KEYS.get(path[-1])


def _fields_of_key(path: tuple[str, ...]) -> tuple[str, ...]:
    entry = _entry(path)
    return _ABOUTS.get(path[-1], ()) if entry is None else (entry[0],)


def _collect_one(path: tuple[str, ...], value: Any, place: Place, collected: Collected) -> None:
    name = ".".join(path)
    entry = _entry(path)
    if path[-2:] == ("experimental", "pipeline_parallel_schedule"):
        entry = ("schedule", _schedule)
    if entry is None or (isinstance(value, str) and unknown_numbers(value)):
        return
    key, reader = entry
    placed = reader(value)
    if key == "recompute" and placed not in ("none", "selective", "full", None):
        placed = {"memory_budget": "selective"}.get(str(placed), placed)
    if placed is not None:
        collected.set(key, placed, place, name)


def _collect_together(last: Mapping[str, tuple[Any, Place, str]], collected: Collected) -> None:
    """Collect values that depend on several keys: micro-batch, sharding, precision, chunks."""
    for key in ("local_batch_size", "batch_size"):
        if key in last:
            value, place, name = last[key]
            number = degree_of(value)
            if number is not None:
                _collect_local_batch(number, place, name, last, collected)
            break
    length = collected.count("seq_len")
    for key, about in (
        ("num_tokens_per_microbatch_per_dp_rank", "micro_batch"),
        ("num_tokens_per_train_step", "global_batch"),
    ):
        if key in last and length:
            value, place, name = last[key]
            number = degree_of(value)
            if number and number % length == 0:
                collected.set(about, number // length, place, name)
    _collect_sharding(last, collected)
    experts = collected.placed.get("etp")
    if experts is not None and collected.count_or_default("ep") == 1:
        collected.forget("etp")
        if experts.value != 1:
            why = "no effect without spread experts"
            collected.report_unused(experts.option, experts.place, why)
    converters = last.get("converters")
    if converters is not None:
        words = converters[0] if isinstance(converters[0], list) else [converters[0]]
        joined = " ".join(str(word).lower() for word in words)
        kind = next(
            (p for word, p in (("nvfp4", "nvfp4"), ("mx", "mxfp8"), ("float8", "fp8"))
             if word in joined), None)  # fmt: skip
        collected.set("precision", kind, converters[1], converters[2])
    # Of the weights themselves, where nothing computes in another.
    for key in ("mixed_precision_param", "dtype"):
        if "precision" not in collected.placed and key in last:
            value, place, name = last[key]
            kind = dtype_of(value)
            if key != "dtype" or kind != "fp32":
                collected.set("precision", kind, place, name)
    stage = last.get("pipeline_parallel_layers_per_stage")
    layers, pp = collected.count("model.num_layers"), collected.count("pp")
    if stage is not None and layers and pp and degree_of(stage[0]):
        per_rank = layers / pp / (degree_of(stage[0]) or 1)
        if per_rank == int(per_rank) and per_rank >= 1:
            collected.set("vpp", int(per_rank), stage[1], stage[2])


def _collect_local_batch(
    number: int,
    place: Place,
    name: str,
    last: Mapping[str, tuple[Any, Place, str]],
    collected: Collected,
) -> None:
    """Collect the local batch: one pass without a pipeline, cut into micro-batches with one."""
    if "pp" in collected.open_keys and number > 1:
        collected.open_keys.add("micro_batch")
        return
    pp = collected.count("pp") or 1
    if "micro_batch" in collected.open_keys and pp > 1 and number > 1:
        return
    micro = last.get("pipeline_parallel_microbatch_size")
    if pp == 1 or number == 1:
        collected.set("micro_batch", number, place, name)
    elif micro is not None:
        collected.set("micro_batch", degree_of(micro[0]), micro[1], micro[2])
    else:
        count = last.get("pipeline_parallel_microbatches")
        parts = degree_of(count[0]) if count is not None else None
        if parts and number % parts == 0:
            collected.set("micro_batch", number // parts, place, name)
        elif parts is None:
            collected.default(_DEFAULTS, micro_batch=1)


def _collect_sharding(last: Mapping[str, tuple[Any, Place, str]], collected: Collected) -> None:
    """Collect dp = replicas x shards, if both are numbers, and the ZeRO stage: 3 for fully sharded
    parameters, 2 if they stay whole after the forward pass."""
    shard = last.get("data_parallel_shard_degree") or last.get("data_parallel_degree")
    replicate = last.get("data_parallel_replicate_degree")
    if replicate is not None and shard is not None:
        collected.use(replicate[2], replicate[1])
    shards = count_of(shard[0]) if shard is not None else None
    replicas = degree_of(replicate[0]) if replicate is not None else None
    raw = shard[0] if shard is not None else None
    if shard is not None and shards and (replicas or replicate is None):
        collected.set("dp", shards * (replicas or 1), shard[1], shard[2])
    if replicate is not None and (replicas or 1) > 1 and raw is not None and str(raw) != "1":
        collected.set("dp_replicate", replicas, replicate[1], replicate[2])
    if shard is None:
        if replicate is None and not {"dp", "pp"} & collected.open_keys:
            # All ranks shard by default; with a pipeline gathered parameters stay.
            whole = (collected.count("pp") or 1) > 1
            collected.default(_DEFAULTS, zero_stage=2 if whole else 3)
        return
    if str(raw) == "-1" or (shards or 0) > 1:
        reshard = last.get("fsdp_reshard_after_forward")
        never = reshard is not None and str(reshard[0]) == "never"
        always = reshard is not None and str(reshard[0]) == "always"
        if "pp" in collected.open_keys and not never and not always:
            collected.open_keys.add("zero_stage")
            return
        if (collected.count("pp") or 1) > 1 and not never and not always:
            # With a pipeline the usual policy keeps gathered parameters.
            collected.default(_DEFAULTS, zero_stage=2)
            return
        collected.set("zero_stage", 2 if never else 3, shard[1], shard[2])
    elif shards == 1 and replicas is not None:
        collected.set("zero_stage", 0, shard[1], shard[2])


def _collect_model(collected: Collected) -> None:
    name, flavor = collected.placed.get("model.name"), collected.placed.get("model.flavor")
    if name is not None:
        placed = flavor or name
        text = str(flavor.value) if flavor is not None else ""
        collect_figures(str(name.value), text, collected, placed.place, placed.option)
