"""NeMo's and Megatron-Bridge's keys as a run: YAML files, Hydra overrides, and the values of Python
recipes by the same names.

Names: github.com/NVIDIA/NeMo examples/nlp/language_modeling/conf (1.x) and
nemo/collections/llm/recipes (2.x); github.com/NVIDIA-NeMo/Megatron-Bridge scripts and
src/megatron/bridge/training/config.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from profiles.errors import DocumentError
from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import Options, by_key, read_pairs
from shardwright_frameworks.configs.interpolation import Open, resolved
from shardwright_frameworks.configs.keyed_file import KeyedFile, flow_values
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    count_of,
    degree_of,
    flash_of,
    if_on,
    opposite_of,
    read_by,
    truth_of,
    word_of,
)
from shardwright_frameworks.frameworks.flavors import collect_figures
from shardwright_frameworks.frameworks.megatron import (
    DEGREES,
    EXPERT_OVERLAP,
    SIZES,
    STRATEGIES,
    collect_distributed_optimizer,
    collect_expert_overlap,
    collect_experts,
    collect_layout,
    keep_recomputed_layers,
    set_modules,
)
from shardwright_frameworks.frameworks.objectives import report_objective
from shardwright_frameworks.shell.config_folder import ConfigFolder, Environment
from shardwright_frameworks.shell.text_marks import Place, UnknownValue, Word

_DEFAULTS = "Megatron-Core v0.14, model_parallel_config.py"
_PRECISIONS = {
    "bf16": "bf16", "bf16-mixed": "bf16", "bf16_mixed": "bf16", "bf16-true": "bf16", "16": "fp16",
    "16-mixed": "fp16", "fp16": "fp16", "fp16_mixed": "fp16", "16-true": "fp16", "32": "fp32",
    "32-true": "fp32", "fp32": "fp32", "nvfp4": "nvfp4", "mxfp8": "mxfp8",
}  # fmt: skip


# Sections with switches of types: Primus's, and Megatron-Bridge's, whose first one decides.
_SWITCHES = ("precision", "mixed_precision", "overrides", "model")


def precision_of(value: Any) -> str | None:
    """The precision of a trainer, or of a precision recipe
    (`bf16_with_fp8_current_scaling_mixed`)."""
    word = str(value).lower().removesuffix(".0")
    if word in _PRECISIONS:
        return _PRECISIONS[word]
    for part, kind in (("nvfp4", "nvfp4"), ("mxfp8", "mxfp8"), ("fp8_mx", "mxfp8"), ("fp8", "fp8")):
        if part in word:
            return kind
    return None


def granularity_of(value: Any) -> str | None:
    """Megatron-Core's granularity of recomputation."""
    word = "none" if value is None else word_of(value)
    return word if word in ("selective", "full", "none") else "none" if word == "null" else None


def _gated(value: Any) -> bool | None:
    """Whether an activation, by NeMo's name (`fast-swiglu`), is gated."""
    word = (word_of(value) or "").removeprefix("fast-")
    if word in ("swiglu", "geglu", "reglu"):
        return True
    return False if word in ("gelu", "relu", "squared-relu", "silu") else None


def _layout_text(value: Any) -> str | None:
    """The text of a pipeline layout, which Python recipes write as lists of layer names."""
    if isinstance(value, list):
        letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
        rows = [stage for stage in value if isinstance(stage, list)]
        names = [[letters.get(str(name).strip().lower(), "?") for name in row] for row in rows]
        return "|".join(map("".join, names)) if len(rows) == len(value) else None
    return value if isinstance(value, str) and value else None


