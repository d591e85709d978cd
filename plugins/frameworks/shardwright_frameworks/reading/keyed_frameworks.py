"""`FRAMEWORKS`: the frameworks with configurations in YAML, JSON or TOML. Each row has a function
that recognizes a file and one that reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from profiles.errors import DocumentError
from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.interpolation import Key, Open, resolved
from shardwright_frameworks.configs.keyed_file import KeyedFile, read_keyed
from shardwright_frameworks.configs.keyed_values import degree_of
from shardwright_frameworks.configs.known_options import is_known
from shardwright_frameworks.frameworks import (
    accelerate,
    automodel,
    axolotl,
    deepspeed_config,
    hf_trainer,
    llama_factory,
    maxtext,
    megatron,
    ms_swift,
    nanotron,
    nemo,
    nemo_rl,
    other_yaml,
    primus,
    torchtitan,
    torchtune,
    verl,
)
from shardwright_frameworks.frameworks.flavor_source import collect_flavor_of_tree
from shardwright_frameworks.frameworks.objectives import report_objective
from shardwright_frameworks.shell.config_folder import ConfigFolder
from shardwright_frameworks.shell.text_marks import Place


@dataclass(slots=True, kw_only=True)
class KeyedSource:
    """A file to be read into `collected`.

    parts    the file and the files of its Hydra defaults, each with the key above its values
    further  other files read by its reader
    overrides  values of the command line that starts it
    """

    file: KeyedFile
    folder: ConfigFolder
    collected: Collected
    parts: tuple[tuple[Key, KeyedFile], ...]
    further: list[KeyedFile] = field(default_factory=list)
    overrides: nemo.Values = field(default_factory=dict)

    @property
    def values(self) -> nemo.Values:
        """The values of all parts by their path."""
        return {path: value for path, value in nemo.values_of_files(self.parts).items() if path}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedFramework:
    """One framework.

    recognizes  whether a file has its keys
    collect     collects the values and returns the framework's name in an import
    ending      extension of its files; "" for YAML and JSON
    shared      whether other frameworks' files have these keys too: then it is tried last
    inherits    whether Hydra's defaults belong to its files
    overridden  whether the options of its program replace values of a file, by their paths
    """

    recognizes: Callable[[KeyedFile], bool]
    collect: Callable[[KeyedSource], str]
    ending: str = ""
    shared: bool = False
    inherits: bool = False
    overridden: bool = False


def overridden_file(source: KeyedSource) -> KeyedFile:
    """The file with the values that the command line replaces."""
    file, given = source.file, dict[Key, tuple[Any, Place]]()
    for path, (value, place) in source.overrides.items():
        if len(path) > 1 or path in file.lines:
            given[path] = (value, place)
            if path in file.values and str(file.values[path]) != str(value):
                old = (file.values[path], file.place(path))
                source.collected.report_override("", ".".join(path), old, (value, place))
    return replace(
        file,
        values={**file.values, **{path: value for path, (value, _) in given.items()}},
        lines={**file.lines, **{path: place.line for path, (_, place) in given.items()}},
        places={path: place for path, (_, place) in given.items()},
    )


def combined_file(source: KeyedSource) -> KeyedFile:
    """The file with the values of all files that it combines."""
    values = source.values
    return replace(
        source.file,
        values={path: value for path, (value, _) in values.items()},
        lines={path: place.line for path, (_, place) in values.items()},
        places={path: place for path, (_, place) in values.items()},
    )


def keyed_framework(file: KeyedFile) -> KeyedFramework | None:
    """The framework configured by a file, None for other files.

    Raises DocumentError for a file with keys of two frameworks.
    """
    rows = {name: row for name, row in FRAMEWORKS.items() if _has_ending(row, file)}
    for name, is_alone in (("primus", primus.is_primus(file)), ("verl", _is_verl(file))):
        if is_alone:
            return rows.get(name)
    own = [name for name, row in rows.items() if not row.shared and row.recognizes(file)]
    for name in _TAKES_NEMO:
        if name in own and "nemo" in own:
            own.remove("nemo")
    if len(own) > 1:
        raise DocumentError(
            f"{file.name}: matches two frameworks, {own[0]} and {own[1]}; name the command "
            "that reads it (shardwright import --command '...'), or remove the keys of one"
        )
    if own:
        return rows[own[0]]
    return next((row for row in rows.values() if row.shared and row.recognizes(file)), None)


def _has_ending(row: KeyedFramework, file: KeyedFile) -> bool:
    return file.name.endswith(".toml") == (row.ending == ".toml")


# Frameworks with a Megatron engine or adapter that takes Megatron-Core's names.
_TAKES_NEMO = ("llama-factory", "nemo-rl", "ms-swift", "megatron-lm")


def _top(file: KeyedFile) -> set[str]:
    return {path[0] for path in file.values if path}


def _is_nemo(file: KeyedFile) -> bool:
    # Nanotron has the section `parallelism`, some keys of which NeMo has elsewhere.
    is_axolotl = axolotl.is_axolotl(file)
    paths = [path for path in file.values if path and not (is_axolotl and len(path) == 1)]
    return not nanotron.is_nanotron(file) and nemo.is_nemo(paths)


def _is_verl(file: KeyedFile) -> bool:
    own = file.has("data", "train_files") and not {"optim", "engine", "worker"} & file.sections()
    named = file.has("model", "partial_pretrain") or file.has("defaults")
    if own and not named and not file.has("actor_rollout_ref"):
        return False  # data of other programs
    return verl.is_verl("", {path: (None, Place("", 0)) for path in file.values})


def _is_bridge(file: KeyedFile) -> bool:
    return {"model", "train"} <= file.sections() and file.has("model", "seq_length")


def _is_maxtext(file: KeyedFile) -> bool:
    return any(key.startswith(("ici_", "dcn_")) for key in _top(file))


def _of_file(
    collect: Callable[[KeyedFile, Collected], object], name: str
) -> Callable[[KeyedSource], str]:
    """A reader of the file alone."""

    def read(source: KeyedSource) -> str:
        collect(source.file, source.collected)
        return name

    return read


def _collect_torchtitan(source: KeyedSource) -> str:
    torchtitan.collect_torchtitan([torchtitan.values_of_file(source.file)], source.collected)
    collect_flavor_of_tree(source.folder, source.collected)
    return "torchtitan"


def _collect_verl(source: KeyedSource) -> str:
    program = "" if source.file.has("actor_rollout_ref") else "sft"
    config = source.file.name.rpartition("/")[2]
    environment = source.folder.environment
    verl.collect_verl({}, program, config, source.collected, source.values, environment)
    return "verl"


def _collect_accelerate(source: KeyedSource) -> str:
    named = accelerate.collect_accelerate(source.file, source.collected)
    if named:
        place = source.file.place(("deepspeed_config",))
        collect_deepspeed_file(named, source.folder, source.collected, place, source.file.name)
    return "accelerate"


def _collect_composer(source: KeyedSource) -> str:
    other_yaml.collect_composer(source.file, source.collected)
    return "olmo" if other_yaml.is_olmo(source.file) else "llm-foundry"


def _collect_nemo_rl(source: KeyedSource) -> str:
    files = nemo_rl.collect_nemo_rl(source.file, source.folder, source.collected, source.overrides)
    source.further += files[:-1]
    return "nemo-rl"


def _collect_torchtune(source: KeyedSource) -> str:
    torchtune.collect_torchtune(source.file, (), (), source.collected)
    return "torchtune"


def _collect_maxtext(source: KeyedSource) -> str:
    """Collect MaxText's flags over those of its base file."""
    given, folder, base = maxtext.given_by_file(source.file), source.folder, None
    named = source.file.get("base_config")
    near = folder.path_of(source.file.name)
    for place in near.parents[:3] if isinstance(named, str) else ():
        base = folder.name_of(place / named) if base is None else base
    if base is None and isinstance(named, str) and not named.endswith("base.yml"):
        why = f"{named!r} is not in the folder"
        source.collected.report_missing("base_config", why, source.file.place(("base_config",)))
    if base is not None:
        source.collected.files.append(base)
        given = maxtext.given_by_file(read_keyed(base, folder)) | given
    own = maxtext.model_file(given, folder, base or source.file.name)
    maxtext.collect_maxtext(given, source.collected, own)
    return "maxtext"


