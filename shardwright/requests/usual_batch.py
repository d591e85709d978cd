"""Sequences per step of `plan` and `size`: if the request gives none, and if it gives very many."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.units import format_count
from shardwright.runs.known_models import whole_run

# Tokens of a step by parameters, as published runs use: below 1 B 0.5 Mi (GPT-3, arXiv 2005.14165,
# table 2.1), then 4 Mi (Llama 2, arXiv 2307.09288, table 1), from 65 B 16 Mi (Llama 3 405B, arXiv
# 2407.21783, table 4).
_RULE = (
    (1e9, 2**19, "GPT-3, arXiv 2005.14165"),
    (65e9, 2**22, "Llama 2, arXiv 2307.09288"),
    (float("inf"), 2**24, "Llama 3 405B, arXiv 2407.21783"),
)
# Ten times the largest of them.
_MANY_TOKENS = 10 * 2**24
# MLPerf Training 4.1, llama2_70b_lora.
_ADAPTER_BATCH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualBatch:
    """Sequences per step, and the assumption in words with its source."""

    sequences: int
    words: str


def usual_batch(model: str, parameters: float, seq_len: int, *, adapters: bool) -> UsualBatch:
    """The batch of the model's own published run; without one, of published runs of its size.

    adapters  only adapters are trained (LoRA)
    """
    if adapters:
        return UsualBatch(
            sequences=_ADAPTER_BATCH,
            words=f"{_ADAPTER_BATCH} sequences a step (MLPerf Training 4.1, llama2_70b_lora; "
            "--global-batch)",
        )
    published = whole_run(model)
    tokens, source = next((tokens, source) for below, tokens, source in _RULE if parameters < below)
    if published is not None and published.batch_tokens:
        tokens, source = published.batch_tokens, f"{published.name}, {published.source}"
    sequences = _divisible(tokens / seq_len)
    return UsualBatch(
        sequences=sequences,
        words=f"{sequences:,} sequences a step, {_tokens(tokens)} tokens ({source}; "
        "--global-batch)",
    )


def notes_on_batch(sequences: int, seq_len: int) -> tuple[str, ...]:
    """A note if a step has ten times as many tokens as in any published run, which suggests a batch
    in tokens."""
    tokens = sequences * seq_len
    if tokens < _MANY_TOKENS:
        return ()
    return (f"a step has {format_count(tokens)} tokens: --global-batch counts sequences",)


def _divisible(sequences: float) -> int:
    """The nearest multiple of an eighth of the next power of two, which replicas can share: 511.5
    -> 512, 1,398.1 -> 1,280. A whole number of sequences is kept."""
    if sequences < 1 or sequences == int(sequences):
        return max(1, int(sequences))
    unit = 1 << max(0, int(sequences).bit_length() - 3)
    return unit * round(sequences / unit)


def _tokens(tokens: int) -> str:
    """`4 Mi`, `0.5 Mi`."""
    return f"{tokens / 2**20:g} Mi" if tokens % 2**19 == 0 else format_count(tokens)
