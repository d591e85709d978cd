"""A configuration of keys, or in Python: which framework's it is, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from interop.configs.findings import Findings
from interop.configs.hydra_defaults import hydra_parts
from interop.configs.keyed_file import KeyedFile, read_keyed
from interop.configs.keyed_values import degree_of
from interop.configs.python_values import read_python
from interop.frameworks import (
    accelerate,
    deepspeed_config,
    hf_trainer,
    maxtext,
    model_config,
    nanotron,
    nemo,
    other_yaml,
    python_config,
    torchtitan,
    torchtune,
)
from interop.reading.consistency import complete
from interop.shell.config_folder import ConfigFolder
from interop.shell.text_marks import Place


def keyed_framework(file: KeyedFile) -> str | None:
    """The framework that a file of keys configures, None for another file."""
    if file.name.endswith(".toml"):
        return "torchtitan" if torchtitan.is_torchtitan(file) else None
    keys = {path[0] for path in file.values}
    checks = (
        ("nanotron", nanotron.is_nanotron(file)),
        ("accelerate", accelerate.is_accelerate(file)),
        ("gpt-neox", other_yaml.is_neox(file)),
        ("composer", other_yaml.is_composer(file)),
        ("torchtune", torchtune.is_torchtune(file)),
        ("llama-factory", bool({"finetuning_type", "cutoff_len"} & keys)),
        ("nemo", nemo.is_nemo([path for path in file.values if path])),
        (
            "axolotl",
            {"base_model", "micro_batch_size"} <= keys or {"base_model", "datasets"} <= keys,
        ),
        ("transformers", hf_trainer.is_trainer(keys)),
        ("deepspeed", deepspeed_config.is_deepspeed(file)),
        ("maxtext", maxtext.is_maxtext(keys)),
        (
            "megatron-bridge",
            {"model", "train"} <= file.sections() and file.has("model", "seq_length"),
        ),
    )
    return next((name for name, is_it in checks if is_it), None)


def say_keyed(
    name: str,
    folder: ConfigFolder,
    findings: Findings,
    chosen: Mapping[str, str] | None = None,
) -> str | None:
    """Says what a file of keys says, with the files that it names; its framework, or None.

    chosen  options of Hydra's groups by the command line
    """
    if folder.text(name) is None:
        return None
    file = read_keyed(name, folder)
    if file.has("parameters") and other_yaml.is_composer(_section(file, "parameters")):
        # MosaicML's launcher has the run's own configuration in its job's.
        gpus = degree_of(file.get("compute", "gpus"))
        findings.say("devices", gpus, file.place(("compute", "gpus")), "compute.gpus")
        file = _section(file, "parameters")
    hydra = hydra_parts(file, folder, chosen)
    parts = hydra.parts
    framework = keyed_framework(file)
    values = nemo.values_of_files(parts)
    if framework is None and len(parts) > 1 and nemo.is_nemo([path for path in values if path]):
        framework = "nemo"
    if framework is None:
        return None
    own = parts if framework in ("nemo", "megatron-bridge") else (((), file),)
    findings.files += [part.name for _, part in own]
    if own is parts:
        for why in hydra.missing:
            findings.lack("defaults", why, file.place(("defaults",)))
    if framework == "torchtitan":
        torchtitan.say_torchtitan([torchtitan.values_of_file(file)], findings)
    elif framework == "nanotron":
        nanotron.say_nanotron(file, findings)
    elif framework == "deepspeed":
        deepspeed_config.say_deepspeed(file, findings)
    elif framework == "accelerate":
        named = accelerate.say_accelerate(file, findings)
        if named:
            say_deepspeed_file(named, folder, findings, file.place(("deepspeed_config",)), name)
    elif framework == "gpt-neox":
        other_yaml.say_neox(file, findings)
    elif framework == "composer":
        other_yaml.say_composer(file, findings)
        framework = "olmo" if other_yaml.is_olmo(file) else "llm-foundry"
    elif framework == "torchtune":
        torchtune.say_torchtune(file, (), (), findings)
    elif framework == "maxtext":
        maxtext.say_maxtext(maxtext.given_by_file(file), findings)
    elif framework in ("nemo", "megatron-bridge"):
        nemo.say_nemo([values], findings, folder.environment)
        bridge = file.has("train", "global_batch_size") or file.has("train", "micro_batch_size")
        framework = "megatron-bridge" if bridge or framework == "megatron-bridge" else "nemo"
        if file.get("modules", "pre_trainer", "framework") == "megatron":
            framework = "primus"
        elif ("experiment", "runner") in {path[:2] for path in values} or (
            {"system", "model", "data"} <= file.sections() and not file.has("trainer")
        ):
            framework = "flagscale"
    else:
        named = hf_trainer.say_trainer(hf_trainer.given_by_file(file, findings), findings)
        if nemo.is_nemo([path for path in file.values if path]):
            # LLaMA-Factory's Megatron adapter takes Megatron-Core's own names.
            nemo.say_nemo([values], findings, folder.environment)
        if named:
            say_deepspeed_file(named, folder, findings, file.place(("deepspeed",)), name)
        elif file.has("deepspeed") and deepspeed_config.is_deepspeed(_section(file, "deepspeed")):
            deepspeed_config.say_deepspeed(_section(file, "deepspeed"), findings)
    return framework


def _section(file: KeyedFile, section: str) -> KeyedFile:
    """A part of a file as a file of its own."""
    return replace(
        file,
        values={path[1:]: v for path, v in file.values.items() if path[0] == section},
        lines={path[1:]: n for path, n in file.lines.items() if path[0] == section},
        twice=(),
    )


def say_deepspeed_file(
    named: str, folder: ConfigFolder, findings: Findings, place: Place, beside: str
) -> None:
    """What the DeepSpeed file says that another file names."""
    found = folder.find(named, near=beside)
    if found is None:
        findings.cannot_tell("deepspeed", f"the file {named!r} is not beside this one", place)
        return
    file = read_keyed(found, folder)
    if found not in findings.files:
        findings.files.append(found)
    deepspeed_config.say_deepspeed(_moved(file, found, folder), findings)


def _moved(file: KeyedFile, name: str, folder: ConfigFolder) -> KeyedFile:
    """A file that a script writes has its lines in the script."""
    if name not in folder.written:
        return file
    script, line = folder.written[name]
    lines = {path: number + line - 1 for path, number in file.lines.items()}
    return replace(file, name=script, lines=lines)


def read_keyed_config(name: str, folder: ConfigFolder) -> Findings | None:
    """The findings of a configuration file; None where it is none."""
    findings = Findings()
    framework = say_keyed(name, folder, findings)
    if framework is None:
        return None
    findings.say("framework", framework, Place(name, 1), name)
    say_model_beside(folder, findings, name)
    complete(findings, {})
    return findings


def say_model_beside(folder: ConfigFolder, findings: Findings, beside: str) -> None:
    """The figures of the model where its name leads to a `config.json` in the folder."""
    said = findings.said.get("model.name")
    if said is None:
        # A program that loads its model from its own folder names none.
        if folder.text("config.json") is not None and "model.num_layers" not in findings.said:
            file = read_keyed("config.json", folder)
            if model_config.is_model_config(file):
                findings.files.append("config.json")
                model_config.say_model_config(file, findings)
        return
    for name in (str(said.value), f"{said.value}/config.json", "config.json"):
        found = folder.find(name, near=beside) if name.endswith(".json") else None
        if found is None or (name == "config.json" and "/" in str(said.value).strip("./")):
            continue
        file = read_keyed(found, folder)
        if model_config.is_model_config(file):
            findings.files.append(found)
            model_config.say_model_config(file, findings)
            return


def read_python_config(name: str, folder: ConfigFolder) -> Findings | None:
    """The findings of a Python configuration; None where it is none."""
    findings = Findings()
    framework = say_python(name, folder, findings, asked=None, overrides=[])
    if framework is None:
        return None
    findings.say("framework", framework, Place(name, 1), name)
    complete(findings, {})
    return findings


def say_python(
    name: str,
    folder: ConfigFolder,
    findings: Findings,
    *,
    asked: str | None,
    overrides: list[torchtitan.Values],
) -> str | None:
    """Says what a Python configuration says; its framework, or None."""
    file = read_python(name, folder.text(name) or "")
    framework = python_config.python_framework(file)
    if framework is None:
        return None
    findings.files.append(name)
    if framework == "internevo":
        python_config.say_internevo(file.top, findings)
        return framework
    function, names = python_config.chosen_function(file, asked)
    if function is None and names:
        listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        findings.cannot_tell(
            "configuration", f"the file has several and names none: {listed}", Place(name, 1)
        )
        return framework
    values = file.of(function) if function is not None else file.top
    if framework == "torchtitan":
        python_config.say_python_torchtitan(values, overrides, findings)
    else:
        python_config.say_python_nemo(values, findings)
    return framework
