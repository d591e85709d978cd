"""Reads a configuration in keys or in Python: its framework and its values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from profiles.errors import DocumentError, UnknownNameError
from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.hydra_defaults import hydra_parts
from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.configs.keyed_file import KeyedFile, read_keyed
from shardwright_frameworks.configs.keyed_values import degree_of
from shardwright_frameworks.configs.python_evaluation import Made
from shardwright_frameworks.configs.python_file import PythonFile, read_python
from shardwright_frameworks.configs.python_recipe import PythonRecipes
from shardwright_frameworks.configs.python_values import Built, PythonValues, flattened
from shardwright_frameworks.configs.unused_keys import report_unused
from shardwright_frameworks.frameworks import (
    maxtext,
    megatron,
    model_config,
    nanotron,
    nemo,
    nemo_rl,
    olmo_core,
    python_config,
    trainer_program,
)
from shardwright_frameworks.frameworks.deepspeed_config import collect_deepspeed
from shardwright_frameworks.frameworks.flavor_source import collect_flavor
from shardwright_frameworks.reading.consistency import complete
from shardwright_frameworks.reading.keyed_frameworks import (
    FRAMEWORKS,
    KeyedSource,
    collect_deepspeed_file,
    combined_file,
    configured_section,
    keyed_framework,
    overridden_file,
)
from shardwright_frameworks.shell.config_folder import ConfigFolder
from shardwright_frameworks.shell.text_marks import Place, UnknownValue

_EXPORT = re.compile(r"\s*export\s+([A-Z][A-Z0-9_]*)=")


def collect_keyed(
    name: str,
    folder: ConfigFolder,
    collected: Collected,
    chosen: Mapping[str, str] | None = None,
    overrides: nemo.Values | None = None,
    otherwise: str = "",
    others: Sequence[str] = (),
) -> str | None:
    """Collect the values of a keyed file and of the files that it names.

    chosen     options of Hydra's groups by the command line
    overrides  values by the command line
    otherwise  the framework whose keys a file has that is of none; "" for none
    others     further files of the same configuration
    """
    if folder.text(name) is None:
        return None
    file = read_keyed(name, folder)
    if others:
        parts = tuple(((), read_keyed(each, folder)) for each in (name, *others))
        file = combined_file(
            KeyedSource(file=file, folder=folder, collected=collected, parts=parts)
        )
        collected.files += others
    if file.get("experiment", "task", "type") not in (None, "train"):  # of FlagScale
        return None
    gpus = ("compute", "gpus")  # of a job of MosaicML's launcher, with a configuration in a section
    collected.set("devices", degree_of(file.get(*gpus)), file.place(gpus), "compute.gpus")
    file = configured_section(file)
    hydra = hydra_parts(file, folder, chosen)
    source = KeyedSource(
        file=file, folder=folder, collected=collected, parts=hydra.parts, overrides=overrides or {}
    )
    framework = keyed_framework(file)
    if framework is None and file.has("defaults"):
        changed, _ = nemo_rl.inherited(file, folder)
        framework = FRAMEWORKS["nemo-rl"] if any(map(nemo_rl.is_nemo_rl, changed)) else None
    combines = framework is not None and framework.inherits
    if len(hydra.parts) > 1 and framework in (None, FRAMEWORKS["nemo"]):
        whole = combined_file(source)
        is_megatron = megatron.section_of(whole.values) is not None
        framework = FRAMEWORKS["megatron-lm"] if is_megatron else keyed_framework(whole)
        combines = True
        if framework is not None and not framework.inherits:
            source.file = whole
    framework = framework or FRAMEWORKS.get(otherwise)
    if framework is None:
        return None
    if framework.overridden:
        source.file = overridden_file(source)
    for why in hydra.missing if combines else ():
        collected.report_missing("defaults", why, file.place(("defaults",)))
    used = hydra.parts if combines else (((), source.file),)
    collected.files += [part.name for _, part in used]
    read = framework.collect(source)
    collected.files += [part.name for part in source.further if part.name not in collected.files]
    further = nemo.values_of_files([((), part) for part in source.further])
    for path, (value, place) in {**further, **nemo.values_of_files(used)}.items():
        report_unused([(path, value, place)], collected)
    return read


def read_keyed_config(name: str, folder: ConfigFolder) -> Collected | None:
    """The collected values of a configuration file; None for other files."""
    collected = Collected()
    folder = replace(folder, environment=_set_by_scripts(folder.path_of(name)))
    framework = collect_keyed(name, folder, collected)
    if framework is None:
        return None
    collected.set("framework", framework, Place(name, 1), name)
    collect_model_file(folder, collected, name)
    complete(collected, {})
    return collected


def _set_by_scripts(file: Path) -> dict[str, UnknownValue]:
    """Variables set by scripts in the file's folder or its parent: the file's defaults for them do
    not apply to the run."""
    found: dict[str, UnknownValue] = {}
    for script in (
        one for at in file.parents[:2] for one in sorted(at.glob("*.sh")) if one.is_file()
    ):
        for number, line in enumerate(script.read_text(errors="replace").splitlines(), 1):
            if (one := _EXPORT.match(line)) is not None:
                found[one[1]] = UnknownValue("script", one[1], Place(script.name, number))
    return found


def collect_model_file(folder: ConfigFolder, collected: Collected, near: str) -> None:
    """Collect the model's figures if its name refers to a `config.json` in the folder."""
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
    """The collected values of a Python configuration; None for other files.

    requested  the function that gives it
    """
    collected = Collected()
    folder = replace(folder, environment=_set_by_scripts(folder.path_of(name)))
    framework = collect_python(name, folder, collected, requested=requested, overrides=[])
    if framework is None:
        return None
    collected.set("framework", framework, Place(name, 1), name)
    complete(collected, {})
    return collected


