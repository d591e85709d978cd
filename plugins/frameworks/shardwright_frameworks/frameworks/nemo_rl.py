"""NeMo-RL's YAML as a run: the trained policy (github.com/NVIDIA-NeMo/RL, examples/configs and
nemo_rl/utils/config.py, 2026-08). One of its two engines is enabled: `megatron_cfg` or
`dtensor_cfg`; degrees of generation, teachers and value models are not of the policy."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.interpolation import Open, resolved
from shardwright_frameworks.configs.keyed_file import KeyedFile, read_keyed
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    degree_of,
    recompute_of,
    text_of,
    truth_of,
    word_of,
)
from shardwright_frameworks.configs.unused_keys import report_unused
from shardwright_frameworks.frameworks.flavors import collect_figures
from shardwright_frameworks.frameworks.nemo import Values
from shardwright_frameworks.shell.config_folder import ConfigFolder

_SOURCE = "NeMo-RL 2026-08, examples/configs/grpo_math_1B.yaml"
_MOST_PARENTS = 20
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def _last_word(value: Any) -> str | None:
    word = word_of(value)
    return None if word is None else word.rpartition(".")[2]


_KEYS: dict[str, tuple[str, Reader]] = {
    "policy.model_name": ("model.name", text_of),
    "policy.train_global_batch_size": ("global_batch", degree_of),
    "policy.train_micro_batch_size": ("micro_batch", degree_of),
    "policy.max_total_sequence_length": ("seq_len", degree_of),
    "policy.precision": ("precision", lambda value: _DTYPES.get(str(value))),
    "cluster.num_nodes": ("nodes", degree_of),
    "cluster.gpus_per_node": ("devices_per_node", degree_of),
}
_OF_DTENSOR: dict[str, tuple[str, Reader]] = {
    "policy.dtensor_cfg.tensor_parallel_size": ("tp", degree_of),
    "policy.dtensor_cfg.context_parallel_size": ("cp", degree_of),
    "policy.dtensor_cfg.expert_parallel_size": ("ep", degree_of),
    "policy.dtensor_cfg.sequence_parallel": ("sequence_parallel", truth_of),
    "policy.dtensor_cfg.activation_checkpointing": ("recompute", recompute_of),
    "policy.dtensor_cfg.cpu_offload": ("optimizer_offload", truth_of),
    "policy.optimizer.name": ("optimizer", _last_word),
}
_OF_MEGATRON: dict[str, tuple[str, Reader]] = {
    "policy.megatron_cfg.tensor_model_parallel_size": ("tp", degree_of),
    "policy.megatron_cfg.pipeline_model_parallel_size": ("pp", degree_of),
    "policy.megatron_cfg.context_parallel_size": ("cp", degree_of),
    "policy.megatron_cfg.expert_model_parallel_size": ("ep", degree_of),
    "policy.megatron_cfg.expert_tensor_parallel_size": ("etp", degree_of),
    "policy.megatron_cfg.sequence_parallel": ("sequence_parallel", truth_of),
    "policy.megatron_cfg.activation_checkpointing": ("recompute", recompute_of),
    "policy.megatron_cfg.optimizer.optimizer": ("optimizer", _last_word),
    "policy.megatron_cfg.optimizer.optimizer_cpu_offload": ("optimizer_offload", truth_of),
    "policy.megatron_cfg.optimizer.use_distributed_optimizer": ("distributed_optimizer", truth_of),
}


def is_nemo_rl(file: KeyedFile) -> bool:
    """Whether a file, or one that inherits, configures a policy."""
    keys = file.sections("policy")
    inherits = isinstance(file.values.get(("defaults",)), str) and "policy" in file.sections()
    return inherits or bool(keys & {"megatron_cfg", "dtensor_cfg", "train_global_batch_size"})


def inherited_values(file: KeyedFile, folder: ConfigFolder, collected: Collected) -> Values:
    """The values of a file over those of the files in its `defaults`, whose paths start at it."""
    found: dict[tuple[str, ...], tuple[Any, Any]] = {}
    if len(collected.files) >= _MOST_PARENTS or file.name in collected.files:
        return found
    collected.files.append(file.name)
    named = file.values.get(("defaults",), [])
    for parent in named if isinstance(named, list) else [named]:
        name = str(PurePosixPath(file.name).parent / str(parent))
        if folder.inherited(name) is None:
            why = f"the file {str(parent)!r}, which has all other values, is not there"
            collected.report_missing("defaults", why, file.place(("defaults",)))
            continue
        found |= inherited_values(read_keyed(name, folder), folder, collected)
    for path, value in file.values.items():
        if path[:1] == ("defaults",):
            continue
        if value is None:  # a section that is set to null
            for below in [each for each in found if each[: len(path)] == path]:
                del found[below]
        found[path] = (value, file.place(path))
    return found


def collect_nemo_rl(given: Values, folder: ConfigFolder, collected: Collected) -> None:
    """Collects the policy's engine, its batch and its devices."""
    written = {path: value for path, (value, _) in given.items()}

    def value_of(dotted: str) -> Any:
        path = tuple(dotted.split("."))
        return resolved(path, written, folder.environment) if path in given else None

    def is_on(dotted: str) -> bool:
        return truth_of(value_of(dotted)) is True

    def take(dotted: str, about: str, reader: Reader) -> None:
        path = tuple(dotted.split("."))
        if path not in given:
            return
        value, place = value_of(dotted), given[path][1]
        if isinstance(value, Open):
            collected.leave_open(about, dotted, value.why, place)
        else:
            collected.placed.pop(about, None)
            collected.set(about, reader(value), place, dotted)

    megatron = is_on("policy.megatron_cfg.enabled")
    for dotted, (about, reader) in (_KEYS | (_OF_MEGATRON if megatron else _OF_DTENSOR)).items():
        take(dotted, about, reader)
    engine = "policy.megatron_cfg" if megatron else "policy.dtensor_cfg"
    if collected.get("recompute") == "full":
        take(f"{engine}.recompute_granularity", "recompute", word_of)
    if is_on(f"{engine}.fp8_cfg.enabled"):
        take(f"{engine}.fp8_cfg.enabled", "precision", lambda _: "fp8")
    adapter = f"{engine}.peft" if megatron else f"{engine}.lora_cfg"
    if is_on(f"{adapter}.enabled"):
        take(f"{adapter}.dim", "model.lora_rank", degree_of)
    for batching in ("policy.sequence_packing", "policy.dynamic_batching"):
        if is_on(f"{batching}.enabled"):
            place = given[(*batching.split("."), "enabled")][1]
            why = "micro-batches are filled up to a number of tokens"
            collected.leave_open("micro_batch", f"{batching}.enabled", why, place)
    _collect_devices(value_of, given, collected)
    stage: dict[str, int | None] = {"zero_stage": 3}
    if megatron:
        stage = {"zero_stage": 0 if collected.get("distributed_optimizer") is False else 1}
    if (name := collected.placed.get("model.name")) is not None:
        collect_figures(str(name.value), "", collected, name.place, name.option)
    collected.default(
        _SOURCE, tp=1, pp=1, cp=1, ep=1, nodes=1, precision="bf16", recompute="none",
        sequence_parallel=False, **stage,
    )  # fmt: skip
    other = "dtensor_cfg" if megatron else "megatron_cfg"
    report_unused(
        [
            (path, value, place)
            for path, (value, place) in given.items()
            if path[:1] == ("policy",) and not {other, "generation", "tokenizer"} & set(path)
            and not (megatron and path[1] == "optimizer")
        ],
        collected,
    )  # fmt: skip


def _collect_devices(value_of: Any, given: Values, collected: Collected) -> None:
    """Devices of the trainer: the cluster minus the devices of non-colocated generation
    (nemo_rl/algorithms/grpo.py, setup)."""
    path = ("policy", "generation", "colocated", "enabled")
    if path not in given or truth_of(value_of(".".join(path))) is not False:
        return
    about = "nodes" if (collected.count_or_default("nodes") or 1) > 1 else "devices_per_node"
    key = {"nodes": "num_nodes", "devices_per_node": "gpus_per_node"}[about]
    option = f"policy.generation.colocated.resources.{key}"
    generating, total = degree_of(value_of(option)), collected.count(about)
    place = given[path][1]
    if generating is None or total is None or total <= generating:
        collected.leave_open(
            about, option, "the number of devices for generation is not given", place
        )
        return
    collected.placed.pop(about)
    collected.use(option, place)
    collected.set(about, total - generating, place, f"cluster.{key} less {option}")