KEYS: dict[str, tuple[str, Reader]] = {
    **{key: (about, degree_of) for key, about in (DEGREES | SIZES).items()},
    **read_by(
        degree_of,
        {"tp": "tensor_parallelism", "pp": "pipeline_parallelism", "cp": "context_parallelism",
         "ep": "expert_parallelism", "seq_len": "sequence_length",
         "nodes": "num_nodes nnodes policy_num_nodes",  # the last of SkyRL
         "vpp": "virtual_pipeline_model_parallel_size virtual_pipeline_parallelism",
         "devices_per_node": "num_gpus_per_node gpus_per_node nproc_per_node "
         "policy_num_gpus_per_node",
         "devices": "num_gpus", "model.num_kv_heads": "num_query_groups",
         "model.vocab_size": "override_vocab_size",
         "model.num_experts": "num_moe_experts"},
    ),
    **read_by(
        truth_of,
        {"sequence_parallel": "sequence_parallel sequence_parallelism",
         "distributed_optimizer": "use_distributed_optimizer",
         "model.tied_embeddings": "share_embeddings_and_output_weights",
         "model.gated_mlp": "gated_linear_unit swiglu"},
    ),
    "attention_backend": ("flash_attention", flash_of),
    "grad_reduce_in_bf16": ("gradient_reduction", if_on("bf16")),
    "recompute_num_layers": ("recompute_layers", count_of),
    "activations_checkpoint_num_layers": ("recompute_layers", count_of),
    "activations_checkpoint_granularity": ("recompute", granularity_of),
    "recompute_granularity": ("recompute", granularity_of),
    "activation": ("model.gated_mlp", _gated),
    "untie_embeddings_and_output_weights": ("model.tied_embeddings", opposite_of),
}  # fmt: skip
_METHODS = (("recompute_method",), ("activations_checkpoint_method",))
REGISTRY = "src/megatron/bridge/recipes/__init__.py"
"""Name patterns of Megatron-Bridge's recipe functions."""
_RECIPE = re.compile(r"(\w+?)_(pretrain|sft|peft|finetune|lora)_\w+")
_OPTIMIZERS = (
    ("optim", "name"),
    *((section, "optimizer") for section in ("optimizer", "config", "overrides")),
)
_MARKS = frozenset(
    {"tensor_model_parallel_size", "pipeline_model_parallel_size", "tensor_parallelism",
     "pipeline_parallelism", "micro_batch_size", "context_parallel_size"}
)  # fmt: skip
_OTHERS = frozenset(
    {
        "reward_model",
        "teacher",
        "validation_ds",
        "test_ds",
        "critic",
        "vision",
        "tokenizer",
        "ref",
        "reference",
        "actor_infer",
    }
)
Values = Mapping[tuple[str, ...], tuple[Any, Place]]


def values_of_files(parts: Sequence[tuple[tuple[str, ...], KeyedFile]]) -> Values:
    """The values of YAML files as written, by path; later files override earlier ones.

    parts  each with the key above its values
    """
    found: dict[tuple[str, ...], tuple[Any, Place]] = {}
    for below, file in parts:
        for path, value in file.values.items():
            if path[:1] != ("defaults",):
                found[(*below, *path)] = (value, file.place(path))
    return found


def values_of_words(
    words: Sequence[Word], unknowns: Sequence[UnknownValue], collected: Collected
) -> Values:
    """Values of Hydra overrides: `model.tensor_model_parallel_size=8`, `++trainer.num_nodes=4`."""
    found: dict[tuple[str, ...], tuple[Any, Place]] = {}
    for key, value, place in read_pairs(words, unknowns):
        path = tuple(key.lstrip("+~-").split("."))
        if key.startswith("--") or not all(part.isidentifier() for part in path):
            continue
        plain = value if isinstance(value, Open) else value.strip("'\"")
        if path[-1] in KEYS:
            collected.report_repeated(KEYS[path[-1]][0], key, found.get(path), (plain, place))
        table: Mapping[tuple[str, ...], Any] = {(): plain}
        if isinstance(plain, str) and plain.startswith("{"):
            try:
                table = flow_values(plain)
            except DocumentError as error:
                table = {(): Open(str(error))}
                collected.report_unresolved(key, str(error), place)
        for below, each in table.items():  # an unknown value replaces a file's all the same
            found[(*path, *below)] = (each, place)
    return found


def model_of_recipe(name: str) -> str | None:
    """The model in the name of a recipe of Megatron-Bridge.

    >>> model_of_recipe("nemotron_3_nano_pretrain_config")
    'nemotron_3_nano'
    """
    found = _RECIPE.fullmatch(name)
    return found[1] if found is not None else None


def recipe_of(options: Options) -> str | None:
    """The recipe function named in a command: by `--recipe`, by model and mode, or
    (scripts/performance/utils/utils.py) by model, task, GPUs and precision."""
    if name := options.text("recipe"):
        return name
    task = options.text("task", "mode") or "pretrain"
    task = "peft" if task in ("lora", "dora") else task
    if model := options.text("model"):
        return f"{model}_{task}_config"
    model, gpus = options.text("model_recipe_name", "mr"), options.text("num_gpus", "ng")
    gpu, kind = options.text("gpu", "g"), options.text("compute_dtype", "c") or "bf16"
    if "use_recipes" in options:
        return f"{model}_{task}_config"
    variant = options.text("config_variant", "cv") or ""
    suffix = f"_{variant.lower()}" if variant and variant.lower() not in ("v1", "v2") else ""
    known = model and gpus and gpu
    return (
        f"{model}_{task}_{gpus}gpu_{gpu}_{kind.replace('_', '')}{suffix}_config" if known else None
    )