def _collect_nemo(source: KeyedSource) -> str:
    """Collect NeMo's keys, also used by Megatron-Bridge and FlagScale."""
    file, values = source.file, source.values
    given = [values, source.overrides] if source.overrides else [values]
    nemo.collect_nemo(given, source.collected, source.folder.environment)
    if ("experiment", "runner") in {path[:2] for path in values} or (
        {"system", "model", "data"} <= file.sections() and not file.has("trainer")
    ):
        collected = source.collected
        collected.default("Megatron-LM core_v0.14", optimizer="adam", recompute="none")
        return "flagscale"
    batch = file.has("train", "global_batch_size") or file.has("train", "micro_batch_size")
    if not batch and _is_nemo_of(source):
        return "nemo"
    if not file.has("_target_"):
        why = "the file changes a recipe, which the command that starts the run names"
        source.collected.report_missing("recipe", why, Place(file.name, 1))
    return "megatron-bridge"


def _is_nemo_of(source: KeyedSource) -> bool:
    return _is_nemo(source.file) or nemo.is_nemo(list(source.values))


def _collect_axolotl(source: KeyedSource) -> str:
    return _with_deepspeed(
        source, axolotl.collect_axolotl(source.file, source.collected), "axolotl"
    )


def _collect_trainer(source: KeyedSource) -> str:
    given = hf_trainer.given_by_file(source.file, source.collected)
    own = [(option, place) for key, _, place, option in given if hf_trainer.has_own_loop({key})]
    for option, place in own[:1]:
        why = "the Trainer has no such key, and its defaults are not used"
        source.collected.report_unresolved(option, why, place)
    named = hf_trainer.collect_trainer(given, source.collected, defaults=not own)
    # Of TRL: GRPO and RLOO, and learning from preferences.
    for key, words in (("num_generations", "grpo"), ("beta", "preferences")):
        if source.file.has(key):
            report_objective(words, key, source.file.place((key,)), source.collected)
            break
    default = source.collected.defaults.pop("zero_stage", None)
    if default and "zero_stage" not in source.collected.placed:
        source.collected.leave_open("zero_stage")  # the command names accelerate's file
    return _with_deepspeed(source, named, "transformers")


