"""MaxText's flags and YAML as a run (github.com/AI-Hypercomputer/maxtext, configs/base.yml)."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import read_pairs
from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.configs.keyed_file import KeyedFile, read_keyed
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    degree_of,
    dtype_of,
    read_by,
    text_of,
    truth_of,
    word_of,
)
from shardwright_frameworks.configs.known_options import is_known
from shardwright_frameworks.configs.python_file import PythonFile, dotted
from shardwright_frameworks.frameworks.objectives import report_objective
from shardwright_frameworks.shell.config_folder import ConfigFolder
from shardwright_frameworks.shell.text_marks import Place, UnknownValue, Word

_DEFAULTS = "MaxText, configs/base.yml (2025-11)"
_QUANTIZATION = {
    "int8": "int8", "fp8": "fp8", "nanoo_fp8": "fp8", "fp8_full": "fp8", "fp8_gpu": "fp8",
    "fp8_nanoo": "fp8", "te_fp8_delayedscaling": "fp8", "te_fp8_currentscaling": "fp8",
    "te_mxfp8": "mxfp8", "te_nvfp4": "nvfp4",
}  # fmt: skip
_KEYS: dict[str, tuple[str, Reader]] = {
    **read_by(
        degree_of,
        {"seq_len": "max_target_length", "gradient_accumulation": "gradient_accumulation_steps",
         "model.num_layers": "base_num_decoder_layers", "model.hidden_size": "base_emb_dim",
         "model.ffn_size": "base_mlp_dim", "model.num_heads": "base_num_query_heads",
         "model.num_kv_heads": "base_num_kv_heads", "model.head_dim": "head_dim",
         "model.vocab_size": "vocab_size", "model.num_experts": "num_experts",
         "model.top_k": "num_experts_per_tok", "model.moe_ffn_size": "base_moe_mlp_dim",
         "model.num_shared_experts": "shared_experts",
         "model.first_dense_layers": "first_num_dense_layers", "nodes": "num_slices"},
    ),
    "opt_type": ("optimizer", word_of),
    "optimizer_memory_host_offload": ("optimizer_offload", truth_of),
    "logits_via_embedding": ("model.tied_embeddings", truth_of),
    "mlp_activations": ("model.gated_mlp", lambda value: "linear" in value if value else None),
}  # fmt: skip
_FIGURES = frozenset(key for key, (about, _) in _KEYS.items() if about.startswith("model."))
_OF_MODEL = _FIGURES | {"decoder_block"}
# Sizes that `global_parameter_scale` doubles, one after the other: heads and feed-forward first,
# then the width, then the layers (configs/types.py, get_individual_scales).
_SCALED = {
    "base_num_query_heads": 2, "base_num_kv_heads": 2, "base_mlp_dim": 2, "base_moe_mlp_dim": 2,
    "base_emb_dim": 1, "base_num_decoder_layers": 0,
}  # fmt: skip
_AXES = {"tensor": "tp", "pipeline": "pp", "context": "cp", "expert": "ep", "sequence": "cp"}
_OF_DP = {"dp", "ep"}
_AXIS = re.compile(rf"(?:ici|dcn)_(fsdp|fsdp_transpose|data|{'|'.join(_AXES)})_parallelism")
_WORDS = {
    "remat_policy": "recompute",
    "quantization": "precision",
    "dtype": "precision",
    "model_name": "model.name",
}
_MARKS = frozenset(
    {"per_device_batch_size", "max_target_length", "ici_fsdp_parallelism", "remat_policy",
     "dcn_data_parallelism", "base_emb_dim", "run_name", "ici_tensor_parallelism", "model_name",
     "base_output_directory", "steps", "dataset_type", "enable_checkpointing", "base_config"}
)  # fmt: skip
Given = dict[str, tuple[Any, Place]]


def given_by_words(
    words: Sequence[Word], unknowns: Sequence[UnknownValue], collected: Collected
) -> Given:
    """`key=value` arguments; the last wins, and a different earlier value is a contradiction."""
    found: Given = {}
    for name, value, place in read_pairs(words, unknowns):
        key = name.removeprefix("-").removeprefix("-")
        if not key.isidentifier():
            continue
        if key in _MARKS | set(_KEYS):
            about = _KEYS.get(key, ("", word_of))[0]
            collected.report_repeated(about, key, found.get(key), (value, place))
        found[key] = (value, place)
    return found


def _fields_of_key(key: str) -> set[str]:
    """The fields of a run that a key sets: if its value is unknown, they have no default."""
    if key in _KEYS:
        return {_KEYS[key][0]}
    if axis := _AXIS.fullmatch(key):
        return {_AXES[axis[1]]} if axis[1] in _AXES else {"zero_stage", "dp"}
    if key == "per_device_batch_size":
        return {"micro_batch", "global_batch"}
    return {_WORDS[key]} if key in _WORDS else set()


def given_by_file(file: KeyedFile) -> Given:
    """The keys of a YAML file; one slice, if base.yml leaves their number to the program."""
    given = {path[0]: (v, file.place(path)) for path, v in file.values.items() if len(path) == 1}
    given |= {  # the trained model of a distillation
        path[1]: (v, file.place(path))
        for path, v in file.values.items()
        if path[0] == "student_overrides" and len(path) == 2
    }
    if file.name.endswith("base.yml"):
        given.pop("dcn_data_parallelism", None)
    return given


def registered(file: PythonFile) -> dict[str, Given]:
    """The flags of each model in a registry of benchmarks (benchmarks/maxtext_*_model_configs.py),
    by its variable and by its name for `benchmark_runner`."""
    found: dict[str, Given] = {}
    calls = ((node, each) for node in file.body for each in ast.walk(node))
    for statement, call in calls:
        if not isinstance(call, ast.Call):
            continue
        given = {each.arg: each.value for each in call.keywords}
        name, tuning = given.get("model_name"), given.get("tuning_params")
        if dotted(call.func) != "MaxTextModel" or not isinstance(name, ast.Constant):
            continue
        flags: Given = {}
        entries = (
            zip(tuning.keys, tuning.values, strict=True) if isinstance(tuning, ast.Dict) else ()
        )
        for key, value in (*entries, (ast.Constant("model_name"), given.get("model_type", name))):
            if isinstance(key, ast.Constant):
                flags[str(key.value)] = (_literal(value), Place(file.name, value.lineno))
        found[str(name.value).replace("-", "_")] = flags
        if isinstance(statement, ast.Assign):
            found.setdefault(dotted(statement.targets[0]), flags)
    return found


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return Open(f"{ast.unparse(node)[:60]!r} is not followed")


def is_maxtext(keys: set[str]) -> bool:
    """Whether keys are those of MaxText."""
    return len(keys & _MARKS) >= 2 or any(key.startswith(("ici_", "dcn_")) for key in keys)


def named_model(given: Given) -> str:
    """The model whose file (configs/models) replaces the figures of other files; "" for none."""
    name = given.get("model_name", (None, None))[0]
    if isinstance(name, Open):
        return ""
    text = (text_of(name) or "").replace("-Instruct", "")
    return "" if text == "default" else text


def collect_maxtext(
    given: Given, collected: Collected, model_file: KeyedFile | None = None
) -> None:
    """Collect flags, with those of the command line already merged over those of a file.

    model_file  file of the named model, None if missing
    """
    if named_model(given):
        changes = truth_of(given.get("override_model_config", (None, None))[0])
        given = {
            key: each
            for key, each in given.items()
            if key not in _OF_MODEL or (changes and not each[1].file.endswith("base.yml"))
        }
        own = given_by_file(model_file) if model_file is not None else {}
        given |= {key: each for key, each in own.items() if key in _OF_MODEL - given.keys()}
    for key, (value, place) in given.items():
        for about in _fields_of_key(key) if isinstance(value, Open) else ():
            collected.leave_open(about, key, value.why, place)
    given = {key: each for key, each in given.items() if not isinstance(each[0], Open)}
    for key, about in (("train_micro_batch_size", "micro_batch"), ("batch_size", "global_batch")):
        if key in given and "per_device_batch_size" not in given:
            why = "prompts of reinforcement learning, each with several texts"
            collected.leave_open(about, key, why, given[key][1])
    # Its layers are pairs, with local and global attention (configs/models/gemma2-27b.yml).
    pairs = str(given.get("decoder_block", ("",))[0]) == "gemma2"
    if "distill_alpha" in given and not given["distill_alpha"][1].file.endswith("base.yml"):
        report_objective("kd", "distill_alpha", given["distill_alpha"][1], collected)
    scale = degree_of(given.get("global_parameter_scale", (1, None))[0]) or 1
    for key, (value, place) in given.items():
        if key in _KEYS:
            name, reader = _KEYS[key]
            read = reader(value)
            if key == "base_num_decoder_layers" and isinstance(read, int) and pairs:
                read *= 2
            if key in _SCALED and isinstance(read, int):
                read *= 2 ** ((scale.bit_length() - 1 + _SCALED[key]) // 3)
            collected.set(name, read, place, key)
        if not is_known("maxtext", key) and not place.file.endswith("base.yml"):
            collected.report_unknown(key, place)
    if collected.get("model.num_experts") == 1:
        del collected.placed["model.num_experts"]
        collected.placed.pop("model.top_k", None)
    _axes(given, collected)
    _degrees_of_cores(collected)
    _words(given, collected)
    batch = given.get("per_device_batch_size")
    if batch is not None:
        _batch(batch, collected)
        _micro_batch(given, collected)
    model = given.get("model_name")
    if model is not None and text_of(model[0]) not in (None, "default"):
        name = str(text_of(model[0]))
        collected.set("model.name", name, model[1], "model_name")
    collected.default(
        _DEFAULTS, tp=1, pp=1, cp=1, ep=1, recompute="full", precision="bf16", optimizer="adamw",
        zero_stage=3, gradient_accumulation=1,
    )  # fmt: skip


def model_file(given: Given, folder: ConfigFolder, near: str) -> KeyedFile | None:
    """The file of the named model (configs/models), None if missing."""
    model = named_model(given)
    for name in (f"models/{model}.yml", f"src/maxtext/configs/models/{model}.yml"):
        found = folder.find(name, near=near) if model else None
        if found is not None:
            return read_keyed(found, folder)
    return None


def _degree(given: Given, name: str) -> tuple[int | None, Place | None]:
    """The product of a degree inside and across slices; None if the program decides one of them."""
    product, place = 1, None
    for where in ("ici", "dcn"):
        found = given.get(f"{where}_{name}_parallelism")
        if found is None:
            continue
        place = found[1]
        if str(found[0]) == "-1":
            return None, place
        product *= degree_of(found[0]) or 1
    return (product if place is not None else None), place


def _cores(collected: Collected) -> int:
    """JAX devices per chip: TPU7x has two (docs.cloud.google.com/tpu/docs/tpu7x), the catalog's
    device is the chip."""
    return 2 if collected.get("device") == "tpu-v7x" else 1


def _axes(given: Given, collected: Collected) -> None:
    for key, (value, at) in given.items():
        if _AXIS.fullmatch(key) or (key.endswith("_parallelism") and str(value) == "1"):
            collected.use(key, at)
    for name, key in _AXES.items():
        degree, place = _degree(given, name)
        if key in collected.open_keys:
            continue
        if degree is None and place is not None:
            why = "-1: the devices that the other axes leave"
            collected.leave_open(key, f"ici_{name}_parallelism", why, place)
        if degree is not None and place is not None and not (name == "sequence" and degree == 1):
            collected.set(key, degree, place, f"ici_{name}_parallelism")
    data, _ = _degree(given, "data")
    fully, place = _degree(given, "fsdp")
    # A second axis of the same group of devices, which shards other dimensions of weights.
    crosswise, _ = _degree(given, "fsdp_transpose")
    fully = fully * (crosswise or 1) if fully is not None else None
    left = [
        given[key][1]
        for axis in ("fsdp", "fsdp_transpose")
        for key in (f"ici_{axis}_parallelism", f"dcn_{axis}_parallelism")
        if key in given and str(given[key][0]) == "-1"
    ]
    if left or (fully or 1) > 1:
        where = left[0] if left else place
        assert where is not None
        collected.set("zero_stage", 3, where, "ici_fsdp_parallelism")
    elif fully == 1 and place is not None and not _shards_otherwise(collected):
        collected.set("zero_stage", 0, place, "ici_fsdp_parallelism")
    copies = given.get("dcn_data_parallelism") or given.get("ici_data_parallelism")
    if copies and (data or 1) > 1 and (left or (fully or 1) > 1):
        collected.set("dp_replicate", data, copies[1], "dcn_data_parallelism")
    # Slices that no axis names are copies.
    by_devices = "dcn_data_parallelism" not in given and collected.count("devices") is not None
    filled = (
        left
        or by_devices
        or any(
            str(given.get(f"{w}_data_parallelism", (1, None))[0]) == "-1" for w in ("ici", "dcn")
        )
    )
    if not filled and fully is not None and place is not None and not _OF_DP & collected.open_keys:
        # Experts have a separate axis, whose devices compute other sequences.
        dp = (data or 1) * fully * (collected.count("ep") or 1)
        if dp % _cores(collected):
            collected.leave_open("dp")
            return
        dp //= _cores(collected)
        collected.set("dp", dp, place, "ici_fsdp_parallelism")
        ranks = 1
        for axis in ("tp", "pp", "cp"):
            ranks *= collected.count(axis) or 1
        if not {"tp", "pp", "cp", "ep"} & collected.open_keys:
            collected.derive("devices", dp * ranks, "the product of the parallelisms")


def _degrees_of_cores(collected: Collected) -> None:
    """Report degrees of JAX's devices where the devices of the run are chips with several."""
    place = collected.place("device")
    axes = [axis for axis in ("tp", "pp", "cp") if (collected.count(axis) or 1) > 1]
    if _cores(collected) > 1 and axes and place is not None:
        why = f"{', '.join(axes)} count JAX's devices, two on a chip; dp and devices count chips"
        collected.report_unresolved("device", why, place)


