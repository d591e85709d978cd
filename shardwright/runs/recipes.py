"""`fill_from_recipe`: complete a published run without a layout from a public recipe."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from profiles.document import read_document
from profiles.errors import InputError
from shardwright.runs.run import PublishedRun

RECIPES = Path(__file__).parents[2] / "profiles" / "data" / "published" / "recipes.toml"
RECIPES_SCHEMA = "shardwright/recipes@1"


# Columns from a recipe in addition to sequence length and batch.
_TAKEN = (
    *("tp", "pp", "cp", "ep", "micro_batch", "zero_stage"),
    *("recompute", "precision", "inter_node_link", "schedule"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of a public recipe for a well-known model on some numbers of devices.

    model       name of a known model (shardwright.runs.known_models)
    device      name in the catalogue
    sequences_per_device   global batch / devices; may be below 1
    recompute, precision, inter_node_link, schedule   as in `PublishedRun`
    quantization   precision of the matmuls if lower than that of the tensors (MaxText's term)
    note        parts of the recipe that are not modeled

    Raises InputError for a global batch that is no whole number of sequences.
    """

    model: str
    device: str
    num_devices: tuple[int, ...]
    source: str
    note: str = ""
    seq_len: int
    sequences_per_device: float
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    micro_batch: int | None = None
    zero_stage: int | None = None
    recompute: str = ""
    precision: str = ""
    inter_node_link: str = ""
    schedule: str = ""
    quantization: str = ""

    def __post_init__(self) -> None:
        for count in self.num_devices:
            batch = self.sequences_per_device * count
            if batch < 1 or batch != int(batch):
                raise InputError(f"{self.model} on {count} {self.device}: a batch of {batch:g}")

    def agrees(self, run: PublishedRun) -> bool:
        """Whether the recipe is for the row's number of devices and contradicts none of its
        values."""
        if run.num_devices not in self.num_devices:
            return False
        pairs = (
            (run.seq_len, self.seq_len),
            (run.global_batch, round(self.sequences_per_device * run.num_devices)),
            (run.dp, run.num_devices // (self.tp * self.pp * self.cp)),
            (run.tp, self.tp),
            (run.pp, self.pp),
            (run.cp, self.cp),
        )
        return all(stated in (None, ours) for stated, ours in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipes:
    """The file of recipes."""

    date: str
    recipes: tuple[Recipe, ...]


@functools.cache
def recipes() -> tuple[Recipe, ...]:
    """All recipes, in the file's order."""
    return read_document(RECIPES, Recipes, schema=RECIPES_SCHEMA).recipes


def fill_from_recipe(
    run: PublishedRun, *, model: str, device: str, said: list[str]
) -> PublishedRun:
    """The run, with missing values from a recipe for its model, device and size.

    A recipe is not used if the row has another sequence length, batch or degree, or if the row has
    both layout and batch. Messages about the used values are appended to `said`.
    """
    layout = (run.dp, run.tp, run.pp, run.cp)
    if run.global_batch is not None and layout != (None, None, None, None):
        return run
    for recipe in recipes():
        if (recipe.model, recipe.device) == (model, device) and recipe.agrees(run):
            return _filled(run, recipe, said)
    return run


def _filled(run: PublishedRun, recipe: Recipe, said: list[str]) -> PublishedRun:
    batch = round(recipe.sequences_per_device * (run.num_devices or 0))
    taken: dict[str, Any] = {name: getattr(recipe, name) for name in _TAKEN}
    taken = {"seq_len": recipe.seq_len, "global_batch": batch, **taken}
    silent = {
        name: value
        for name, value in taken.items()
        if value not in (None, "") and getattr(run, name) in (None, "")
    }
    if recipe.quantization and run.precision in ("", "bf16"):
        silent["precision"] = recipe.quantization
    words = ", ".join(f"{name} {value}" for name, value in silent.items())
    said.append(f"{words} (recipe: {recipe.source})")
    if recipe.note:
        said.append(f"not modelled of the recipe: {recipe.note}")
    return replace(run, **silent)
