"""verl's Hydra overrides as a run: the trained policy of `main_ppo`, or `sft_trainer`.

Names and defaults: github.com/volcengine/verl, verl/trainer/config (2026-08): actor/, engine/,
sft_trainer.yaml and sft_trainer_engine.yaml. In reinforcement learning the actor is read; degrees
of `rollout`, `ref` and `critic` belong to other models or to generation. EasyR1 has other names
(github.com/hiyouga/EasyR1, verl/workers/actor/config.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.interpolation import Open, resolved
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    count_of,
    degree_of,
    dtype_of,
    if_on,
    read_by,
    recompute_of,
    text_of,
    truth_of,
    word_of,
)
from shardwright_frameworks.configs.unused_keys import report_unused
from shardwright_frameworks.frameworks.megatron import (
    DEGREES,
    collect_distributed_optimizer,
    keep_recomputed_layers,
)
from shardwright_frameworks.frameworks.nemo import Values, collect_modules, granularity_of
from shardwright_frameworks.frameworks.objectives import report_objective
from shardwright_frameworks.shell.config_folder import Environment
from shardwright_frameworks.shell.text_marks import Place

_SOURCE = "verl 2026-08, verl/trainer/config"
_ACTOR: tuple[str, ...] = ("actor_rollout_ref", "actor")


@dataclass(frozen=True, slots=True)
class _Policy:
    """Where a program has the trained policy: sections, and keys of an update."""

    top: str
    actor: tuple[str, ...]
    prompts: str
    micro: tuple[str, ...]
    dynamic: str
    fsdp: str


_VERL = _Policy(
    "actor_rollout_ref",
    _ACTOR,
    "ppo_mini_batch_size",
    ("ppo_micro_batch_size_per_gpu", "ppo_micro_batch_size"),
    "use_dynamic_bsz",
    "fsdp_config",
)
_EASYR1 = _Policy(
    "worker",
    ("worker", "actor"),
    "global_batch_size",
    ("micro_batch_size_per_device_for_update",),
    "dynamic_batching",
    "fsdp",
)
_ENGINES = ("fsdp_config", "megatron", "veomni", "torchtitan")
_KNOWN_ENGINES = ("", "fsdp", "dp", "megatron", "automodel", "torchtitan", "veomni")


# Keys of a training engine, below its own path.
_OF_ENGINE: Mapping[str, tuple[str, Reader]] = {
    **{key: (about, degree_of) for key, about in DEGREES.items()},
    **read_by(
        degree_of,
        {"tp": "tensor_parallel_size tp_size tp", "pp": "pipeline_parallel_size pp_size pp",
         "vpp": "virtual_pipeline_model_parallel_size vpp", "etp": "etp",
         "cp": "ulysses_sequence_parallel_size ulysses_parallel_size cp_size cp",
         "ep": "expert_parallel_size ep_size ep"},
    ),
    "activation_checkpointing": ("recompute", recompute_of),
    "activation_checkpoint": ("recompute", word_of),
    **read_by(
        truth_of,
        {"sequence_parallel": "sequence_parallel",
         "distributed_optimizer": "use_distributed_optimizer",
         "optimizer_offload": "optimizer_cpu_offload offload_policy"},
    ),
    "recompute_num_layers": ("recompute_layers", count_of),
    "dtype": ("precision", dtype_of),
    "recompute_granularity": ("recompute", granularity_of),
}  # fmt: skip
# Moved to the host while answers are generated (workers/fsdp_workers.py, update_actor).
_BETWEEN_UPDATES = (
    "param_offload",
    "optimizer_offload",
    "grad_offload",
    "offload_params",
    "offload_optimizer",
)
# verl's files: types of weights, and settings that its Megatron engine always uses.
_IMPLIED = ("reshard_after_forward", "model_dtype", "hybrid_engine", "recompute_modules")
_OF_MODEL: Mapping[str, tuple[str, Reader]] = {
    "path": ("model.name", text_of),
    "partial_pretrain": ("model.name", text_of),
    "lora_rank": ("model.lora_rank", degree_of),
    "enable_gradient_checkpointing": ("recompute", recompute_of),
    "enable_activation_offload": ("activation_offload", if_on(1.0)),  # of FSDP's engine
}
# EasyR1's keys of the actor.
_OF_EASYR1: Mapping[str, tuple[str, Reader]] = {
    "ulysses_size": ("cp", degree_of),
    "ulysses_sequence_parallel_size": ("cp", degree_of),
    "model.model_path": ("model.name", text_of),
    "model.lora.rank": ("model.lora_rank", degree_of),
    "model.enable_gradient_checkpointing": ("recompute", recompute_of),
    "optim.strategy": ("optimizer", word_of),
    "fsdp.torch_dtype": ("precision", dtype_of),
    "fsdp.enable_cpu_offload": ("optimizer_offload", truth_of),
}
# Options of the optimizer; `optim.optimizer` is a class of torch, or of another library.
_OF_OPTIMIZER: Mapping[str, tuple[str, Reader]] = {
    "optimizer": ("optimizer", word_of),
    "optimizer_type": ("optimizer", word_of),
    "optimizer_cpu_offload": ("optimizer_offload", truth_of),
}
_OF_TRAINER: Mapping[str, tuple[str, Reader]] = {
    "nnodes": ("nodes", degree_of),
    "n_gpus_per_node": ("devices_per_node", degree_of),
}


# Sections next to the actor.
_BESIDE_ACTOR = (("rollout",), ("ref",), ("reward",), ("critic",))
_OTHERS = (
    "critic", "reward_model", "reward", "rollout", "async_training", "algorithm", "distillation",
)  # fmt: skip


def is_verl(program: str, paths: Values) -> bool:
    """Whether a program or its overrides are verl's."""
    return "verl" in program.replace("/", ".").split(".") or any(
        path[:1] == ("actor_rollout_ref",) or path == ("data", "train_files") for path in paths
    )


