"""Primus's YAML as a run (github.com/AMD-AGI/Primus, primus/configs/modules, 2026-08): overrides of
Megatron-Core's options, or of a recipe of Megatron-Bridge, below `modules.pre_trainer`."""

from __future__ import annotations

import posixpath
import re

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.keyed_file import KeyedFile, read_keyed
from shardwright_frameworks.frameworks.nemo import Values
from shardwright_frameworks.shell.config_folder import ConfigFolder

_TRAINERS = ("pre_trainer", "post_trainer")
_SOURCE = "Primus 2026-11, primus/configs: modules/megatron and models/megatron/language_model.yaml"
_OF_TRAINER = {
    "pre_trainer.yaml": {"micro_batch": 2, "global_batch": 16, "seq_len": 1024},
    "sft_trainer.yaml": {"micro_batch": 1, "global_batch": 128, "seq_len": 2048},
}


def is_primus(file: KeyedFile) -> bool:
    """Whether a file has a training module."""
    return bool(started_framework(file)[1])


def started_framework(file: KeyedFile) -> tuple[str, str]:
    """The training module and its framework; "" for none."""
    for trainer in _TRAINERS:
        name = file.get("modules", trainer, "framework")
        if isinstance(name, str) and name:
            return trainer, name
    return "", ""


def collect_model(file: KeyedFile, collected: Collected) -> None:
    """Set the model from the name of its file, if the file is missing."""
    path = ("modules", started_framework(file)[0], "model")
    name = file.get(*path)
    if isinstance(name, str):
        place, option = file.place(path), ".".join(path)
        if name.lower().endswith("-fp8.yaml"):  # that file has the converters
            collected.set("precision", "fp8", place, option)
        name = re.sub(r"(-\w+)?\.yaml$", "", name)
        collected.set("model.name", name, place, option)


def presets(file: KeyedFile, folder: ConfigFolder) -> list[KeyedFile]:
    """Primus's files of the trainer and the model (primus/core/config/preset_loader.py), later ones
    overriding earlier ones; none if they are missing."""
    trainer, framework = started_framework(file)
    found: list[KeyedFile] = []
    for kind, key in (("modules", "config"), ("models", "model")):
        name = f"primus/configs/{kind}/{framework}/{file.get('modules', trainer, key)}"
        extended = _extended(name, folder)
        if not extended:
            return []
        found += extended
    return found


def _extended(name: str, folder: ConfigFolder) -> list[KeyedFile]:
    """The files of a chain of `extends` (relative paths), with the file itself last."""
    if folder.find(name) != name:
        return []
    file = read_keyed(name, folder)
    named = file.values.get(("extends",)) or ()
    below = [named] if isinstance(named, str) else list(named)
    paths = [posixpath.normpath(posixpath.join(posixpath.dirname(name), one)) for one in below]
    return [*(part for path in paths for part in _extended(path, folder)), file]


def collect_defaults(file: KeyedFile, collected: Collected, given: Values) -> None:
    """Set the defaults of Primus's files, which precede those of the framework it starts.

    given  values of the file and of its presets
    """
    trainer, framework = started_framework(file)
    path = ("modules", trainer, "config")
    config = str(file.get(*path) or "pre_trainer.yaml")
    if given.keys() == file.values.keys() and not config.endswith("_trainer.yaml"):
        why = f"{config!r} is not in the folder"
        collected.report_missing(".".join(path), why, file.place(path))
    if framework == "megatron":
        collected.default(
            _SOURCE, precision="bf16", distributed_optimizer=True, zero_stage=1, optimizer="adam",
            recompute="none", sequence_parallel=True, **_OF_TRAINER.get(config, {})
        )  # fmt: skip
    elif framework == "torchtitan":
        collected.default(
            "Primus, primus/configs/modules/torchtitan/pre_trainer.yaml",
            recompute="none",
            micro_batch=8,
            seq_len=2048,
        )
    elif framework == "megatron_bridge":
        flavor = ("modules", trainer, "overrides", "flavor")
        if flavor in given:
            recipe, place = given[flavor]
            why = f"the recipe {recipe!r}, which sets all other values, is in Megatron-Bridge"
            collected.report_missing(".".join(flavor), why, place)
