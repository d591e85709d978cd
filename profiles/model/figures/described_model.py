"""`describe_model`: the figures of a model by name.

A configuration of a known type is read (figures_from_config.py). Other configurations and
`package.module:factory` are traced (figures_from_trace.py). Figures from traces are cached, except
for a factory's, since its code may change.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from profiles.errors import InputError, TraceError
from profiles.model.building.tensor_parallel_rules import left_whole
from profiles.model.figures.figures_from_config import (
    CONFIG_KINDS,
    KEYS,
    figures_of_config,
    model_type,
)
from profiles.model.figures.figures_from_trace import SOFT_CAPPED, ModelFigures, figures_of_trace
from profiles.model.graph import ModelGraph
from profiles.model.loaders import OWN_LOSS, ModelSpec, need_to_build, position_count, resolve_model
from profiles.model.tracing.traced import kept, unsplit_graph

FIGURES_SCHEMA = "shardwright/figures@2"
# Samples of a trace; torch takes shortcuts for one.
_SAMPLES = 2
# Default tokens per sample of a configuration's trace. The figures do not depend on it, except that
# experts need many rows.
_TOKENS = 1024


def describe_model(
    text: str, *, sequence_length: int | None = None, cache: Path | None = None
) -> ModelFigures:
    """The figures of a shipped name, a config.json or `package.module:factory`.

    sequence_length  tokens per sample, if known
    cache            folder of cached figures; torch is imported only if they are missing
    Raises ModelError and TraceError if the model cannot be read, built or traced, InputError if
    figures cannot describe it.
    """
    spec = resolve_model(text)
    if is_read_from_config(spec):
        figures = figures_of_config(spec.config, spec.source)
        return ModelFigures(figures=figures, notes=_config_notes(spec.config))
    found = traced_figures(spec, sequence_length=sequence_length, cache=cache)
    if spec.factory:
        return found
    # transformers builds no layers that predict further tokens; only the configuration has them.
    _, ahead = _predicted_ahead(spec.config)
    return ModelFigures(
        figures=replace(found.figures, predicted_ahead=ahead),
        notes=tuple(dict.fromkeys((*found.notes, *_config_notes(spec.config)))),
        entries=found.entries,
    )


def is_read_from_config(spec: ModelSpec) -> bool:
    """Whether a model's figures are read from its configuration, without a trace."""
    known = spec.family not in ("factory", OWN_LOSS)
    return known and model_type(spec.config) in CONFIG_KINDS


def traced_figures(
    spec: ModelSpec, *, sequence_length: int | None = None, cache: Path | None = None
) -> ModelFigures:
    """The figures of a model's trace, cached except for factories."""
    length = sequence_length or _TOKENS
    length = min(length, position_count(spec.config) or length)

    def make() -> ModelFigures:
        found = _figures(spec, length)
        if isinstance(found, ModelFigures):
            return found
        raise found[0](found[1])

    return kept(make, ModelFigures, FIGURES_SCHEMA, spec, (length,), cache)


@functools.lru_cache(maxsize=64)
def _figures(spec: ModelSpec, length: int) -> ModelFigures | tuple[type[InputError], str]:
    """The figures of a trace, or its error; cached, because most requests of a command repeat
    it."""
    try:
        found = figures_of_trace(_traced(spec, length))
        whole = bool(spec.factory) and not splits_vocabulary(spec)
        return replace(found, figures=replace(found.figures, whole_vocabulary=whole))
    except (InputError, TraceError) as error:
        kind = TraceError if isinstance(error, TraceError) else InputError
        return kind, str(error)


@functools.lru_cache(maxsize=64)
def why_not_split(spec: ModelSpec, entries: tuple[str, ...], length: int) -> str:
    """Why tensor parallelism does not split the layers of a model that is no configuration in
    `CONFIG_KINDS`, as layouts assume; "" if it does. `entries` of its blocks."""
    from profiles.model.tracing.trace import executor_build, executor_facts

    module = executor_build(spec, sequence_length=length).module
    weights = {name: p.numel() for name, p in module.named_parameters() if p.dim() > 1}
    rules = executor_facts(spec, sequence_length=length).rules
    whole = left_whole(weights, rules, entries)
    return f"tensor parallelism leaves {whole} whole" if whole else ""


def splits_vocabulary(spec: ModelSpec) -> bool:
    """Whether tensor parallelism may split embedding and head of a factory's model."""
    from profiles.model.tracing.trace import executor_build
    from profiles.model.tracing.trace_vocabulary import vocabulary_rules

    return bool(vocabulary_rules(executor_build(spec, sequence_length=1)))


def shares_tokens(spec: ModelSpec, length: int) -> bool:
    """Whether tensor-parallel ranks can share a model's tokens between its layers. All models of
    the configurations in `CONFIG_KINDS` can, if tensor parallelism can split their attention."""
    from profiles.model.tracing.trace import executor_facts

    facts = executor_facts(spec, sequence_length=length, sequence_parallel=True)
    return not facts.tokens.why_not


def _traced(spec: ModelSpec, length: int) -> ModelGraph:
    """The trace of plans, in bf16. Users' modules may contain constants of torch's default type,
    which need fp32 weights; then only the forward pass is traced."""
    need_to_build(spec)
    from profiles.model.tracing.trace import trace_graph

    try:
        return unsplit_graph(spec, _SAMPLES, length, "bfloat16")
    except TraceError:
        return trace_graph(
            spec, micro_batch=_SAMPLES, sequence_length=length, dtype="float32", backward=False
        )


def _config_notes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Omissions of a configuration's figures."""
    notes = []
    if config.get("attn_logit_softcapping"):
        notes.append(SOFT_CAPPED)
    kind = CONFIG_KINDS.get(model_type(config))
    if kind is not None and kind.both_ways:
        notes.append("attention uses keys on both sides and is priced as causal, at half its FLOPs")
    if config.get("index_topk"):
        notes.append(
            f"sparse attention (index_topk {config['index_topk']} keys per query) and its indexer "
            "are not priced: attention has all keys, and the indexer's weights are not counted"
        )
    if config.get("attention_chunk_size"):
        notes.append(
            f"attention in chunks of {config['attention_chunk_size']} tokens is priced as a "
            "sliding window of that length"
        )
    key, ahead = _predicted_ahead(config)
    if ahead:
        notes.append(f"trained to predict {ahead} further token{'s' if ahead > 1 else ''} ({key})")
    return tuple(notes)


def _predicted_ahead(config: Mapping[str, Any]) -> tuple[str, int]:
    """The key of the number of tokens predicted ahead, and the number; ("", 0) without any."""
    keys = KEYS["predicted_ahead"]
    return next(((key, int(config[key])) for key in keys if config.get(key)), ("", 0))