def _collect_llama_factory(source: KeyedSource) -> str:
    file, collected = source.file, source.collected
    given = hf_trainer.given_by_file(file, collected)
    is_second, is_megatron = llama_factory.is_second(file), nemo.is_nemo(list(source.values))
    of_second = llama_factory.collect_llama_factory(file, collected) if is_second else None
    named = hf_trainer.collect_trainer(given, collected) or of_second
    if of_second:
        collected.defaults.pop("zero_stage", None)
    by_command = not named and "fsdp" in f"{source.folder.root.name}/{file.name}".lower()
    if by_command and "zero_stage" not in collected.placed:
        why = "the file is named after FSDP, of which accelerate's file decides"
        collected.leave_open("zero_stage", "fsdp", why, Place(file.name, 1))
    if not is_second:
        llama_factory.collect_first(file, collected, is_megatron=is_megatron)
    if is_megatron:
        nemo.collect_nemo([source.values], collected, source.folder.environment)
    return _with_deepspeed(source, named, "llama-factory")


def _with_deepspeed(source: KeyedSource, named: str | None, framework: str) -> str:
    """Collects DeepSpeed's settings that a file names or contains."""
    file, collected = source.file, source.collected
    inside = section_of(file, "deepspeed")
    if named:
        place = file.place(("deepspeed",))
        collect_deepspeed_file(named, source.folder, collected, place, file.name)
    elif file.has("deepspeed") and deepspeed_config.is_deepspeed(inside):
        deepspeed_config.collect_deepspeed(inside, collected)
    return framework