def registries(folder: ConfigFolder, function: str) -> list[str]:
    """The files of Megatron-Bridge that may contain a recipe: the one that defines a benchmark of
    that name, and the registry."""
    top = folder.path_of(REGISTRY).parent.parent
    benchmarks = [
        path.relative_to(top.parents[2]).as_posix()
        for path in sorted(top.glob("perf_recipes/**/*.py"))
        if f"def {function}(" in path.read_text(errors="replace")
    ]
    return [*benchmarks, REGISTRY]


def collect_model_of_recipe(name: str | None, options: Options, collected: Collected) -> None:
    """Collect the model from the name of a recipe that is not in the files."""
    option = options.last("recipe", "model", "model_recipe_name", "mr")
    if option is None:
        option = options.last("model_family_name", "m", "model_name", "model_family")
    written = options.value_of(option, collected) if option is not None else None
    model = model_of_recipe(name or "") or written
    if option is not None and model is not None:
        collected.derive("model.name", model, f"the recipe's name {name or written}")
        collect_figures(model, "", collected, option.place, option.name)


def is_nemo(paths: Sequence[tuple[str, ...]]) -> bool:
    """Whether keys are those of NeMo or Megatron-Bridge."""
    return len({path[-1] for path in paths} & _MARKS) >= 2


def collect_nemo(
    given: Sequence[Values], collected: Collected, environment: Environment | None = None
) -> None:
    """Collects configurations; a later one overrides earlier ones.

    environment  variables for references in values
    """
    merged: dict[tuple[str, ...], tuple[Any, Place]] = {}
    for values in given:
        for path, (value, place) in values.items():
            if path in merged and path[-1] in KEYS:
                old = merged[path]
                collected.use(path[-1], old[1])
                if str(old[0]) != str(value):
                    about, name = KEYS[path[-1]][0], ".".join(path)
                    collected.report_override(about, name, old, (value, place))
            merged[path] = (value, place)
    _agree_on_distributed_optimizer(merged)
    written = {path: value for path, (value, _) in merged.items()}
    for path, (_, place) in merged.items():
        merged[path] = (resolved(path, written, environment or {}), place)
    last = given[-1] if len(given) > 1 else {}
    used = {path: each for path, each in merged.items() if path and not _elsewhere(path)}
    for path, (value, place) in used.items():
        if isinstance(value, Open) or path not in last:
            _collect_one(path, value, place, collected)
    # An override also replaces values of other names of its field (dataset and model have lengths).
    own = {place for _, place in last.values()}
    for path, (value, place) in used.items() if last else ():
        if path in last:
            before = collected.place(KEYS[path[-1]][0]) if path[-1] in KEYS else None
            collected.overriding = before not in own
            _collect_one(path, value, place, collected)
    collected.overriding = False
    for path, (value, place) in used.items():
        if path[-1] == "decoder_seq_length" and degree_of(value):
            # Of texts; the other length is that of an image.
            collected.placed.pop("seq_len", None)
            collected.set("seq_len", degree_of(value), place, ".".join(path))
        elif path[-1] in ("moe_shared_expert_intermediate_size", "moe_layer_freq"):
            collect_experts(path[-1], str(value), ".".join(path), place, collected)
    for path, (_, place) in merged.items():
        if "teacher" in path[:-1]:
            report_objective("kd", ".".join(path[: path.index("teacher") + 1]), place, collected)
            break
    _collect_low_precision(merged, collected)
    _collect_sharding(merged, collected)
    methods = [v for path, (v, _) in merged.items() if path[-1:] in _METHODS]
    keep_recomputed_layers(collected, word_of(methods[-1]) if methods else None)
    collect_modules(merged, collected)
    collect_memory(merged, collected)
    for path, (value, place) in merged.items():
        if path[-1:] == ("pipeline_model_parallel_layout",):
            collect_layout(_layout_text(value), ".".join(path), place, collected)
    for path, (value, place) in merged.items():
        if path[-1:] == (EXPERT_OVERLAP,) and truth_of(value) and not _elsewhere(path):
            collect_expert_overlap(".".join(path), place, collected)
    collected.default(_DEFAULTS, tp=1, pp=1, vpp=1, cp=1, ep=1, sequence_parallel=False)


