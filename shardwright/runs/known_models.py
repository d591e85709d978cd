"""`known_model`: the public figures of a well-known model, by its name in a source."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from profiles.document import read_document
from profiles.errors import InputError
from profiles.model.figures.transformer import Transformer
from profiles.model.loaders import model_named
from shardwright.runs.run import PublishedRun

KNOWN_MODELS = Path(__file__).parents[2] / "profiles" / "data" / "published" / "known_models.toml"
KNOWN_MODELS_SCHEMA = "shardwright/known-models@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model with public figures, or one that is not supported.

    patterns      regular expressions for the beginning of a normalized name
    source        paper or config.json with the figures
    note          parts of the model that the figures leave out
    seq_len       tokens per sequence of its pretraining, 0 if unknown
    global_batch  sequences per step in its paper or recipe, 0 if unknown
    tokens        of its pretraining, 0 if unknown
    unsupported   why the model has no figures (`figures` is None)
    visited       active share of an unsupported model's parameters, for the dense model that
                  approximates it; 0 if there is none

    Raises InputError unless exactly one of `figures` and `unsupported` is given, and for a pattern
    that is no regular expression.
    """

    name: str
    patterns: tuple[str, ...]
    source: str
    note: str = ""
    seq_len: int = 0
    global_batch: int = 0
    tokens: float = 0.0
    figures: Transformer | None = None
    unsupported: str = ""
    visited: float = 0.0

    def __post_init__(self) -> None:
        if (self.figures is None) != bool(self.unsupported):
            raise InputError(
                f"model {self.name!r} needs either figures or the reason why it is unsupported"
            )
        if not self.patterns or not self.source:
            raise InputError(f"model {self.name!r} needs a pattern and a source")
        for pattern in self.patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InputError(
                    f"model {self.name!r}: {pattern!r} is no regular expression: {error}"
                ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModels:
    """The file of known models; the first matching pattern decides."""

    date: str
    models: tuple[KnownModel, ...]


@functools.cache
def known_models() -> tuple[KnownModel, ...]:
    """All known models, in the order of the file."""
    return read_document(KNOWN_MODELS, KnownModels, schema=KNOWN_MODELS_SCHEMA).models


# Words behind a model's name that make it the name of another one, with other figures.
_ANOTHER = re.compile(
    r"-(distill\w*|(qwen|llama)[\d.]*|flash|lite|mini|nano|tiny|multimodal|vision|vl|omni|audio)"
    r"(?![a-z0-9])"
)


def names_another(behind: str) -> bool:
    """Whether the words behind a model's name make it another model: `-distill-llama-8b` of
    DeepSeek-R1, `-mini-instruct` of Phi-4.

    behind  in lower case, with hyphens between the words
    """
    return _ANOTHER.search(behind.partition("(")[0]) is not None


@functools.cache
def known_model(name: str) -> KnownModel | None:
    """The known model with a published name, or None.

    Text after the name is ignored (`DeepSeekV3 (w/o MTP)`, `llama3-70b truncated to 12 layers`),
    unless it begins with a digit or letter or names another model: `GPT-3 175Bx` is no GPT-3 175B,
    DeepSeek-R1-Distill-Llama-8B no DeepSeek-R1.

    >>> known_model("LLAMA3.1_405B").figures.num_layers
    126
    """
    asked = re.sub(r"[\s_-]+", "-", name.strip().lower())
    for model in known_models():
        for pattern in model.patterns:
            found = re.match(rf"(?:{pattern})(?![a-z0-9])", asked)
            if found is not None and not names_another(asked[found.end() :]):
                return model
    return None


RECIPES = Path(__file__).parents[2] / "profiles" / "data" / "published" / "recipes.toml"
RECIPES_SCHEMA = "shardwright/recipes@1"


# Columns from a recipe in addition to sequence length and batch.
_TAKEN = (
    *("tp", "pp", "cp", "ep", "micro_batch", "zero_stage"),
    *("recompute", "precision", "inter_node_link", "schedule"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of a public recipe for a well-known model on given numbers of devices.

    model       name of a known model (shardwright.runs.known_models)
    device      name in the catalog
    sequences_per_device   global batch / devices; may be below 1
    recompute, precision, inter_node_link, schedule   as in `PublishedRun`
    quantization   precision of the matmuls if lower than that of the tensors (MaxText's term)
    note        parts of the recipe that are not modeled

    Raises InputError for a global batch that is not a whole number of sequences.
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
                raise InputError(
                    f"{self.model} on {count} {self.device}: the batch {batch:g} is not a whole "
                    "number of 1 or more"
                )

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
    run: PublishedRun, *, model: str, device: str, assumptions: list[str]
) -> PublishedRun:
    """The run, with missing values from a recipe for its model, device and size.

    A recipe is not used if the row has another sequence length, batch or degree, or if the row has
    both layout and batch. Messages about the used values are appended to `assumptions`.
    """
    layout = (run.dp, run.tp, run.pp, run.cp)
    if run.global_batch is not None and layout != (None, None, None, None):
        return run
    for recipe in recipes():
        if (recipe.model, recipe.device) == (model, device) and recipe.agrees(run):
            return _filled(run, recipe, assumptions)
    return run


def _filled(run: PublishedRun, recipe: Recipe, assumptions: list[str]) -> PublishedRun:
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
    assumptions.append(f"{words} (recipe: {recipe.source})")
    if recipe.note:
        assumptions.append(f"not modelled of the recipe: {recipe.note}")
    return replace(run, **silent)


WHOLE_RUNS = Path(__file__).parents[2] / "profiles" / "data" / "published" / "whole_runs.toml"
WHOLE_RUNS_SCHEMA = "shardwright/whole-runs@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """A published run.

    models        shipped names of models with its layers and vocabulary
    name          in the source
    devices       number of devices, 0 if not published
    tokens, batch_tokens   of the whole run, and of one step (0 if not published)
    device_hours  of the whole run, including downtime
    """

    models: tuple[str, ...]
    name: str
    device: str
    devices: int = 0
    tokens: float
    batch_tokens: int = 0
    device_hours: float
    source: str

    @property
    def hours_per_trillion(self) -> float:
        """Device-hours for 10^12 tokens."""
        return self.device_hours / self.tokens * 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRuns:
    """The file of whole runs, at most one of each model."""

    date: str
    runs: tuple[WholeRun, ...]


@functools.cache
def whole_runs() -> tuple[WholeRun, ...]:
    """All published runs, in the order of the file."""
    return read_document(WHOLE_RUNS, WholeRuns, schema=WHOLE_RUNS_SCHEMA).runs


def whole_run(model: str) -> WholeRun | None:
    """The published run of a model, by the user's name for it; None if there is none.

    >>> whole_run("deepseek-ai/DeepSeek-V3").hours_per_trillion
    180000.0
    """
    name = model_named(model)
    return next((run for run in whole_runs() if name in run.models), None)