def _collect_megatron_lm(source: KeyedSource) -> str:
    """Collect Megatron-LM's options as keys (as in its tests and Megatron-MoE-ModelZoo), and the
    devices of a job in other sections."""
    collected, values = source.collected, source.values
    section = megatron.section_of(values)
    written = {path: value for path, (value, _) in values.items()}
    own = dict[Key, tuple[Any, Place]]()
    for path, (_, place) in values.items():
        value = resolved(path, written, source.folder.environment)
        about, reader = nemo.KEYS.get(path[-1], ("", degree_of))
        if path[:-1] == section:
            own[path] = (value, place)
        elif about in ("nodes", "devices_per_node") and not isinstance(value, Open):
            collected.set_first(about, reader(value), place, ".".join(path))
    megatron.collect_megatron(megatron.options_of_keys(own, collected), collected)
    return "megatron-lm"


def _collect_primus(source: KeyedSource) -> str:
    """Collect the overrides of the framework that Primus starts, over Primus's own files or, if
    these are missing, their defaults; returns its name, `primus` for Primus's Megatron-Core."""
    file, collected = source.file, source.collected
    module, started = primus.started_framework(file)
    section = ("modules", module, "overrides")
    presets = primus.presets(file, source.folder)
    given = {(*section, *p): v for p, v in nemo.values_of_files([((), p) for p in presets]).items()}
    given |= source.values
    for part in presets[-1:]:  # of the model; those before it are defaults
        source.further.append(part)
        for path in part.values:
            if given[(*section, *path)][1] != part.place(path):
                collected.use(path[-1], part.place(path))
    collected.files += [part.name for part in presets]
    primus.collect_defaults(file, collected, given)
    written = {path: value for path, (value, _) in given.items()}
    own: nemo.Values = {
        path[3:]: (resolved(path, written, source.folder.environment), place)
        for path, (_, place) in given.items()
        if path[:3] == section
    }
    if started in ("torchtitan", "maxtext") and not presets:
        primus.collect_model(file, collected)
    if started == "torchtitan":
        torchtitan.collect_torchtitan([own], collected, check=not presets)
    elif started == "maxtext":
        named = {p[0]: v for p, v in own.items() if (*section, *p) in source.values}
        known = {p[0]: v for p, v in own.items() if is_known("maxtext", p[0])}
        maxtext.collect_maxtext(known | named, collected)
    elif started in ("megatron", "megatron_bridge"):
        nemo.collect_nemo([given], collected, source.folder.environment)
    else:
        path = ("modules", module, "framework")
        collected.report_missing(
            ".".join(path), f"runs of {started!r} are not read", file.place(path)
        )
    return "primus" if started == "megatron" else started.replace("_", "-")


def section_of(file: KeyedFile, section: str) -> KeyedFile:
    """A part of a file as a separate file."""
    return replace(
        file,
        values={p[1:]: v for p, v in file.values.items() if len(p) > 1 and p[0] == section},
        lines={p[1:]: n for p, n in file.lines.items() if len(p) > 1 and p[0] == section},
        twice=(),
    )


def configured_section(file: KeyedFile) -> KeyedFile:
    """The section with a configuration in a file of another program, if it is the only one and
    no framework has the file's own keys; otherwise the file."""
    if keyed_framework(file) is not None or file.has("defaults"):
        return file
    own = [row for row in FRAMEWORKS.values() if not row.shared]
    names = dict.fromkeys(path[0] for path in file.values if len(path) > 1)
    parts = [section_of(file, name) for name in names]
    found = [part for part in parts if any(row.recognizes(part) for row in own)]
    return found[0] if len(found) == 1 else file


def collect_deepspeed_file(
    named: str, folder: ConfigFolder, collected: Collected, place: Place, near: str
) -> None:
    """Collects the values of a DeepSpeed file that another file names."""
    found = folder.find(named, near=near)
    if found is None:
        collected.report_unresolved("deepspeed", f"the file {named!r} is not in the folder", place)
        deepspeed_config.collect_shipped(named, collected)
        return
    file = read_keyed(found, folder)
    if found not in collected.files:
        collected.files.append(found)
    deepspeed_config.collect_deepspeed(_moved(file, found, folder), collected)


