"""Primus's YAML as a run (github.com/AMD-AGI/Primus, primus/configs/modules, 2026-08): overrides of
Megatron-Core's options, or of a recipe of Megatron-Bridge, below `modules.pre_trainer`."""

from __future__ import annotations

import re

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.frameworks.flavors import collect_figures

_TRAINERS = ("pre_trainer", "post_trainer")
_SOURCE = "Primus, primus/configs/modules/megatron: trainer_base.yaml and pre_trainer.yaml"


def is_primus(file: KeyedFile) -> bool:
    """Whether a file has a module that trains."""
    return bool(started_framework(file)[1])


def started_framework(file: KeyedFile) -> tuple[str, str]:
    """The module that trains and the framework that it starts; "" for none."""
    for trainer in _TRAINERS:
        name = file.get("modules", trainer, "framework")
        if isinstance(name, str) and name:
            return trainer, name
    return "", ""


def collect_model(file: KeyedFile, collected: Collected) -> None:
    """Sets the model by the name of its file."""
    path = ("modules", started_framework(file)[0], "model")
    name = file.get(*path)
    if isinstance(name, str):
        place, option = file.place(path), ".".join(path)
        if name.lower().endswith("-fp8.yaml"):  # that file has the converters
            collected.set("precision", "fp8", place, option)
        name = re.sub(r"(-\w+)?\.yaml$", "", name)
        collected.set("model.name", name, place, option)
        collect_figures(name, "", collected, place, option)


def collect_defaults(file: KeyedFile, collected: Collected) -> None:
    """Sets the defaults of Primus's own files, before those of the framework that it starts."""
    trainer, framework = started_framework(file)
    if framework == "megatron":
        collected.default(
            _SOURCE,
            precision="bf16",
            distributed_optimizer=True,
            zero_stage=1,
            micro_batch=2,
            global_batch=128,
            optimizer="adam",
            recompute="none",
        )
    elif framework == "torchtitan":
        collected.default(
            "Primus, primus/configs/modules/torchtitan/pre_trainer.yaml",
            recompute="none",
            micro_batch=8,
            seq_len=2048,
        )
    elif framework == "megatron_bridge":
        flavor = ("modules", trainer, "overrides", "flavor")
        recipe = file.get(*flavor)
        if recipe:
            collected.report_missing(
                ".".join(flavor),
                f"the recipe {recipe!r}, which sets all other values, is in Megatron-Bridge",
                file.place(flavor),
            )
