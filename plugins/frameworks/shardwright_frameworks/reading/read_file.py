"""A configuration in keys or in Python: its framework and its values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from profiles.errors import DocumentError, UnknownNameError
from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.hydra_defaults import hydra_parts
from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.configs.keyed_file import KeyedFile, read_keyed
from shardwright_frameworks.configs.keyed_values import degree_of
from shardwright_frameworks.configs.python_file import read_python
from shardwright_frameworks.configs.python_recipe import PythonRecipes
from shardwright_frameworks.configs.unused_keys import report_unused
from shardwright_frameworks.frameworks import (
    accelerate,
    automodel,
    axolotl,
    deepspeed_config,
    hf_trainer,
    llama_factory,
    maxtext,
    model_config,
    nanotron,
    nemo,
    nemo_rl,
    other_yaml,
    primus,
    python_config,
    torchtitan,
    torchtune,
)
from shardwright_frameworks.reading.consistency import complete
from shardwright_frameworks.shell.config_folder import ConfigFolder
from shardwright_frameworks.shell.text_marks import Place


def keyed_framework(file: KeyedFile) -> str | None:
    """The framework that a file of keys configures, None for another file."""
    if file.name.endswith(".toml"):
        return "torchtitan" if torchtitan.is_torchtitan(file) else None
    if primus.is_primus(file):
        return "primus"
    keys = {path[0] for path in file.values}
    named = [name for name, is_it in _own_forms(file, keys) if is_it]
    if "llama-factory" in named and "nemo" in named:
        named.remove("nemo")  # its Megatron adapter takes Megatron-Core's names
    if "nemo-rl" in named and "nemo" in named:
        named.remove("nemo")  # its Megatron engine does too
    if len(named) > 1:
        raise DocumentError(
            f"{file.name}: matches two frameworks, {named[0]} and {named[1]}; name the command "
            "that reads it (shardwright import --command '...'), or remove the keys of one"
        )
    if named:
        return named[0]
    # Files of others have keys of these, too.
    shared = (
        ("transformers", hf_trainer.is_trainer(keys)),
        ("deepspeed", deepspeed_config.is_deepspeed(file)),
        ("maxtext", maxtext.is_maxtext(keys)),
        (
            "megatron-bridge",
            {"model", "train"} <= file.sections() and file.has("model", "seq_length"),
        ),
    )
    return next((name for name, is_it in shared if is_it), None)


def _own_forms(file: KeyedFile, keys: set[str]) -> Iterator[tuple[str, bool]]:
    """Whether a file has keys that only one framework has, by framework."""
    is_axolotl = axolotl.is_axolotl(file)
    is_nanotron = nanotron.is_nanotron(file)
    yield "nanotron", is_nanotron
    yield "accelerate", accelerate.is_accelerate(file)
    yield "gpt-neox", other_yaml.is_neox(file)
    yield "composer", other_yaml.is_composer(file)
    yield "automodel", automodel.is_automodel(file)
    yield "nemo-rl", nemo_rl.is_nemo_rl(file)
    yield "torchtune", torchtune.is_torchtune(file)
    yield "llama-factory", bool({"finetuning_type", "cutoff_len"} & keys)
    yield "axolotl", is_axolotl
    nemo_paths = [path for path in file.values if path and not (is_axolotl and len(path) == 1)]
    # Nanotron has the section `parallelism`, some keys of which NeMo has elsewhere.
    yield "nemo", not is_nanotron and nemo.is_nemo(nemo_paths)
    yield "maxtext", any(key.startswith(("ici_", "dcn_")) for key in keys)


def collect_keyed(
    name: str,
    folder: ConfigFolder,
    collected: Collected,
    chosen: Mapping[str, str] | None = None,
) -> str | None:
    """Collects the values of a file of keys and of the files that it names.

    chosen  options of Hydra's groups by the command line
    """
    if folder.text(name) is None:
        return None
    file = read_keyed(name, folder)
    if file.has("parameters") and other_yaml.is_composer(_section(file, "parameters")):
        # A job of MosaicML's launcher contains the run's configuration.
        gpus = degree_of(file.get("compute", "gpus"))
        collected.set("devices", gpus, file.place(("compute", "gpus")), "compute.gpus")
        file = _section(file, "parameters")
    hydra = hydra_parts(file, folder, chosen)
    parts = hydra.parts
    framework = keyed_framework(file)
    values = nemo.values_of_files(parts)
    if framework is None and len(parts) > 1 and nemo.is_nemo([path for path in values if path]):
        framework = "nemo"
    if framework is None:
        return None
    used_parts = parts if framework in ("nemo", "megatron-bridge", "primus") else (((), file),)
    collected.files += [part.name for _, part in used_parts]
    if used_parts is parts:
        for why in hydra.missing:
            collected.report_missing("defaults", why, file.place(("defaults",)))
    if framework == "primus":
        framework = _collect_primus(file, values, folder, collected)
    elif framework == "torchtitan":
        torchtitan.collect_torchtitan([torchtitan.values_of_file(file)], collected)
    elif framework == "nanotron":
        nanotron.collect_nanotron(file, collected)
    elif framework == "deepspeed":
        deepspeed_config.collect_deepspeed(file, collected)
    elif framework == "accelerate":
        named = accelerate.collect_accelerate(file, collected)
        if named:
            collect_deepspeed_file(
                named, folder, collected, file.place(("deepspeed_config",)), name
            )
    elif framework == "gpt-neox":
        other_yaml.collect_neox(file, collected)
    elif framework == "composer":
        other_yaml.collect_composer(file, collected)
        framework = "olmo" if other_yaml.is_olmo(file) else "llm-foundry"
    elif framework == "automodel":
        automodel.collect_automodel(file, collected)
    elif framework == "nemo-rl":
        files = nemo_rl.collect_nemo_rl(file, folder, collected)
        collected.files += [part.name for part in files[:-1]]
        used_parts = tuple(((), part) for part in files)
    elif framework == "torchtune":
        torchtune.collect_torchtune(file, (), (), collected)
    elif framework == "maxtext":
        maxtext.collect_maxtext(maxtext.given_by_file(file), collected)
    elif framework in ("nemo", "megatron-bridge"):
        nemo.collect_nemo([values], collected, folder.environment)
        bridge = file.has("train", "global_batch_size") or file.has("train", "micro_batch_size")
        framework = "megatron-bridge" if bridge or framework == "megatron-bridge" else "nemo"
        if ("experiment", "runner") in {path[:2] for path in values} or (
            {"system", "model", "data"} <= file.sections() and not file.has("trainer")
        ):
            framework = "flagscale"
    else:
        if framework == "axolotl":
            named = axolotl.collect_axolotl(file, collected)
        else:
            given = hf_trainer.given_by_file(file, collected)
            if llama_factory.is_second(file):
                llama_factory.collect_llama_factory(file, collected)
            named = hf_trainer.collect_trainer(given, collected)
        is_megatron = nemo.is_nemo([path for path in file.values if path])
        if framework == "llama-factory" and not llama_factory.is_second(file):
            llama_factory.collect_first(file, collected, is_megatron=is_megatron)
        if framework == "llama-factory" and is_megatron:
            # LLaMA-Factory's Megatron adapter takes Megatron-Core's names.
            nemo.collect_nemo([values], collected, folder.environment)
        if named:
            collect_deepspeed_file(named, folder, collected, file.place(("deepspeed",)), name)
        elif file.has("deepspeed") and deepspeed_config.is_deepspeed(_section(file, "deepspeed")):
            deepspeed_config.collect_deepspeed(_section(file, "deepspeed"), collected)
    for _, part in used_parts:
        report_unused(((p, v, part.place(p)) for p, v in part.values.items()), collected)
    return framework


def _collect_primus(
    file: KeyedFile, values: nemo.Values, folder: ConfigFolder, collected: Collected
) -> str:
    """Collects the overrides of the framework that Primus starts, over Primus's own defaults, and
    gives its name; `primus` for Primus's Megatron-Core."""
    module, started = primus.started_framework(file)
    primus.collect_defaults(file, collected)
    if started in ("torchtitan", "maxtext"):
        overrides = _section(_section(_section(file, "modules"), module), "overrides")
        primus.collect_model(file, collected)
        if started == "torchtitan":
            torchtitan.collect_torchtitan([torchtitan.values_of_file(overrides)], collected)
        else:
            maxtext.collect_maxtext(maxtext.given_by_file(overrides), collected)
    elif started in ("megatron", "megatron_bridge"):
        nemo.collect_nemo([values], collected, folder.environment)
    else:
        path = ("modules", module, "framework")
        collected.report_missing(
            ".".join(path), f"runs of {started!r} are not read", file.place(path)
        )
    return "primus" if started == "megatron" else started.replace("_", "-")


