"""A traced model at any micro-batch size and tp degree, cached on disk.

Every number of a model graph is affine in the batch: parameters are constant, activations grow. So
two traces give all sizes exactly. If a model is not affine (its structure changes with the batch,
uneven routing, products of every sample with every other), the requested size is traced directly.
At batch 1 torch replaces some copies by views: it is traced directly for a CPU, whose measured
blocks are identified by their exact trace, and extrapolated for accelerators.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
TRACE_SCHEMA = "shardwright/trace@1"
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
        trace_at: Callable[[int, int], ModelGraph],
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
                made = interpolate(pair[0], pair[1], micro_batch)
            self._made[key] = made if made is not None else self._directly(micro_batch, tp)
        return self._made[key]

    def need_shared_tokens(self) -> None:
        """Raises InputError, with the block and the reason, if tensor-parallel ranks should share
        the tokens and cannot."""
        if why := self._why_not_sequence_parallel:
            raise InputError(
                f"--sequence-parallel cannot be used for {self.name}: {why}. Leave it out, or name "
                "another framework (--stack)"
            )

    def _directly(self, micro_batch: int, tp: int) -> ModelGraph:
        try:
            return self._trace_at(micro_batch, tp)
        except TraceError as error:
            sizes = " and ".join(map(str, _BATCHES))
            raise TraceError(
                f"{self.source}: a micro-batch of {micro_batch} does not run, {sizes} do; leave it "
                f"out (--micro-batch {','.join(map(str, _BATCHES))}): {error}"
            ) from error


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
            first = trace_at(_BATCHES[0], 1)
            second = trace_at(_BATCHES[1], 1, first)
            if interpolate(first, second, max(_BATCHES) + 1) is None:
                second = trace_at(_BATCHES[1], 1)  # which skips as the first did
            graphs = (first, second)
            alone = facts().why_not(1)
            graphs = tuple(replace(graph, why_not_tensor_parallel=alone) for graph in graphs)
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


def kept(
    make: Callable[[], T],
    cls: type[T],
    schema: str,
    spec: ModelSpec,
    settings: tuple[Any, ...],
    cache: Path | None,
) -> T:
    """The value of `make`, from the folder `cache` if it is there.

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


def interpolate(low: ModelGraph, high: ModelGraph, micro_batch: int) -> ModelGraph | None:
    """The graph at `micro_batch` from two others, or None if the graphs are not affine in the
    batch: every integer is a + b * batch, all other values are equal."""
    if len(low.kinds) != len(high.kinds) or low.chain != high.chain:
        return None
    place = (low.micro_batch, high.micro_batch - low.micro_batch, micro_batch)
    kinds = _affine(low.kinds, high.kinds, *place)
    branches = _affine(low.branches, high.branches, *place)
    if kinds is None or branches is None:
        return None
    kinds = tuple(with_kind(_with_peaks(block)) for block in kinds)
    return replace(low, micro_batch=micro_batch, kinds=kinds, branches=branches)


def _with_peaks(block: Block) -> Block:
    """With new peaks, which are not affine, from the affine changes."""
    return replace(
        block,
        forward_peak_bytes=running_peak(block.forward_changes),
        backward_peak_bytes=running_peak(block.backward_changes),
    )


_SKIP = frozenset({"kind", "forward_peak_bytes", "backward_peak_bytes"})


def _affine(a: Any, b: Any, base: int, span: int, at: int) -> Any:
    """The value at batch `at`, or None if a and b differ in structure."""
    if a is b or a == b:
        return a
    if type(a) is not type(b):
        return None
    if isinstance(a, int) and not isinstance(a, bool):
        slope, rest = divmod(b - a, span)
        return a + slope * (at - base) if rest == 0 else None
    if isinstance(a, tuple) and len(a) == len(b):
        pairs = zip(a, b, strict=True)
        made = tuple(None if x is None else _affine(x, y, base, span, at) for x, y in pairs)
        lost = any(y is None and x is not None for x, y in zip(a, made, strict=True))
        return None if lost else made
    if not dataclasses.is_dataclass(a):
        return None
    changed: dict[str, Any] = {}
    for name in _field_names(type(a)):  # type: ignore[arg-type] # a class is hashable
        x, y = getattr(a, name), getattr(b, name)
        if name in _SKIP or x is y or x == y:
            continue
        changed[name] = _affine(x, y, base, span, at)
        if changed[name] is None:
            return None
    if isinstance(a, MatmulShape) and len(changed) > 1:
        return None  # every sample with every other: quadratic
    whole: Any = replace(a, **changed)  # type: ignore[type-var] # no class
    return whole


@functools.cache
def _field_names(cls: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls))
