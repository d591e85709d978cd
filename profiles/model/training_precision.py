"""The precision in which a shipped model was trained."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.document import read_mapping
from profiles.model.loaders import MODEL_FOLDER, model_named


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPrecision:
    """name  fp8, bf16 and so on;  source  the publication and its section"""

    name: str
    source: str


def training_precision(model: str) -> TrainingPrecision | None:
    """The precision of a shipped model's published training, if its file names one; None for other
    models, files and modules.

    >>> training_precision("deepseek-v3").name
    'fp8'
    >>> training_precision("gpt2") is None
    True
    """
    shipped = model_named(model)
    if shipped is None:
        return None
    stated = read_mapping(MODEL_FOLDER / f"{shipped}.json").get("training_precision")
    if stated is None:
        return None
    return TrainingPrecision(name=str(stated["name"]), source=str(stated["source"]))