def _section(file: KeyedFile, section: str) -> KeyedFile:
    """A part of a file as a separate file."""
    return replace(
        file,
        values={p[1:]: v for p, v in file.values.items() if len(p) > 1 and p[0] == section},
        lines={p[1:]: n for p, n in file.lines.items() if len(p) > 1 and p[0] == section},
        twice=(),
    )


def collect_deepspeed_file(
    named: str, folder: ConfigFolder, collected: Collected, place: Place, near: str
) -> None:
    """Collects the values of a DeepSpeed file that another file names."""
    found = folder.find(named, near=near)
    if found is None:
        collected.report_unresolved("deepspeed", f"the file {named!r} is not in the folder", place)
        return
    file = read_keyed(found, folder)
    if found not in collected.files:
        collected.files.append(found)
    deepspeed_config.collect_deepspeed(_moved(file, found, folder), collected)


def _moved(file: KeyedFile, name: str, folder: ConfigFolder) -> KeyedFile:
    """A file that a script writes has its lines in the script."""
    if name not in folder.written:
        return file
    script, line = folder.written[name]
    lines = {path: number + line - 1 for path, number in file.lines.items()}
    return replace(file, name=script, lines=lines)


def read_keyed_config(name: str, folder: ConfigFolder) -> Collected | None:
    """The findings of a configuration file; None where it is none."""
    collected = Collected()
    framework = collect_keyed(name, folder, collected)
    if framework is None:
        return None
    collected.set("framework", framework, Place(name, 1), name)
    collect_model_file(folder, collected, name)
    complete(collected, {})
    return collected