def objects_of_program(
    name: str,
    folder: ConfigFolder,
    arguments: dict[str, tuple[Any, Place]],
    words: Sequence[str] = (),
) -> tuple[list[Made], trainer_program.Defaults, set[str]]:
    """The objects that a program makes, given its arguments, the entries of its classes, and the
    names of options without effect."""
    path, file = folder.path_of(name), read_python(name, folder.text(name) or "")
    recipes = PythonRecipes(folder.environment, words)
    made = recipes.made(path, file, arguments)
    if any(each.startswith("olmo_core") for each in file.modules):
        # Its own functions build the parts, of values that they have in common.
        names = ("global_batch_size", "max_sequence_length")
        given = {n: v for each, *_ in made for n, v in each.entries.items() if n in names}
        for function in file.functions if not olmo_core.makes_training(made) else ():
            recipes.call(path, file, function, {"common": Built(entries=dict(given), open="-")})
    return made, lambda kind: recipes.defaults(path, file, kind), recipes.unread()


def collect_program(
    name: str,
    folder: ConfigFolder,
    collected: Collected,
    arguments: dict[str, tuple[Any, Place]],
    overrides: nemo.Values | None = None,
    words: Sequence[str] = (),
) -> str | None:
    """Collect a program that sets up the Trainer or OLMo-core itself, given its arguments and
    overrides; None for others."""
    made, *_ = objects_of_program(name, folder, arguments, words)
    if olmo_core.makes_training(made):
        collected.files.append(name)
        return olmo_core.collect_olmo_core(made, overrides or {}, collected)
    deepspeed = trainer_program.collect_program(made, collected)
    if deepspeed is None:
        return None
    collected.files.append(name)
    if isinstance(deepspeed, Built):
        collect_deepspeed(_keyed(name, flattened("", deepspeed)), collected)
    elif deepspeed:
        collect_deepspeed_file(deepspeed, folder, collected, Place(name, 1), name)
    return "transformers"


def _keyed(name: str, values: PythonValues) -> KeyedFile:
    """The values of a Python file as those of a keyed file."""
    return KeyedFile(
        name=name,
        values={path: value for path, (value, _) in values.values.items()},
        lines={path: place.line for path, (_, place) in values.values.items()},
    )


def _collect_python_nanotron(name: str, values: PythonValues, collected: Collected) -> str:
    """Collect nanotron's configuration as in the YAML that it is saved as."""
    for path, (_, why, place) in values.opened.items():
        if path[:1] in ((), ("parallelism",), ("tokens",)):
            collected.report_missing(".".join(path) or "config", why, place)
    nanotron.collect_nanotron(_keyed(name, values), collected)
    return "nanotron"


