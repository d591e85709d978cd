"""A traced model at any micro-batch size and tp degree, cached on disk.

Every number of most graphs is affine in the batch size: parameters are constant, activations grow.
So two traces give all sizes exactly. If every sample meets every other (contrastive losses, experts
with a capacity), numbers are quadratic: two more sizes are traced, and the others are computed if
three of the four graphs predict the fourth. All other graphs (their structure changes with the
batch, uneven routing) are traced at each size. At batch 1 torch replaces some copies by views: for
a CPU, whose measured blocks are identified by their exact trace, this size is traced; for
accelerators it is extrapolated.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from profiles.document import content_hash, encode, read_document, write_text
from profiles.errors import InputError, ShardwrightError, TraceError
from profiles.model.graph import Block, MatmulShape, ModelGraph, running_peak, with_kind
from profiles.model.loaders import ModelSpec, need_to_build, uneven_heads

if TYPE_CHECKING:
    from profiles.model.tracing.trace import ExecutorFacts

T = TypeVar("T")
TRACE_SCHEMA = "shardwright/trace@3"
# Not 1: torch takes shortcuts for dimensions of size 1.
_BATCHES = (2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """An entry of the cache: graphs at the traced batch sizes and the executor's facts, or the
    reason why the model cannot be split by this tp degree (1: by sequence parallelism)."""

    graphs: tuple[ModelGraph, ...]
    tensor_parallel: tuple[tuple[str, str], ...]
    tied_parameters: tuple[tuple[str, ...], ...]
    why_not: str = ""


class TracedModel:
    """The graphs of one model, sequence length, precision and target.

    name             the user's name of the model, by which a plan finds it again
    tensor_parallel  rules of profiles/model/building/tensor_parallel_rules.py, for tp > 1
    tied_parameters  groups of parameter names that share one storage
    content_hash     of the model's spec, which identifies the model in a plan
    refused          requested tp degree -> why it is not possible, or ""
    sequence_parallel  tensor-parallel ranks share the tokens between their layers, if they can
                     (`need_shared_tokens`)
    """

    def __init__(
        self,
        files: Mapping[int, TraceFile],
        trace_at: Callable[[int, int, ModelGraph], ModelGraph],
        target: str,
        spec: ModelSpec,
        refused: Mapping[int, str] = MappingProxyType({}),
        *,
        sequence_parallel: bool = False,
    ) -> None:
        first = files[min(files)]
        self._files = dict(files)
        self._trace_at = trace_at
        self.target = target
        self._made: dict[tuple[int, int], ModelGraph] = {}
        self._traced: dict[int, list[ModelGraph]] = {}  # graphs of batch sizes that are in no file
        self.spec = spec
        self.name = self.source = spec.source
        self.sequence_length = first.graphs[0].sequence_length
        self.dtype = first.graphs[0].dtype
        self.tensor_parallel = first.tensor_parallel
        self.tied_parameters = first.tied_parameters
        self.content_hash = spec.content_hash
        self.sequence_parallel = sequence_parallel
        self._why_not_sequence_parallel = first.why_not
        self.tp_degrees = tuple(sorted(files))
        self.why_not_tensor_parallel = first.graphs[0].why_not_tensor_parallel or (
            next(filter(None, refused.values()), "") if len(files) == 1 else ""
        )

    def at(self, micro_batch: int, tp: int = 1) -> ModelGraph:
        """The graph for this micro-batch size and tp degree; raises InputError for another tp."""
        if tp not in self._files:
            why = f" ({self.why_not_tensor_parallel})" if self.why_not_tensor_parallel else ""
            raise InputError(f"{self.name} was not traced for tp={tp}, only {self.tp_degrees}{why}")
        key = (micro_batch, tp)
        if key not in self._made:
            pair = self._files[tp].graphs
            made = next((graph for graph in pair if graph.micro_batch == micro_batch), None)
            if made is None and not (micro_batch == 1 and self.target == "cpu"):
                made = interpolate(pair, micro_batch) or self._curved(micro_batch, tp)
            self._made[key] = made if made is not None else self._directly(micro_batch, tp)
        return self._made[key]

    def _curved(self, micro_batch: int, tp: int) -> ModelGraph | None:
        """The graph extrapolated from three traced ones, if these also predict a fourth; otherwise
        None. The graph of batch 1 is not used, as it may have other ops."""
        known = [*self._files[tp].graphs, *self._traced.get(tp, ())]
        if len(known) < 4 or micro_batch == 1:
            return None
        right = interpolate(known[:3], known[3].micro_batch) == known[3]
        return interpolate(known[:3], micro_batch) if right else None

    def need_shared_tokens(self) -> None:
        """Raises InputError, with the block and the reason, if sequence parallelism is requested
        and the model does not support it."""
        if why := self._why_not_sequence_parallel:
            raise InputError(
                f"--sequence-parallel cannot be used for {self.name}: {why}. Leave it out, or name "
                "another framework (--stack)"
            )

    def _directly(self, micro_batch: int, tp: int) -> ModelGraph:
        like = self._files[tp].graphs[0]
        try:
            made = self._trace_at(micro_batch, tp, like)
        except TraceError as error:
            sizes = " and ".join(map(str, _BATCHES))
            raise TraceError(
                f"{self.source} runs with micro-batches of {sizes}, but fails with {micro_batch}; "
                f"restrict them (--micro-batch {','.join(map(str, _BATCHES))}): {error}"
            ) from error
        made = replace(made, why_not_tensor_parallel=like.why_not_tensor_parallel)
        if micro_batch > 1:
            self._traced.setdefault(tp, []).append(made)
        return made


def trace_model(
    spec: ModelSpec,
    *,
    sequence_length: int,
    dtype: str,
    tp_degrees: tuple[int, ...] = (1,),
    target: str = "gpu",
    cache: Path | None = None,
    sequence_parallel: bool = False,
) -> TracedModel:
    """The traced model, without tp degrees that it cannot be split by (1 always works).

    cache  folder of earlier traces; torch is imported only if one is missing
    sequence_parallel  as of TracedModel
    """

    @functools.cache
    def facts() -> ExecutorFacts:
        need_to_build(spec)
        from profiles.model.tracing.trace import executor_facts

        return executor_facts(
            spec, sequence_length=sequence_length, sequence_parallel=sequence_parallel
        )

    def trace_at(micro_batch: int, tp: int, like: ModelGraph | None = None) -> ModelGraph:
        need_to_build(spec)
        from profiles.model.tracing.trace import trace_graph

        return trace_graph(
            spec,
            micro_batch=micro_batch,
            sequence_length=sequence_length,
            dtype=dtype,
            tp=tp,
            target=target,
            like=like,
            rules=facts().rules if tp > 1 else (),
        )

    def make(tp: int) -> TraceFile:
        graphs: tuple[ModelGraph, ...] = ()
        why = ""
        if tp == 1:
            alone = facts().why_not(1)
            graphs = tuple(
                replace(
                    unsplit_graph(spec, batch, sequence_length, dtype, target),
                    why_not_tensor_parallel=alone,
                )
                for batch in _BATCHES
            )
            why = facts().tokens.why_not
        elif not (why := facts().why_not(tp)):
            try:
                graphs = tuple(trace_at(batch, tp, files[1].graphs[0]) for batch in _BATCHES)
            except ShardwrightError as error:
                why = f"tp={tp} does not work: {error}"
        return TraceFile(
            graphs=graphs,
            tensor_parallel=facts().rules,
            tied_parameters=facts().tied,
            why_not=why,
        )

    def load_or_make(tp: int) -> TraceFile:
        settings = (sequence_length, dtype, target, tp, sequence_parallel)
        return kept(lambda: make(tp), TraceFile, TRACE_SCHEMA, spec, settings, cache)

    files = {1: load_or_make(1)}
    refused: dict[int, str] = {}
    if not files[1].graphs[0].why_not_tensor_parallel:
        for tp in tp_degrees:
            refused[tp] = uneven_heads(spec, tp)
            if tp != 1 and not refused[tp]:
                made = load_or_make(tp)
                refused[tp] = made.why_not
                if made.graphs:
                    files[tp] = made
    return TracedModel(files, trace_at, target, spec, refused, sequence_parallel=sequence_parallel)


def unsplit_graph(
    spec: ModelSpec, micro_batch: int, sequence_length: int, dtype: str, target: str = "gpu"
) -> ModelGraph:
    """The graph of 2 or 3 samples on one rank, which does not depend on how ranks share a layer:
    figures, and plans with and without sequence parallelism, use one trace."""
    from profiles.model.tracing.trace import build_key

    graph = _unsplit_graph(*build_key(spec, sequence_length), dtype, target, micro_batch)
    return replace(graph, sequence_length=sequence_length)


@functools.lru_cache(maxsize=8)
def _unsplit_graph(
    spec: ModelSpec, length: int, factory: object, dtype: str, target: str, micro_batch: int
) -> ModelGraph:
    from profiles.model.tracing.trace import trace_graph

    trace = functools.partial(trace_graph, spec, sequence_length=length, dtype=dtype, target=target)
    if micro_batch == _BATCHES[0]:
        return trace(micro_batch=micro_batch)
    first = _unsplit_graph(spec, length, factory, dtype, target, _BATCHES[0])
    second = trace(micro_batch=micro_batch, like=first)
    if interpolate((first, second), max(_BATCHES) + 1) is None:
        return trace(micro_batch=micro_batch)  # skips the same blocks as the first
    return second


def kept(
    make: Callable[[], T],
    cls: type[T],
    schema: str,
    spec: ModelSpec,
    settings: tuple[Any, ...],
    cache: Path | None,
) -> T:
    """The result of `make`, read from the folder `cache` if it is cached.

    A file belongs to one configuration, its settings, and one version of this code and of torch.
    Models of a factory are not cached, since their code has no hash.
    """
    if cache is None or spec.factory:
        return make()
    key = content_hash([spec.content_hash, schema, settings, tracer_version()])
    path = cache / f"{spec.name}-{key}.json"
    if path.is_file():
        try:
            return read_document(path, cls, schema=schema)
        except ShardwrightError as error:
            warnings.warn(f"traced again, the cached trace is unusable: {error}", stacklevel=2)
    made = make()
    write_text(path, json.dumps({"schema": schema, **encode(made)}))
    return made


@functools.cache
def tracer_version() -> str:
    """Hash of the tracing code and of the installed torch and transformers."""
    from importlib.metadata import PackageNotFoundError, version

    folder = Path(__file__).parents[1]
    code = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]
    versions = []
    for package in ("torch", "transformers"):
        try:
            versions.append(version(package))
        except PackageNotFoundError:
            versions.append("")
    return content_hash([*code, *versions, os.name])


def interpolate(graphs: Sequence[ModelGraph], micro_batch: int) -> ModelGraph | None:
    """The graph at `micro_batch`, computed from those at two or more other sizes. None if they are
    not polynomials in the batch size, of a degree below their number, or differ in another value.

    Two graphs with products of two batch dimensions give None: those are quadratic.
    """
    low = graphs[0]
    if any(len(one.kinds) != len(low.kinds) or one.chain != low.chain for one in graphs):
        return None
    weights = _weights([one.micro_batch for one in graphs], micro_batch)
    kinds = _between(tuple(one.kinds for one in graphs), weights)
    branches = _between(tuple(one.branches for one in graphs), weights)
    if kinds is None or branches is None:
        return None
    kinds = tuple(with_kind(_with_peaks(block)) for block in kinds)
    return replace(low, micro_batch=micro_batch, kinds=kinds, branches=branches)


def _with_peaks(block: Block) -> Block:
    """The block with peaks computed from the changes: only changes are polynomials in the batch."""
    return replace(
        block,
        forward_peak_bytes=running_peak(block.forward_changes),
        backward_peak_bytes=running_peak(block.backward_changes),
    )


_SKIP = frozenset({"kind", "forward_peak_bytes", "backward_peak_bytes"})


def _weights(places: Sequence[int], at: int) -> tuple[tuple[int, ...], int]:
    """Lagrange's weights of values at these places for the value at another, and their common
    denominator."""
    found = [
        math.prod(
            (Fraction(at - other, place - other) for other in places if other != place),
            start=Fraction(1),
        )
        for place in places
    ]
    scale = math.lcm(*(weight.denominator for weight in found))
    return tuple(int(weight * scale) for weight in found), scale


def _between(values: tuple[Any, ...], weights: tuple[tuple[int, ...], int]) -> Any:
    """The weighted sum of the values, or None if they differ in structure."""
    first, *others = values
    if all(one is first or one == first for one in others):
        return first
    if any(type(one) is not type(first) for one in others):
        return None
    if isinstance(first, int) and not isinstance(first, bool):
        whole, rest = divmod(sum(map(operator.mul, values, weights[0])), weights[1])
        return whole if rest == 0 else None
    if isinstance(first, tuple) and all(len(one) == len(first) for one in others):
        each = list(zip(*values, strict=True))
        made = tuple(None if one[0] is None else _between(one, weights) for one in each)
        lost = any(new is None and one[0] is not None for one, new in zip(each, made, strict=True))
        return None if lost else made
    if not dataclasses.is_dataclass(first):
        return None
    changed: dict[str, Any] = {}
    for name in _field_names(type(first)):  # type: ignore[arg-type] # a class is hashable
        found = tuple(getattr(one, name) for one in values)
        if name in _SKIP or all(one is found[0] or one == found[0] for one in found):
            continue
        changed[name] = _between(found, weights)
        if changed[name] is None:
            return None
    if isinstance(first, MatmulShape) and len(changed) >= len(values):
        return None  # every sample with every other: quadratic
    copy: Any = replace(first, **changed)  # type: ignore[type-var] # no class
    return copy


@functools.cache
def _field_names(cls: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls))