def collect_model_file(folder: ConfigFolder, collected: Collected, near: str) -> None:
    """The figures of the model where its name leads to a `config.json` in the folder."""
    placed = collected.placed.get("model.name")
    if placed is None:
        # A program that loads its model from its folder names none.
        if folder.text("config.json") is not None and "model.num_layers" not in collected.placed:
            file = read_keyed("config.json", folder)
            if model_config.is_model_config(file):
                collected.files.append("config.json")
                model_config.collect_model_config(file, collected)
        return
    for name in (str(placed.value), f"{placed.value}/config.json", "config.json"):
        found = folder.find(name, near=near) if name.endswith(".json") else None
        if found is None or (name == "config.json" and "/" in str(placed.value).strip("./")):
            continue
        file = read_keyed(found, folder)
        if model_config.is_model_config(file):
            collected.files.append(found)
            model_config.collect_model_config(file, collected)
            return


def read_python_config(
    name: str, folder: ConfigFolder, requested: str | None = None
) -> Collected | None:
    """The findings of a Python configuration; None if it is none.

    requested  the function that gives it
    """
    collected = Collected()
    framework = collect_python(name, folder, collected, requested=requested, overrides=[])
    if framework is None:
        return None
    collected.set("framework", framework, Place(name, 1), name)
    complete(collected, {})
    return collected


def collect_python(
    name: str,
    folder: ConfigFolder,
    collected: Collected,
    *,
    requested: str | None,
    overrides: list[nemo.Values],
) -> str | None:
    """Collects the values of a Python configuration; returns its framework, or None.

    requested  the function that gives it;  overrides  values that replace its own, by path
    """
    file = read_python(name, folder.text(name) or "")
    path = folder.path_of(name)
    recipes = PythonRecipes()
    if requested is not None:
        defined = recipes.defined(path, file, requested)
        if defined is None:
            known = sorted({*file.functions, *file.imports})
            raise UnknownNameError("function", requested, known, where=name)
        path, file, requested = defined
    framework = python_config.python_framework(file)
    if framework is None and requested is not None:
        # A function that only changes another file's configuration.
        recipes.configuration(path, file, requested)
        read = [each for each in recipes.files.values() if each is not None]
        framework = next(filter(None, map(python_config.python_framework, read)), None)
    if framework is None:
        return None
    collected.files.append(name)
    if framework == "internevo":
        values = recipes.top(path, file)
        python_config.collect_internevo(values, collected)
        report_unused(((p, v, place) for p, (v, place) in values.values.items()), collected)
        return framework
    function, names = python_config.chosen_function(file, requested)
    if function is None and names:
        listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        why = f"the file has several: {listed}; name one ({name}:{names[0]})"
        collected.report_unresolved("configuration", why, Place(name, 1))
        return framework
    values = (
        recipes.top(path, file) if function is None else recipes.configuration(path, file, function)
    )
    if framework == "torchtitan":
        python_config.collect_python_torchtitan(values, overrides, collected)
    else:
        python_config.collect_python_nemo(values, overrides, collected)
    closed = ((p, v, at) for p, (v, at) in values.values.items() if not isinstance(v, Open))
    report_unused(closed, collected)
    return framework
