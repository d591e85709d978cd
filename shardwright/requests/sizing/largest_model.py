"""`size` for a list of models: the largest one within budget and deadline."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace

from profiles.errors import InputError, UnknownNameError
from profiles.model.loaders import model_names
from profiles.units import format_count
from shardwright.options.read_text import names
from shardwright.options.size_options import SizeOptions
from shardwright.requests.named_model import described_of
from shardwright.requests.sizing.size_flags import size_flags
from shardwright.requests.sizing.sized import Sized, SizeSolver


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model of the list with the answer of `size`."""

    model: str
    parameters: float
    sized: Sized


def is_list(model: str) -> bool:
    """Whether a text names several models.

    >>> is_list("qwen3-*"), is_list("gpt2,llama-3.1-8b"), is_list("gpt2")
    (True, True, False)
    """
    return "," in model or "*" in model


def models_of(text: str) -> tuple[str, ...]:
    """The models of `gpt2,llama-3.1-8b` or `qwen3-*`; raises UnknownNameError for a pattern that
    matches no shipped model."""
    found: list[str] = []
    for part in names(text, "MODEL"):
        matching = fnmatch.filter(model_names(), part) if "*" in part else [part]
        if not matching:
            raise UnknownNameError("model", part, model_names())
        found += matching
    return tuple(dict.fromkeys(found))


def largest_model(
    options: SizeOptions, models: tuple[str, ...], solver: SizeSolver
) -> tuple[Candidate, ...]:
    """The models from the largest down to the first that keeps the limits.

    options  of the request, whose model is replaced

    Raises InputError if neither budget nor deadline limits the run, or if no tokens are given: then
    every model keeps the limits, with fewer tokens. Models must be transformers over tokens.
    """
    first = size_flags(replace(options, model=models[0]))
    if first.budget_usd is None and first.deadline_s is None:
        raise InputError("several models: give --budget or --deadline, which decides between them")
    if first.tokens is None and not first.optimal_tokens:
        raise InputError("several models: give --tokens, for example optimal (scaling law)")
    answered: list[Candidate] = []
    ranked = _largest_first(models, options.seq)
    for number, (parameters, model) in enumerate(ranked, start=1):
        # Only the smallest model reports the changes that would make it fit.
        one = replace(solver, relaxed=solver.relaxed and number == len(ranked))
        sized = one.solve(size_flags(replace(options, model=model)))
        answered.append(Candidate(model=model, parameters=parameters, sized=sized))
        if sized.answer.best is not None:
            break
    return tuple(answered)


def largest_words(candidates: tuple[Candidate, ...], count: int) -> str:
    """Text on the last candidate, which is the answer.

    count  number of models of the list
    """
    chosen = candidates[-1]
    words = f"{chosen.model}, {format_count(chosen.parameters)} parameters"
    if chosen.sized.answer.best is None:
        return f"{words}: even the smallest of {count} models does not keep the limits"
    if len(candidates) == 1:
        return f"{words}: the largest of {count} models keeps the limits"
    larger = candidates[-2]
    next_up = f"{larger.model} ({format_count(larger.parameters)}) does not"
    return f"{words}: the largest of {count} models within the limits; {next_up}"


def _largest_first(models: tuple[str, ...], seq: int | None) -> list[tuple[float, str]]:
    sizes = [(described_of(model, seq).figures.parameters, model) for model in models]
    return sorted(sizes, key=lambda each: (-each[0], each[1]))