def _agree_on_distributed_optimizer(merged: dict[tuple[str, ...], tuple[Any, Place]]) -> None:
    """Drop a disabled switch if another one enables both (Megatron-Bridge, training/config.py,
    validation)."""
    switches = [path for path in merged if path[-1:] == ("use_distributed_optimizer",)]
    if any(truth_of(merged[path][0]) for path in switches):
        for path in switches:
            if truth_of(merged[path][0]) is False:
                del merged[path]


def _collect_low_precision(values: Values, collected: Collected) -> None:
    """Collect the precision of 8- or 4-bit matmuls; the trainer's precision applies to other
    ops."""
    by_name = {path[-1]: (path, *given) for path, given in values.items() if path}
    for key, formats, kinds in (
        ("fp8", ("hybrid", "e4m3"), {"mxfp8": "mxfp8"}),
        ("fp4", ("e2m1",), {"nvfp4": "nvfp4"}),
    ):
        path, value, place = by_name.get(key, ((), None, None))
        if isinstance(value, Open):
            collected.leave_open("precision")
        if place is None or not (truth_of(value) or value in formats):
            continue
        _, recipe, where = by_name.get(f"{key}_recipe", ((), None, place))
        kind = kinds.get(word_of(recipe) or "", "fp8" if key == "fp8" else "nvfp4")
        collected.use(f"{key}_recipe", where)
        collected.placed.pop("precision", None)
        collected.set("precision", kind, place, ".".join(path))


def collect_modules(values: Values, collected: Collected) -> None:
    """Collect the modules of selective recomputation, a list or `[mlp,moe]`."""
    placed = collected.placed.get("recompute")
    for path, (modules, place) in values.items():
        if path[-1] != "recompute_modules":
            continue
        collected.use("recompute_modules", place)
        is_selective = placed is not None and placed.value == "selective"
        if is_selective and isinstance(modules, (list, str)):
            set_modules(str(modules), ".".join(path), place, collected)


def collect_memory(values: Values, collected: Collected) -> None:
    """Collect activations in host memory (`cpu_offloading_num_layers`, Megatron-Core,
    transformer_config.py), the type of gradients, and adapters."""
    by_name = {path[-1]: (path, *given) for path, given in values.items() if path}
    layers = collected.count("model.num_layers")
    if "cpu_offloading" in by_name and truth_of(by_name["cpu_offloading"][1]):
        path, written, place = by_name.get("cpu_offloading_num_layers", ((), None, None))
        number = degree_of(written)
        collected.use("cpu_offloading", by_name["cpu_offloading"][2])
        if number and layers and place is not None:
            share = min(1.0, number / layers)
            collected.set("activation_offload", share, place, ".".join(path))
    # The precision's value overrides that of `ddp` (Megatron-Bridge, mixed_precision.py, setup).
    for section in ("mixed_precision", "ddp"):
        path = (section, "grad_reduce_in_fp32")
        if path in values and (whole := truth_of(values[path][0])) is not None:
            kind = "fp32" if whole else "bf16"
            collected.set("gradient_reduction", kind, values[path][1], ".".join(path), over=False)
            break
    for path, (rank, place) in values.items():
        is_on = truth_of(values.get((*path[:-1], "enabled"), (True,))[0])
        if path == ("peft", "dim") or (path[-2:] == ("lora", "dim") and is_on):  # of Primus
            collected.set("model.lora_rank", degree_of(rank), place, ".".join(path))


def _collect_sharding(merged: Values, collected: Collected) -> None:
    """Collect the ZeRO stage. Only Megatron FSDP has the strategy; the distributed optimizer shards
    states only (megatron/core/distributed, core_v0.14)."""
    by_name = {path[-1]: (path, *given) for path, given in merged.items() if path}
    sharded = by_name.get("use_megatron_fsdp")
    named = by_name.get("data_parallel_sharding_strategy")
    on = sharded is not None and truth_of(sharded[1])
    if sharded is not None:
        collected.use(sharded[0][-1], sharded[2])
    if named is not None:
        path, value, place = named
        stage = STRATEGIES.get(word_of(value) or "")
        if on and stage is not None:
            collected.set("zero_stage", stage, place, ".".join(path))
        elif not on:
            collected.use(path[-1], place)
        if not on and word_of(value) not in (None, "no_shard"):
            collected.report_unused(".".join(path), place, "no effect without Megatron FSDP")
    elif on and sharded is not None:
        collected.default(_DEFAULTS, zero_stage=0)  # its strategy is `no_shard`
        return
    collect_distributed_optimizer(collected)


