"""NeMo RL's YAML as a run: the trained policy (github.com/NVIDIA-NeMo/RL, examples/configs and
nemo_rl/algorithms, 2026-11). Devices and degrees of generation are not read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.interpolation import Open, resolved
from shardwright_frameworks.configs.keyed_file import KeyedFile, read_keyed
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    degree_of,
    dtype_of,
    recompute_of,
    text_of,
    truth_of,
    word_of,
)
from shardwright_frameworks.frameworks.automodel import class_of
from shardwright_frameworks.frameworks.megatron import collect_distributed_optimizer
from shardwright_frameworks.frameworks.nemo import KEYS, Values, collect_modules, values_of_files
from shardwright_frameworks.frameworks.objectives import report_objective
from shardwright_frameworks.shell.config_folder import ConfigFolder
from shardwright_frameworks.shell.text_marks import Place

_SOURCE = "NeMo RL 2026-11, examples/configs"
_MOST_FILES = 20
_PROGRAM = re.compile(r"(^|/)run_(\w+_)?(sft|grpo|dpo|ppo|rm|distillation)(_\w+)?\.py$")
_OF_POLICY = frozenset(
    {"megatron_cfg", "dtensor_cfg", "train_global_batch_size", "train_micro_batch_size",
     "max_total_sequence_length"}
)  # fmt: skip
_POLICY: Mapping[str, tuple[str, Reader]] = {
    "model_name": ("model.name", text_of),
    "train_global_batch_size": ("global_batch", degree_of),
    "train_micro_batch_size": ("micro_batch", degree_of),
    "max_total_sequence_length": ("seq_len", degree_of),
    "precision": ("precision", dtype_of),
}
# Megatron-Core's names, as NeMo has them.
_DEGREES = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel"),
)
_MEGATRON: Mapping[str, tuple[str, Reader]] = {
    **{key: KEYS[key] for key in _DEGREES},
    "optimizer.optimizer": ("optimizer", word_of),
    "optimizer.use_distributed_optimizer": KEYS["use_distributed_optimizer"],
    "optimizer.optimizer_cpu_offload": ("optimizer_offload", truth_of),
}
_DTENSOR: Mapping[str, tuple[str, Reader]] = {
    "tensor_parallel_size": ("tp", degree_of),
    "pipeline_parallel_size": ("pp", degree_of),
    "context_parallel_size": ("cp", degree_of),
    "expert_parallel_size": ("ep", degree_of),
    "sequence_parallel": ("sequence_parallel", truth_of),
    "activation_checkpointing": ("recompute", recompute_of),
    "cpu_offload": ("optimizer_offload", truth_of),
}


def is_nemo_rl(file: KeyedFile) -> bool:
    """Whether a file is a configuration of NeMo RL, or overrides one."""
    changes = file.has("defaults") and (
        file.has("policy") or file.has("checkpointing", "checkpoint_dir")
    )
    return changes or bool(file.sections("policy") & _OF_POLICY)


def inherited(file: KeyedFile, folder: ConfigFolder) -> tuple[list[KeyedFile], list[str]]:
    """The files named by `defaults`, each relative to the folder of the file that names it, most
    general first (nemo_rl/utils/config.py); and the names of missing files."""
    found, missing = [file], list[str]()
    place = folder.path_of(file.name).resolve()
    while (named := _named(found[0])) and len(found) < _MOST_FILES:
        place = Path(os.path.normpath(place.parent / named))
        name = folder.name_of(place)
        if name is None:
            missing.append(named)
            break
        found.insert(0, read_keyed(name, folder))
    return found, missing


def _named(file: KeyedFile) -> str:
    value = file.values.get(("defaults",))
    return str(value[0] if isinstance(value, list) and value else value or "")


def config_of_suite(program: str, script: str, folder: ConfigFolder) -> str | None:
    """The configuration with the name of a test suite's script (tests/test_suites/llm/common.env);
    None for another program."""
    name = f"examples/configs/recipes/{folder.root.resolve().name}/{Path(script).stem}.yaml"
    return folder.find(name) if is_program(program) else None


def is_program(program: str) -> bool:
    """Whether a program is a training program of NeMo RL (examples/run_grpo.py)."""
    return _PROGRAM.search(program) is not None


def collect_nemo_rl(
    file: KeyedFile, folder: ConfigFolder, collected: Collected, overrides: Values
) -> list[KeyedFile]:
    """Collect the policy of a configuration; returns the files read.

    overrides  values of the command line
    """
    files, missing = inherited(file, folder)
    for name in missing:
        why = f"{name!r} is not in the folder or repository"
        collected.report_missing("defaults", why, file.place(("defaults",)))
    values = values_of_files([((), part) for part in files])
    for path, new in overrides.items():
        is_read = path[0] in ("policy", "cluster") and not isinstance(new[0], Open)
        if is_read and path in values and str(values[path][0]) != str(new[0]):
            collected.report_override(path[-1], ".".join(path), values[path], new)
    values = {**values, **overrides}
    if not file.has("defaults") and ("policy", "model_name") not in values:
        why = "the file changes another, which it does not name"
        collected.report_missing("defaults", why, Place(file.name, 1))
    written = {path: value for path, (value, _) in values.items()}
    given: Values = {
        path: (resolved(path, written, folder.environment), place)
        for path, (_, place) in values.items()
    }
    megatron = truth_of(_value(given, "policy.megatron_cfg.enabled")) is True
    second = truth_of(_value(given, "policy.dtensor_v2_cfg.enabled")) is True  # of forks
    section = "policy.dtensor_v2_cfg" if second else "policy.dtensor_cfg"
    section = "policy.megatron_cfg" if megatron else section
    _set_all(given, "policy", _POLICY, collected)
    _set_all(given, section, _MEGATRON if megatron else _DTENSOR, collected)
    if megatron:
        _collect_megatron(given, collected)
    else:
        _set(given, "policy.optimizer.name", "optimizer", class_of, collected)
        collected.default(_SOURCE, zero_stage=3, recompute="none", pp=1)
    adapters = f"{section}.{'peft' if megatron else 'lora_cfg'}"
    if truth_of(_value(given, f"{adapters}.enabled")):
        _set(given, f"{adapters}.dim", "model.lora_rank", degree_of, collected)
    _collect_devices(given, collected)
    for way in ("dynamic_batching", "sequence_packing"):
        if truth_of(_value(given, name := f"policy.{way}.enabled")):
            why = "micro-batches are filled up to a number of tokens"
            collected.leave_open("micro_batch", name, why, _place(given, name))
    placed = collected.placed.get("model.name")
    if placed is not None and " " in str(placed.value):
        collected.leave_open("model.name", placed.option, "is no model", placed.place)
    for section in ("dpo", "rm", "distillation", "grpo"):
        part = next((each for each in files if each.sections(section)), None)
        if part is not None:
            report_objective(section, section, part.place((section,)), collected)
    collected.default(_SOURCE, tp=1, pp=1, cp=1, ep=1, vpp=1, precision="bf16")
    # Settings of the engine that does not train, of parts that are off, and replaced ones.
    other = ("policy", "dtensor_cfg" if megatron else "megatron_cfg")
    off = {path[:-1] for path, (value, _) in given.items()
           if path[-1:] == ("enabled",) and truth_of(value) is False}  # fmt: skip
    for part in files:
        for path in part.values:
            is_off = any(path[: len(each)] == each for each in off)
            is_other = path[:2] in (other, ("policy", "generation"), ("policy", "draft"))
            is_other |= path[0] == "value"  # a second model
            if is_off or is_other or (path in values and part.place(path) != values[path][1]):
                collected.use(path[-1], part.place(path))
    return files


def _value(given: Values, dotted: str) -> Any:
    value, _ = given.get(tuple(dotted.split(".")), (None, None))
    return None if isinstance(value, Open) else value


def _set(given: Values, dotted: str, about: str, reader: Reader, collected: Collected) -> None:
    path = tuple(dotted.split("."))
    if path not in given:
        return
    value, place = given[path]
    if isinstance(value, Open):
        collected.leave_open(about, dotted, value.why, place)
    else:
        collected.set(about, reader(value), place, dotted)


def _set_all(
    given: Values, section: str, table: Mapping[str, tuple[str, Reader]], collected: Collected
) -> None:
    for key, (about, reader) in table.items():
        _set(given, f"{section}.{key}", about, reader, collected)


def _place(given: Values, dotted: str) -> Place:
    return given[tuple(dotted.split("."))][1]


def _collect_megatron(given: Values, collected: Collected) -> None:
    """Collect Megatron's options; `recompute_granularity` applies only with
    `activation_checkpointing` (nemo_rl/models/megatron/setup.py)."""
    section = "policy.megatron_cfg"
    switch = f"{section}.activation_checkpointing"
    on = truth_of(_value(given, switch))
    granularity = f"{section}.recompute_granularity"
    kind = word_of(_value(given, granularity)) or "full"
    if on is not None:
        collected.set("recompute", kind if on else "none", _place(given, switch), switch)
    if tuple(granularity.split(".")) in given:
        collected.use(granularity, _place(given, granularity))
    inside = {path: each for path, each in given.items() if path[:2] == ("policy", "megatron_cfg")}
    collect_modules(inside, collected)
    if truth_of(_value(given, f"{section}.fp8_cfg.enabled")):
        name = f"{section}.fp8_cfg.enabled"
        collected.placed.pop("precision", None)
        mx = word_of(_value(given, f"{section}.fp8_cfg.fp8_recipe")) == "mxfp8"
        collected.set("precision", "mxfp8" if mx else "fp8", _place(given, name), name)
    collect_distributed_optimizer(collected)
    collected.default(_SOURCE, zero_stage=1, recompute="none", sequence_parallel=False)


def _collect_devices(given: Values, collected: Collected) -> None:
    """Collect the devices for training: those of the nodes (on one node, the devices) not used for
    generation (nemo_rl/algorithms/grpo.py, setup)."""
    nodes = degree_of(_value(given, "cluster.num_nodes"))
    each = degree_of(_value(given, "cluster.gpus_per_node"))
    if nodes is None or each is None:
        return
    apart = truth_of(_value(given, "policy.generation.colocated.enabled")) is False
    resources = "policy.generation.colocated.resources"
    names = ["cluster.num_nodes", "cluster.gpus_per_node"]
    if apart and nodes > 1:
        nodes -= degree_of(_value(given, f"{resources}.num_nodes")) or 0
    elif apart:
        each -= degree_of(_value(given, f"{resources}.gpus_per_node")) or 0
    if nodes < 1 or each < 1:
        why = "no devices are left for training"
        collected.report_unresolved(resources, why, _place(given, names[0]))
        return
    teachers = "on_policy_distillation.non_colocated_teachers.enabled"
    if truth_of(_value(given, teachers)):
        why = "teachers have devices of the cluster, which are not counted"
        collected.leave_open("devices", teachers, why, _place(given, teachers))
        return
    about = " (without those that generate)" if apart else ""
    collected.set("nodes", nodes, _place(given, names[0]), names[0] + about)
    collected.set("devices_per_node", each, _place(given, names[1]), names[1])