def _moved(file: KeyedFile, name: str, folder: ConfigFolder) -> KeyedFile:
    """The file with the places of its values in the script that writes it, if a script does."""
    if name not in folder.written:
        return file
    script, line = folder.written[name]
    lines = {path: number + line - 1 for path, number in file.lines.items()}
    return replace(file, name=script, lines=lines)


FRAMEWORKS: dict[str, KeyedFramework] = {
    "torchtitan": KeyedFramework(
        recognizes=torchtitan.is_torchtitan, collect=_collect_torchtitan, ending=".toml"
    ),
    "primus": KeyedFramework(recognizes=primus.is_primus, collect=_collect_primus, inherits=True),
    "verl": KeyedFramework(recognizes=_is_verl, collect=_collect_verl, inherits=True),
    "nanotron": KeyedFramework(
        recognizes=nanotron.is_nanotron, collect=_of_file(nanotron.collect_nanotron, "nanotron")
    ),
    "accelerate": KeyedFramework(recognizes=accelerate.is_accelerate, collect=_collect_accelerate),
    "gpt-neox": KeyedFramework(
        recognizes=other_yaml.is_neox, collect=_of_file(other_yaml.collect_neox, "gpt-neox")
    ),
    "composer": KeyedFramework(
        recognizes=other_yaml.is_composer, collect=_collect_composer, overridden=True
    ),
    "levanter": KeyedFramework(
        recognizes=other_yaml.is_levanter,
        collect=_of_file(other_yaml.collect_levanter, "levanter"),
        overridden=True,
    ),
    "automodel": KeyedFramework(
        recognizes=automodel.is_automodel,
        collect=_of_file(automodel.collect_automodel, "automodel"),
        overridden=True,
    ),
    "nemo-rl": KeyedFramework(recognizes=nemo_rl.is_nemo_rl, collect=_collect_nemo_rl),
    "torchtune": KeyedFramework(recognizes=torchtune.is_torchtune, collect=_collect_torchtune),
    "llama-factory": KeyedFramework(
        recognizes=lambda file: bool({"finetuning_type", "cutoff_len"} & _top(file)),
        collect=_collect_llama_factory,
    ),
    "axolotl": KeyedFramework(recognizes=axolotl.is_axolotl, collect=_collect_axolotl),
    "megatron-lm": KeyedFramework(
        recognizes=lambda file: (
            megatron.section_of(path for path in file.values if path) is not None
        ),
        collect=_collect_megatron_lm,
        inherits=True,
    ),
    "ms-swift": KeyedFramework(
        recognizes=ms_swift.is_ms_swift,
        collect=lambda source: _with_deepspeed(
            source, ms_swift.collect_file(source.file, source.collected), "ms-swift"
        ),
    ),
    "nemo": KeyedFramework(recognizes=_is_nemo, collect=_collect_nemo, inherits=True),
    "maxtext": KeyedFramework(recognizes=_is_maxtext, collect=_collect_maxtext),
    # Files of others have keys of these, too.
    "transformers": KeyedFramework(
        recognizes=lambda file: hf_trainer.names_model_or_batch(_top(file)),
        collect=_collect_trainer,
        shared=True,
    ),
    "deepspeed": KeyedFramework(
        recognizes=deepspeed_config.is_deepspeed,
        collect=_of_file(deepspeed_config.collect_deepspeed, "deepspeed"),
        shared=True,
    ),
    "maxtext (no mesh)": KeyedFramework(
        recognizes=lambda file: maxtext.is_maxtext(_top(file)),
        collect=_collect_maxtext,
        shared=True,
    ),
    "megatron-bridge": KeyedFramework(
        recognizes=_is_bridge, collect=_collect_nemo, shared=True, inherits=True
    ),
}
"""The frameworks by name; a new framework is a new row."""
