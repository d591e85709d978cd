"""`known_model`: the public figures of a well-known model, by its name in a source."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document
from profiles.errors import InputError
from profiles.model.figures.transformer import Transformer

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


@functools.cache
def known_model(name: str) -> KnownModel | None:
    """The known model with a published name, or None.

    Text after the name is ignored (`DeepSeekV3 (w/o MTP)`, `llama3-70b truncated to 12 layers`),
    unless it begins with a digit or letter: `GPT-3 175Bx` is no GPT-3 175B.

    >>> known_model("LLAMA3.1_405B").figures.num_layers
    126
    """
    asked = re.sub(r"[\s_-]+", "-", name.strip().lower())
    for model in known_models():
        if any(re.match(rf"(?:{pattern})(?![a-z0-9])", asked) for pattern in model.patterns):
            return model
    return None
