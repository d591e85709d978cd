"""`known_model`: the public figures of a well-known model, by the name that a source gives it."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document
from profiles.errors import InputError
from profiles.model.figures.transformer import Transformer

KNOWN_MODELS = Path(__file__).parents[1] / "data" / "published" / "known_models.toml"
KNOWN_MODELS_SCHEMA = "shardwright/known-models@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model whose figures are public, or one that is known not to be describable.

    patterns      regular expressions that the beginning of a normalised name must match
    source        paper or config.json that prints the figures
    note          what of the model the figures leave out, in words
    seq_len       tokens per sequence of its pretraining, 0 where none is usual
    global_batch  sequences per step that its own paper or recipe trains with, else 0
    tokens        that its source says it was pretrained on, else 0
    unsupported   why its figures are not modelled; `figures` is None then and only then
    visited       of an unsupported model, share of the parameters that a token visits, by which a
                  dense one stands in; 0: none does

    Raises InputError where neither or both of `figures` and `unsupported` are given, and for a
    pattern that is no regular expression.
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
    """The file of known models; the order decides between patterns that both match."""

    date: str
    models: tuple[KnownModel, ...]


@functools.cache
def known_models() -> tuple[KnownModel, ...]:
    """All known models, in the order in which their patterns are tried."""
    return read_document(KNOWN_MODELS, KnownModels, schema=KNOWN_MODELS_SCHEMA).models


@functools.cache
def known_model(name: str) -> KnownModel | None:
    """The known model that a published name means, or None.

    What follows the name is ignored (`DeepSeekV3 (w/o MTP)`, `llama3-70b truncated to 12 layers`),
    but a digit or letter may not: `GPT-3 175Bx` is no GPT-3 175B.

    >>> known_model("LLAMA3.1_405B").figures.num_layers
    126
    """
    asked = re.sub(r"[\s_-]+", "-", name.strip().lower())
    for model in known_models():
        if any(re.match(rf"(?:{pattern})(?![a-z0-9])", asked) for pattern in model.patterns):
            return model
    return None