def _imported_configurations(
    path: Path, file: PythonFile, recipes: PythonRecipes
) -> dict[str, str]:
    """The functions that give configurations in a file that only imports them: the framework of
    each."""
    if file.functions or file.classes:
        return {}
    found = {name: recipes.defined(path, file, name) for name in file.imports if name[0] != "_"}
    kinds = {
        name: python_config.python_framework(at[1])
        for name, at in found.items()
        if at is not None and at[2] in at[1].functions
    }
    return {name: kind for name, kind in kinds.items() if kind is not None}


def collect_python(
    name: str,
    folder: ConfigFolder,
    collected: Collected,
    *,
    requested: str | None,
    overrides: list[nemo.Values],
) -> str | None:
    """Collects the values of a Python configuration; returns its framework, or None.

    requested  the function that returns the configuration
    overrides  values that replace the function's, by path
    """
    file = read_python(name, folder.text(name) or "")
    path = folder.path_of(name)
    recipes = PythonRecipes(folder.environment)
    models = maxtext.registered(file)
    if models and requested is None:
        raise DocumentError(f"{name}: a registry of benchmarks; name one, as {name}:{min(models)}")
    if models and requested not in models:
        raise UnknownNameError("model", requested or "", sorted(models), where=name)
    if requested in models:
        collected.files.append(name)
        own = maxtext.model_file(models[requested], folder, name)
        maxtext.collect_maxtext(models[requested], collected, own)
        return "maxtext"
    if requested is not None:
        defined = recipes.defined(path, file, requested)
        if defined is None:
            known = sorted({*file.functions, *file.imports})
            raise UnknownNameError("function", requested, known, where=name)
        path, file, requested = defined
    framework, names = python_config.python_framework(file), tuple[str, ...]()
    if requested is None and framework is None:
        imported = _imported_configurations(path, file, recipes)
        if len(imported) == 1:
            (only,) = imported
            return collect_python(name, folder, collected, requested=only, overrides=overrides)
        framework, names = next(iter(imported.values()), None), tuple(imported)
    if framework is None and requested is not None and requested in file.functions:
        # A function that only changes another file's configuration.
        recipes.configuration(path, file, requested)
        read = [each for each in recipes.files.values() if each is not None]
        framework = next(filter(None, map(python_config.python_framework, read)), None)
    if framework is None:
        framework = collect_program(name, folder, collected, {})
        if framework is None and any(each.startswith("olmo_core") for each in file.modules):
            raise DocumentError(
                f"{name}: OLMo-core's configurations in Python are not read where the file itself "
                "makes no TrainModuleConfig"
            )
        if framework == "transformers" and "zero_stage" not in collected.placed:
            collected.leave_open("zero_stage")  # the command names accelerate's file
        return framework
    collected.files.append(name)
    values, function = None, requested if requested in file.functions else None
    if function is None and framework in ("nemo", "megatron-bridge"):
        values = recipes.started(path, file)
    if values is None and function is None and framework not in ("internevo", "nanotron"):
        function, names = (None, names) if names else python_config.chosen_function(file, requested)
        if function is None and names:
            listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            why = f"the file has several: {listed}; name one ({name}:{names[0]})"
            collected.report_unresolved("configuration", why, Place(name, 1))
            return framework
    if values is None and function is not None:
        values = recipes.configuration(path, file, function)
    values = values or recipes.top(path, file)
    if framework == "nanotron":
        return _collect_python_nanotron(name, values, collected)
    before = len(collected.placed) + len(collected.unresolved)
    if framework == "torchtitan":
        python_config.collect_python_torchtitan(values, overrides, collected)
        for _, registry, arguments, at in values.calls:
            name = registry.rpartition(".")[2]
            named = bool(arguments) and name.endswith("model_registry")
            for place, each in list(recipes.files.items()) if named else ():
                if each is not None and each.name == at.file:
                    defined = recipes.defined(place, each, name)
                    table = defined[1] if defined is not None else each
                    collect_flavor(table, str(arguments[0]), collected)
    elif framework == "internevo":
        python_config.collect_internevo(values, collected)
    else:
        python_config.collect_python_nemo(values, overrides, collected)
    if len(collected.placed) + len(collected.unresolved) == before:
        return None  # a program whose configuration is in its arguments
    closed = ((p, v, at) for p, (v, at) in values.values.items() if not isinstance(v, Open))
    report_unused(closed, collected)
    return framework
