"""Megatron-Core's text for stages of unequal size, `Et|tt|ttL`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from shardwright_frameworks.exports.values.planned_run import PlannedStage


def pipeline_layout(stages: Sequence[PlannedStage]) -> str:
    """What `--pipeline-model-parallel-layout` takes (megatron/core/transformer/
    pipeline_parallel_layer_layout.py): virtual stages in the order of the model, divided by `|`;
    E the embedding, t a layer, m a layer that predicts a further token, L head and loss. Equal
    letters and equal stages in a row are counted: `Et*3|(t*4|)*6,t*3L`.

    >>> one, two = (PlannedStage(rank=r, recompute=("none",) * (4 + r)) for r in (0, 1))
    >>> pipeline_layout((one, two))
    't*4|t*5'
    """
    texts = [_stage(stage) for stage in stages]
    found = []
    for text, alike in itertools.groupby(texts[:-1]):
        count = len(list(alike))
        found.append(f"({text}|)*{count}" if count > 1 else f"{text}|")
    return "".join([*found, texts[-1]])


def _stage(stage: PlannedStage) -> str:
    layers = _times("t", stage.num_layers) + _times("m", stage.predicting)
    return ("E" if stage.has_embedding else "") + layers + ("L" if stage.has_head else "")


def _times(letter: str, count: int) -> str:
    return f"{letter}*{count}" if count > 1 else letter * count