def is_easyr1(paths: Values) -> bool:
    """Whether overrides are EasyR1's."""
    return any(path[:2] == _EASYR1.actor for path in paths)


def own_config(given: Values, program: str, config: str) -> str:
    """The path of a configuration in verl's tree: by its name, otherwise by the program, which is
    identified by its overrides if a condition chooses it."""
    sft = "sft_trainer" if "fsdp" in program else "sft_trainer_engine"
    name = config.removesuffix(".yaml") or ("ppo_trainer" if _policy(given) else sft)
    folder = "/".join(program.split(".")[:-1]) if "experimental" in program else "verl/trainer"
    return f"{folder}/config/{name}.yaml"


def collect_verl(
    given: Values,
    program: str,
    config: str,
    collected: Collected,
    base: Values | None = None,
    environment: Environment | None = None,
) -> None:
    """Collects the overrides of a command line.

    config       the name of the configuration, "" for the program's own
    base         its values;  environment  variables for references in values
    """
    own, base = given, dict(base or {})
    policy = _policy(own or base)
    launched = not policy and ("sft" in program or not program) and "ray" not in program
    if not launched:
        collected.forget_ranks()
    written = {path: value for path, (value, _) in (base | dict(given)).items()}
    given = {
        path: (resolved(path, written, environment or {}), place)
        for path, (_, place) in (*((p, v) for p, v in base.items() if p not in own), *own.items())
        # torchrun starts the ranks.
        if path in own or not (written[path] is None or (launched and path[0] == "trainer"))
    }
    megatron = _is_megatron(given, config)
    for path, (value, place) in given.items():
        if (key := _key_of(path, policy=policy, megatron=megatron)) is not None:
            if base:
                with collected.overriding_files():
                    _set(key, path, value, place, collected)
            else:
                _set(key, path, value, place, collected)
        elif path[-1] in _BETWEEN_UPDATES and not _is_other(path) and truth_of(value):
            why = "what it moves is on the device again during each update"
            collected.report_unused(".".join(path), place, why)
            collected.use(path[-1], place)
        if path[-1] == "lora_adapter_path" and value and not isinstance(value, Open):
            why = "the rank is that of the adapter"
            collected.leave_open("model.lora_rank", ".".join(path), why, place)
        if path not in own and (_is_other(path) or path[-1] in _IMPLIED):
            collected.use(path[-1], place)
    if truth_of(given.get(("distillation", "enabled"), (None,))[0]):
        place = given["distillation", "enabled"][1]
        report_objective("distillation", "distillation.enabled", place, collected)
    for path in (
        (*_ACTOR, "use_kl_loss"),
        ("algorithm", "use_kl_in_reward"),
        ("algorithm", "use_kl_loss"),
    ):
        if truth_of(given.get(path, (None,))[0]):
            why = "the reference model is not counted"
            collected.report_unresolved(".".join(path), why, given[path][1])
    newer = not base and program.endswith("sft_trainer") and "fsdp" not in program
    _collect_batch(given, collected, policy=policy, newer=newer)
    each = () if launched or "devices" in collected.placed else (("devices_per_node", 8),)
    collected.default(_SOURCE, nodes=1, **dict(each))
    _collect_sharding(given, collected, policy=policy, megatron=megatron)
    collect_modules({path: each for path, each in own.items() if not _is_other(path)}, collected)
    report_unused(
        [
            (path, value, place)
            for path, (value, place) in own.items()
            # A single word chooses a file of settings: `engine=megatron`.
            if len(path) > 1 and not isinstance(value, Open) and not _is_other(path)
        ],
        collected,
    )
    methods = [word_of(v) for path, (v, _) in given.items() if path[-1] == "recompute_method"]
    keep_recomputed_layers(collected, methods[-1] if methods else None)
    # A program that depends on a condition is unknown.
    if policy and megatron and "tp" not in {*collected.placed, *collected.open_keys}:
        place = next(iter(given.values()))[1]
        why = "verl's default depends on its version (4 until v0.3, then 1)"
        collected.leave_open("tp", "megatron.tensor_model_parallel_size", why, place)
    collected.default(
        _SOURCE, tp=1, pp=1, vpp=1, cp=1, ep=1, precision="bf16",
        optimizer="adam" if megatron else "adamw",
        sequence_parallel=megatron, recompute="none" if megatron or _engine(given) == "automodel"
        else "full",
    )  # fmt: skip


