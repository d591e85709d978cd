"""Megatron's layout of pipeline stages, `Et*3|(tt|)*29m|L`: read, checked and written.

Virtual stages in the order of the model, divided by `|`: E the embedding, t a layer, m a layer that
predicts a further token, L head and loss. `x*n` and `(...)*n` repeat; commas and spaces have no
meaning. Stages are assigned to ranks in turn. Source: github.com/NVIDIA/Megatron-LM core_v0.13,
megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from profiles.errors import InputError

_STAGE = re.compile(r"E?t*m*L?")
_MOST_LETTERS = 100_000
_EXAMPLE = "write for example Et*3|(tt|)*29m|L"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutStage:
    """One virtual stage: its layers, its layers that predict further tokens, and whether it has the
    embedding and the loss."""

    layers: int
    predicting: int = 0
    has_embedding: bool = False
    has_loss: bool = False

    def __str__(self) -> str:
        layers = _times("t", self.layers) + _times("m", self.predicting)
        return ("E" if self.has_embedding else "") + layers + ("L" if self.has_loss else "")


def pipeline_layout_text(stages: Sequence[LayoutStage]) -> str:
    """The text of a layout, with repeated letters and stages as counts.

    >>> pipeline_layout_text([LayoutStage(layers=4), LayoutStage(layers=5)])
    't*4|t*5'
    """
    texts = [str(stage) for stage in stages]
    found = []
    for text, alike in itertools.groupby(texts[:-1]):
        count = len(list(alike))
        found.append(f"({text}|)*{count}" if count > 1 else f"{text}|")
    return "".join([*found, texts[-1]])


def layout_stages(text: str) -> tuple[str, ...] | None:
    """The letters of each stage, with repetitions expanded; None if the text is no layout.

    >>> layout_stages("Et*3|(t|)*2,mL")
    ('Ettt', 't', 't', 'mL')
    """
    plain = re.sub(r"[\s,\"']", "", text)
    for repeated in (re.compile(r"\(([^()]*)\)\*(\d+)"), re.compile(r"([A-Za-z-])\*(\d+)")):
        while found := repeated.search(plain):
            if int(found[2]) * len(found[1]) > _MOST_LETTERS:
                return None
            plain = plain[: found.start()] + found[1] * int(found[2]) + plain[found.end() :]
    return tuple(plain.split("|")) if re.fullmatch(r"[A-Za-z|-]+", plain) else None


@functools.lru_cache(maxsize=64)
def stages_of_layout(
    text: str, num_layers: int, predicted_ahead: int, where: str
) -> tuple[LayoutStage, ...]:
    """The stages of a layout, checked for `num_layers` layers and `predicted_ahead` more tokens.

    Raises InputError, beginning with `where`, for a text that is no layout, and for a layout that
    breaks a rule, with the nearest valid layout.
    """
    written = layout_stages(text)
    if written is None:
        raise InputError(f"{where} {text!r} is not a layout of stages; {_EXAMPLE}")
    if unknown := sorted(set("".join(written)) - set("EtmL")):
        raise InputError(
            f"{where} {text!r}: {unknown[0]!r} is not E (embedding), t (layer), m (layer that "
            f"predicts a further token) or L (loss); {_EXAMPLE}"
        )
    stages = tuple(
        LayoutStage(
            layers=stage.count("t"),
            predicting=stage.count("m"),
            has_embedding="E" in stage,
            has_loss="L" in stage,
        )
        for stage in written
    )
    if rule := _broken_rule(written, stages, num_layers, predicted_ahead):
        nearest = pipeline_layout_text(_nearest(stages, num_layers, predicted_ahead))
        raise InputError(f"{where} {text!r}: {rule}. Use {nearest!r}.")
    return stages


def layout_ranks(text: str) -> tuple[int, ...]:
    """Possible numbers of pipeline ranks of a layout, ascending; () for no text. They divide its
    stages, and a stage that predicts further tokens is the last one of its rank.

    >>> layout_ranks("Et|t|t|tmL"), layout_ranks("Et|tm|t|L")
    ((2, 4), (4,))
    """
    stages = layout_stages(text)
    if stages is None:
        return ()
    ahead = min((n for n, stage in enumerate(stages) if "m" in stage), default=len(stages))
    fewest = max(min(2, len(stages)), len(stages) - ahead)
    return tuple(pp for pp in range(fewest, len(stages) + 1) if len(stages) % pp == 0)


def _broken_rule(
    written: Sequence[str], stages: Sequence[LayoutStage], num_layers: int, predicted_ahead: int
) -> str:
    """The first rule that a layout breaks; "" for none."""
    letters = "".join(written)
    layers, predicting = letters.count("t"), letters.count("m")
    if letters.count("E") != 1 or not stages[0].has_embedding:
        return "the first stage, and no other, has the embedding (E)"
    if letters.count("L") != 1 or not stages[-1].has_loss:
        return "the last stage, and no other, has the loss (L)"
    if layers != num_layers:
        return f"it has {layers} layers (t), the model {num_layers}"
    if predicting != predicted_ahead:
        return (
            f"it has {predicting} layers that predict a further token (m), the model "
            f"{predicted_ahead}"
        )
    if predicting > max(stage.predicting for stage in stages) or re.search("m.*t", letters):
        return "all layers that predict a further token (m) are in one stage, after all layers (t)"
    if not all(map(_STAGE.fullmatch, written)):
        return "the order in a stage is E, t, m, L"
    return ""


def _nearest(
    stages: Sequence[LayoutStage], num_layers: int, predicted_ahead: int
) -> list[LayoutStage]:
    """The same number of stages, changed to keep every rule: layers are taken from the fullest
    stages, or added to the emptiest stages with layers; further predictions move to the last stage
    with one, or to the last stage."""
    layers = [stage.layers for stage in stages]
    while sum(layers) > num_layers:
        layers[layers.index(max(layers))] -= 1
    while sum(layers) < num_layers:
        held = [count for count in layers if count] or layers
        layers[len(layers) - 1 - layers[::-1].index(min(held))] += 1
    last = len(stages) - 1
    filled = max(number for number, count in enumerate(layers) if count)
    ahead = max((n for n, each in enumerate(stages) if each.predicting), default=last)
    ahead = max(ahead, filled)
    return [
        replace(
            stage,
            layers=count,
            predicting=predicted_ahead if number == ahead else 0,
            has_embedding=number == 0,
            has_loss=number == last,
        )
        for number, (stage, count) in enumerate(zip(stages, layers, strict=True))
    ]


def _times(letter: str, count: int) -> str:
    return f"{letter}*{count}" if count > 1 else letter * count