def _shards_otherwise(collected: Collected) -> bool:
    """Whether another axis than fsdp shards weights (base.yml, logical_axis_rules, `embed`)."""
    axes = ("ep", "cp")
    return any(axis in collected.open_keys or (collected.count(axis) or 1) > 1 for axis in axes)


def _words(given: Given, collected: Collected) -> None:
    for key, (value, place) in given.items():
        if value == "offload":
            collected.report_unused(key, place, "activations in host memory are not read")
    policy = given.get("remat_policy")
    if policy is not None:
        collected.set("recompute", word_of(policy[0]), policy[1], "remat_policy")
    quantization, dtype = given.get("quantization"), given.get("dtype")
    kind = _QUANTIZATION.get(str(quantization[0]).lower()) if quantization is not None else None
    if quantization is not None and kind is not None:
        collected.set("precision", kind, quantization[1], "quantization")
    elif dtype is not None:
        collected.set("precision", dtype_of(dtype[0]), dtype[1], "dtype")
    attention = given.get("attention")
    if attention is not None and "flash" in str(attention[0]):
        collected.set("flash_attention", True, attention[1], "attention")


def _micro_batch(given: Given, collected: Collected) -> None:
    """Sequences per pass of a replica of several devices; with a pipeline, a pass is one of
    `num_pipeline_microbatches`."""
    total, dp = collected.count("global_batch"), collected.count("dp")
    passes = collected.count("gradient_accumulation") or 1
    if {"tp", "pp", "cp", "gradient_accumulation"} & collected.open_keys:
        return
    if (collected.count("pp") or 1) > 1:
        written = given.get("num_pipeline_microbatches")
        passes *= (degree_of(written[0]) if written is not None else None) or 0
    if total and dp and passes and total % (dp * passes) == 0:
        how = f"batch {total} / (dp {dp} x {passes} passes)"
        collected.derive("micro_batch", total // (dp * passes), how)


def _batch(batch: tuple[Any, Place], collected: Collected) -> None:
    """Collect the sequences per device: the micro-batch, if a replica is one device."""
    try:
        number = float(str(batch[0]))
    except ValueError:
        return
    collected.use("per_device_batch_size", batch[1])
    devices, cores = collected.count("devices"), _cores(collected)
    each = f"{number:g}" if cores == 1 else f"{number:g} x {cores} cores"
    number *= cores
    steps = collected.count("gradient_accumulation") or 1
    if devices and number * devices == int(number * devices):
        how = f"per_device_batch_size {each} x {devices} devices"
        collected.derive("global_batch", int(number * devices) * steps, how)
    if {"tp", "pp", "cp"} & collected.open_keys:
        collected.open_keys.add("micro_batch")
        return
    ranks = 1
    for axis in ("tp", "pp", "cp"):
        ranks *= collected.count(axis) or 1
    if number * ranks < 1 or number * ranks != int(number * ranks):
        return
    if ranks == cores == 1:
        collected.set("micro_batch", int(number), batch[1], "per_device_batch_size")
    elif (collected.count("pp") or 1) == 1:
        how = f"per_device_batch_size {each} x {ranks} devices of a replica"
        collected.derive("micro_batch", int(number * ranks), how)