def _policy(given: Values) -> _Policy | None:
    if is_easyr1(given):
        return _EASYR1
    return _VERL if any(path[:1] == (_VERL.top,) for path in given) else None


def _is_megatron(given: Values, config: str) -> bool:
    """Whether Megatron-Core trains: by the configuration's name, the engine, or the strategy."""
    words = [config]
    for path, (value, _) in given.items():
        if path[-1] == "strategy" or path in (("engine",), ("model_engine",)):
            words.append(str(value))
        if path[: len(_ACTOR) + 1] == (*_ACTOR, "megatron"):
            return True
    return any("megatron" in word for word in words)


def _engine(given: Values) -> str:
    """The engine that the command line chooses."""
    for path in (("engine",), ("model_engine",)):
        if path in given:
            return str(given[path][0])
    return ""


def _is_other(path: tuple[str, ...]) -> bool:
    """Whether a key belongs to generation, a reference, a critic or a reward."""
    return (
        (path[0] in ("actor_rollout_ref", "worker") and path[1:2] in _BESIDE_ACTOR)
        or path[0] in _OTHERS
        or "turbo_config" in path
    )


def _key_of(
    path: tuple[str, ...], *, policy: _Policy | None, megatron: bool
) -> tuple[str, Reader] | None:
    """The field of the run that a key sets."""
    last = path[-1]
    if policy is _EASYR1 and path[:2] == policy.actor:
        return _OF_EASYR1.get(".".join(path[2:]))
    if path[:1] == ("trainer",):
        return _OF_TRAINER.get(last) if len(path) == 2 else None
    top = ("actor_rollout_ref",) if policy else ()
    if path == (*top, "model", "lora", "rank") and megatron:
        return _OF_MODEL["lora_rank"]
    if path == (*top, "model", last):
        if last.startswith("enable_") and megatron:
            return None
        return _OF_MODEL.get(last)
    optimizer = (*_ACTOR, "optim") if policy else ("optim",)
    if path[:-1] in (optimizer, (*optimizer, "override_optimizer_config")):
        return _OF_OPTIMIZER.get(last)
    engine = path[: len(path) - 1]
    if policy:
        if engine[:2] != _ACTOR or (len(engine) > 2 and engine[2] not in _ENGINES):
            return None
    elif engine and engine[0] not in ("engine", "model"):
        return None
    return _OF_ENGINE.get(last)


def _set(
    key: tuple[str, Reader], path: tuple[str, ...], value: Any, place: Place, collected: Collected
) -> None:
    about, reader = key
    name = ".".join(path)
    if isinstance(value, Open):
        collected.leave_open(about, name, value.why, place)
        return
    read = reader(value)
    if read is None and str(value).lower() in ("null", "none", "~"):
        collected.use(name, place)
        return
    collected.set(about, read, place, name)


def _number(given: Values, *paths: tuple[str, ...]) -> tuple[int | None, str, Place | None]:
    """The first given key of several: its number (None if unknown), name and place."""
    for path in paths:
        if path in given:
            value, place = given[path]
            number = None if isinstance(value, Open) else degree_of(value)
            return number, ".".join(path), place
    return None, "", None