def _elsewhere(path: tuple[str, ...]) -> bool:
    """Whether a key is for a second model, validation or a tokenizer."""
    return not _OTHERS.isdisjoint(path) and path[-2:] != ("tokenizer", "vocab_size")


def _fields_of_key(path: tuple[str, ...]) -> tuple[str, ...]:
    """The fields of a run that a key sets: if its value is open, they have no default."""
    if path[-1] in KEYS:
        return (KEYS[path[-1]][0],)
    if path[-1] == "devices" and (len(path) == 1 or "trainer" in path):
        return ("devices_per_node",)
    if path[-2:] in _OPTIMIZERS:
        return ("optimizer",)
    if path[-1] == "pipeline_model_parallel_layout":
        return ("vpp",)
    return ("precision",) if path[-2:] == ("trainer", "precision") or path[-1] == "fp8" else ()


def _collect_one(path: tuple[str, ...], value: Any, place: Place, collected: Collected) -> None:
    name, key = ".".join(path), path[-1]
    if isinstance(value, Open):
        for about in _fields_of_key(path):
            collected.leave_open(about, name, value.why, place)
    elif key in KEYS:
        about, reader = KEYS[key]
        if reader is degree_of and str(value) == "-1":
            collected.leave_open(about, name, "-1: the program fills it in", place)
        collected.set(about, reader(value), place, name)
    elif key == "devices" and (len(path) == 1 or "trainer" in path):
        collected.set("devices_per_node", degree_of(value), place, name)
    elif path[-2:] in (("trainer", "precision"), ("plugins", "precision")) or (
        key in ("precision", "mixed_precision", "compute_dtype", "plugins", "precision_config")
        and (len(path) == 1 or path[0] in ("cfg", "model") or key != "precision")
        and isinstance(value, str)
    ):
        collected.set("precision", precision_of(value), place, name)
    elif len(path) > 1 and path[-2] in _SWITCHES and key in ("bf16", "fp16"):
        if truth_of(value):
            collected.set_first("precision", key, place, name)
    elif key == "zero1" and truth_of(value):  # of neuronx-distributed-training
        collected.set_first("zero_stage", 1, place, name)
    elif key == "use_torch_fsdp2" and truth_of(value):
        collected.set_first("zero_stage", 3, place, name)
    elif path[-2:] in (("pre_trainer", "model"), ("post_trainer", "model")) and value:
        # Primus: the name of a separate file.
        model = re.sub(r"(-\w+)?\.yaml$", "", str(value))
        collected.set("model.name", model, place, name)
    elif key == "peft" and word_of(value) in ("lora", "dora"):
        collected.leave_open("model.lora_rank", name, "the rank is that of the recipe", place)
    elif path[-2:] == ("model", "fsdp") and truth_of(value):
        collected.set_first("zero_stage", 3, place, name)
    elif path[-2:] == ("train_ds", "max_seq_length"):
        collected.set("seq_len", degree_of(value), place, name)
    elif key in ("fp8", "fp4"):
        collected.use(key, place)
    elif key == "params_dtype" or (path[0] in ("optim", "optimizer") and key in ("bf16", "fp16")):
        collected.use(key, place)  # of the weights; the precision is that of the matmuls
    elif path[-2:] in _OPTIMIZERS:
        word = word_of(value)
        if word and ("distributed" in word or path[-2:] == _OPTIMIZERS[0]):
            collected.set("distributed_optimizer", "distributed" in word, place, name)
        collected.set("optimizer", word, place, name)


def collect_performance_script(options: Options, collected: Collected) -> None:
    """Collect the arguments of NeMo's and Bridge's performance scripts (`-tp 4 -ng 64 -c bf16`)."""
    counts = DEGREES | by_key(
        {"tp": "tp tensor_parallel_size", "pp": "pp pipeline_parallel_size", "cp": "cp",
         "vpp": "vp virtual_pipeline_parallel_size virtual_pipeline_model_parallel_size",
         "ep": "ep expert_parallel_size", "etp": "et", "micro_batch": "mb micro_batch_size",
         "global_batch": "gb global_batch_size", "devices": "ng num_gpus", "nodes": "nodes",
         "devices_per_node": "gn gpus_per_node devices", "seq_len": "sl seq_length"}
    )  # fmt: skip
    options.collect_counts(collected, counts)
    precision, device = ("precision", precision_of), ("device", str)
    options.collect_words(
        collected, {"c": precision, "compute_dtype": precision, "g": device, "gpu": device}
    )
