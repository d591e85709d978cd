"""A model by its name: import path of its code, its figures, and the size of a sample."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.errors import InputError
from profiles.model.loaders import (
    IMAGE_AND_TEXT,
    OWN_LOSS,
    TEXT_PART,
    ModelSpec,
    need_to_build,
    position_count,
    resolve_model,
)

if TYPE_CHECKING:
    from profiles.model.figures.transformer import Transformer

DEFAULT_SEQUENCE = 4096
_IMAGES = ("vision", "pixels")
_IMAGE_FIRST = (
    "a sample is one image of the image tower's size (448 x 448 if it takes any), then text; both "
    "towers are trained "
    "(#text_config after the file's name: its language model alone)"
)
_KNOWN = {
    IMAGE_AND_TEXT: (_IMAGE_FIRST,),
    "ctc": ("a sample has a label for every fourth of its positions (package.module:factory)",),
    OWN_LOSS: (
        "the architecture names no task: the loss is the model's own where its output has one, "
        "else the mean square of its outputs (package.module:factory sets another)",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample of a model.

    sequence_length  its tokens; 1 if a sample is no sequence of tokens
    counted_in       `tokens` or `samples` (simulator.values.workload.Workload)
    assumptions      defaults, each with the flag that changes it
    """

    sequence_length: int
    counted_in: str = "tokens"
    assumptions: tuple[str, ...] = ()


def import_from_here(model: str) -> None:
    """Add the current folder to the import path if the model is a factory."""
    if ":" in model and "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def sample_of(model: str, seq: int | None) -> Sample:
    """The sample of the model, with or without --seq.

    A factory creates its own inputs and states their number of tokens, or it follows from their
    shape; a --seq that contradicts it is refused (InputError).
    """
    if seq is not None and seq < 1:
        raise InputError(f"--seq must be 1 or more, got {seq}")
    spec = resolve_model(model)
    if spec.factory:
        import_from_here(model)
        return sample_of_factory(spec, seq)
    known = _KNOWN.get(spec.family, ())
    if spec.family in _IMAGES or (spec.family == OWN_LOSS and not _takes_tokens(spec)):
        said = () if seq is None else (f"--seq {seq} is ignored: {spec.source} takes no tokens",)
        known = (*known, *said)
        return Sample(sequence_length=seq or 1, counted_in="samples", assumptions=known)
    if seq is not None:
        return Sample(sequence_length=seq, assumptions=known)
    joined = spec.family == IMAGE_AND_TEXT
    config = spec.config.get("text_config", spec.config) if joined else spec.config
    chosen = min(position_count(config) or DEFAULT_SEQUENCE, DEFAULT_SEQUENCE)
    assumed = (*known, f"sequence length {chosen} (--seq)")
    return Sample(sequence_length=chosen, assumptions=assumed)


def _takes_tokens(spec: ModelSpec) -> bool:
    """Whether a sample of a configuration's model is a sequence of tokens or positions."""
    need_to_build(spec)
    from profiles.model.building.build import build_model

    return build_model(spec, micro_batch=1, sequence_length=1).tokens_per_sample is not None


def sample_of_factory(spec: ModelSpec, seq: int | None) -> Sample:
    """The sample of a factory's model; see `sample_of`."""
    need_to_build(spec)
    from profiles.model.building.build import build_model

    built = build_model(spec, micro_batch=2, sequence_length=1)
    tokens = built.tokens_per_sample
    if tokens is not None:
        if seq not in (None, tokens):
            raise InputError(
                f"--seq {seq}: {spec.source} makes its own inputs, with {tokens} tokens per "
                "sample; leave --seq out, or change the factory"
            )
        return Sample(sequence_length=tokens, assumptions=built.assumptions)
    if seq is not None and seq not in built.input_sizes:
        told = (
            f"--seq {seq} is ignored: {spec.source} makes its own inputs, and no dimension of them "
            f"is {seq}; costs are per sample (tokens_per_sample of the factory)"
        )
        return Sample(
            sequence_length=1, counted_in="samples", assumptions=(*built.assumptions, told)
        )
    if seq is not None:
        said = f"a sample is {seq} tokens, as --seq says"
        return Sample(sequence_length=seq, assumptions=(*built.assumptions, said))
    said = "costs are per sample: the factory does not say how many tokens one is (--seq)"
    return Sample(sequence_length=1, counted_in="samples", assumptions=(*built.assumptions, said))


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A model's sizes, and its sample."""

    figures: Transformer
    sample: Sample


def uncounted_words(model: str, figures: Transformer) -> str:
    """Message: our executor has no layouts of a model with such layers."""
    return (
        f"{model or 'this model'}: layouts for our executor are priced by the layers of Llama, "
        f"BERT and GPT-2, and these layers have {figures.uncounted}"
    )


@functools.cache
def described_of(model: str, seq: int | None, *, runs_here: bool = False) -> Described:
    """The sizes of a shipped name, a config.json or `package.module:factory`.

    They apply to any length: a --seq that differs from a factory's inputs is planned, with a note.

    runs_here  our executor is to run the model, as transformers builds it: without layers that
               predict further tokens
    Raises the errors of `describe_model`; with `runs_here` also InputError if the model's blocks
    are not its layers, or if tensor parallelism would not split all of a layer.
    """
    from planner.layout.plan_of_layout import first_layer
    from profiles.model.figures.described_model import (
        describe_model,
        shares_tokens,
        why_not_split,
    )
    from shardwright.requests.local_paths import trace_cache

    import_from_here(model)
    spec = resolve_model(model)
    if spec.family == IMAGE_AND_TEXT:
        raise InputError(
            f"{model}: layouts describe equal layers, and this model has an image tower. Plan its "
            f"language model, {model}{TEXT_PART}; or leave out --stack, and every tower is planned "
            "block by block"
        )
    factory = bool(spec.factory)
    sample = Sample(sequence_length=seq or 1) if factory else sample_of(model, seq)
    asked = sample.sequence_length if sample.sequence_length > 1 else None
    found = describe_model(model, sequence_length=asked, cache=trace_cache())
    own, positions = found.sequence_length, found.figures.learned_positions
    length, assumed = sample.sequence_length, sample.assumptions
    if own and seq is None:
        length, assumed = own, (f"sequence length {own} (the inputs of {model})",)
    elif own and own != length:
        assumed = (f"figures traced at {own} tokens per sample, planned at --seq {length}",)
    if own and 0 < positions < length:
        raise InputError(
            f"--seq {length} is above the {positions} learned positions of {model}; use "
            f"{positions} or less"
        )
    figures, notes = found.figures, found.notes
    if runs_here and found.entries:
        first_layer(found.entries, figures.num_layers)
    if runs_here and figures.uncounted:
        raise InputError(uncounted_words(model, figures))
    if runs_here and found.entries and (why := why_not_split(spec, found.entries, length)):
        raise InputError(f"{model}: {why}, and layouts split all of a layer")
    if runs_here and found.entries:
        figures = replace(figures, whole_tokens=not shares_tokens(spec, length))
    if runs_here and figures.predicted_ahead:
        figures = replace(figures, predicted_ahead=0)
        notes = (*notes, "our executor trains no layers that predict further tokens")
    sample = Sample(sequence_length=length, assumptions=(*assumed, *notes))
    return Described(figures=figures, sample=sample)