def _collect_batch(
    given: Values, collected: Collected, *, policy: _Policy | None, newer: bool
) -> None:
    """Collect the sequences of a step and of a micro-batch, and their length.

    A step of a policy trains on ppo_mini_batch_size prompts with rollout.n answers each
    (verl/workers, `ppo_mini_batch_size *= rollout.n`). With dynamic batches, the default of the
    newer SFT trainer, a micro-batch is a budget of tokens.
    """
    if policy:
        prompts, name, place = _number(given, (*policy.actor, policy.prompts))
        rollouts = (policy.top, "rollout", "n")
        answers, written = _number(given, rollouts)[0], rollouts in given
        if prompts is not None and place is not None and (answers is not None or not written):
            collected.set("global_batch", prompts * (answers or 1), place, name)
        elif place is not None:
            why = "it or rollout.n depends on a condition, or is filled in elsewhere"
            collected.leave_open("global_batch", name, why, place)
        question, name, place = _number(given, ("data", "max_prompt_length"))
        answer, _, _ = _number(given, ("data", "max_response_length"))
        if question is not None and answer is not None and place is not None:
            collected.set("seq_len", question + answer, place, f"{name} + data.max_response_length")
        elif place is not None:
            why = "it or data.max_response_length is unknown"
            collected.leave_open("seq_len", name, why, place)
        section, keys, switch = policy.actor, policy.micro, policy.dynamic
    else:
        for key, about in (("train_batch_size", "global_batch"), ("max_length", "seq_len")):
            number, name, place = _number(given, ("data", key))
            if number is not None and place is not None:
                collected.set(about, number, place, name)
            elif place is not None and about not in collected.open_keys:
                collected.leave_open(about, name, "it is not a whole number", place)
        if newer and ("data", "use_dynamic_bsz") not in given:
            collected.leave_open("micro_batch")
        collected.default(_SOURCE, global_batch=256, micro_batch=4, seq_len=1024)
        section, switch = ("data",), "use_dynamic_bsz"
        keys = ("micro_batch_size_per_gpu", "micro_batch_size")
    number, name, place = _number(given, *((*section, key) for key in keys))
    dynamic = (*section, switch)
    budget = dynamic in given and truth_of(given[dynamic][0]) is not False
    if budget:
        value, where = given[dynamic]
        collected.leave_open(
            "micro_batch",
            ".".join(dynamic),
            f"{getattr(value, 'why', value)}: micro-batches are filled up to a number of tokens",
            where,
        )
        if place is not None:
            collected.report_unused(name, place, "no effect with dynamic batches")
    elif place is not None and isinstance(given[tuple(name.split("."))][0], Open):
        collected.leave_open("micro_batch", name, "its value is unknown", place)
    elif place is not None and "_per_" in name:
        collected.set("micro_batch", number, place, name)
    elif place is not None:  # of all replicas (verl/workers/fsdp_workers.py)
        replicas = _replicas(collected)
        if number and replicas and number % replicas == 0:
            collected.set("micro_batch", number // replicas, place, name)
        else:
            collected.leave_open("micro_batch", name, "it is divided by the replicas", place)


def _replicas(collected: Collected) -> int | None:
    ranks = (collected.count("nodes") or 1) * (collected.count("devices_per_node") or 0)
    for axis in ("tp", "pp", "cp"):
        if axis in collected.open_keys:
            return None
        ranks //= collected.count(axis) or 1
    return ranks or None


def _collect_sharding(
    given: Values, collected: Collected, *, policy: _Policy | None, megatron: bool
) -> None:
    """Collect the sharding: FSDP shards weights over all replicas or fsdp_size of them;
    Megatron-Core's distributed optimizer, verl's default, shards states."""
    engine = _engine(given)
    if engine not in _KNOWN_ENGINES and not megatron:
        chosen = given[("engine",) if ("engine",) in given else ("model_engine",)][1]
        collected.report_missing("engine", f"{engine!r} is no engine of verl's", chosen)
    fully = (*_ACTOR, "megatron") if policy else ("engine",)
    if megatron and truth_of(given.get((*fully, "use_megatron_fsdp"), (None,))[0]):
        path = (*fully, "use_megatron_fsdp")
        collected.set("zero_stage", 3, given[path][1], ".".join(path))
        return
    if megatron:
        collect_distributed_optimizer(collected)
        collected.default(_SOURCE, zero_stage=1)
        return
    top = (*policy.actor, policy.fsdp) if policy else ("engine",)
    keeps = (*top, "enable_full_shard" if policy is _EASYR1 else "reshard_after_forward")
    if keeps in given and truth_of(given[keeps][0]) is False:
        collected.set("zero_stage", 2, given[keeps][1], ".".join(keeps))
    elif engine == "torchtitan":
        top = (*_ACTOR, "torchtitan") if policy else ("engine",)
        shards, name, place = _number(given, (*top, "data_parallel_shard_size"))
        if shards is not None and place is not None:
            collected.set("zero_stage", 3 if shards > 1 else 0, place, name)
    else:
        collected.default(_SOURCE, zero_stage=3)
    size, name, place = _number(given, (*top, "fsdp_size"))
    if size is None or place is None:
        return
    nodes, each = collected.count_or_default("nodes"), collected.count("devices_per_node")
    devices = nodes * each if nodes and each else None
    if devices and size >= devices:
        return  # all ranks
    if size == 1:
        collected.set("zero_stage", 0, place, name)
    elif devices and devices % size == 0 and (collected.count_or_default("cp") or 1) == 1:
        collected.set("dp_replicate", devices // size, place, name)
    else:
        why = f"weights are sharded over {size} ranks and copied between such groups"
        collected.report_unresolved(name, why, place)
