"""Trace a model's training step on shapes as a graph of blocks.

Weights are fake tensors (shapes without storage), so a 405B model traces on a laptop. The forward
and backward passes run op by op under a recorder. Repeated blocks are found by structure: the
first, the second and the last of each group are traced, and the others are skipped. The trace is
valid only if the second agrees with the last (or with the last but one, if the last differs).
Tensors between blocks are found by their storage, whether or not they are arguments of the next
block. Blocks form a chain, or a graph with branches.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import zip_longest

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from profiles.errors import TraceError
from profiles.model.building.build import BuiltModel, build_model, imported
from profiles.model.building.tensor_parallel_rules import Rule
from profiles.model.fake_tensors.trace_fakes import Fakes, make_fake, no_logged_failures
from profiles.model.graph import BlockRef, ModelGraph
from profiles.model.loaders import ModelSpec, uneven_heads
from profiles.model.tracing.trace_block_boundaries import (
    container_members,
    cut_candidates,
    repeated,
    repeated_as,
)
from profiles.model.tracing.trace_blocks import TracedBlocks
from profiles.model.tracing.trace_derive_tensor_parallel import Derived, derive_rules
from profiles.model.tracing.trace_errors import VALUE_DECIDES
from profiles.model.tracing.trace_pass import ExchangeNotes, NotRepeated, TracedPass
from profiles.model.tracing.trace_shared_tokens import SharedTokens, shared_tokens
from profiles.model.tracing.trace_side_effects import modules_above
from profiles.model.tracing.trace_split_layers import SplitLayers
from profiles.model.tracing.trace_tensor_parallel import shard


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Tracing creates many objects and few cycles: collection would take a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_no_garbage_collection()
def trace_graph(
    spec: ModelSpec,
    *,
    micro_batch: int,
    sequence_length: int,
    dtype: str,
    tp: int = 1,
    target: str = "gpu",
    like: ModelGraph | None = None,
    rules: tuple[Rule, ...] = (),
    backward: bool = True,
) -> ModelGraph:
    """The model graph of `spec` as one of `tp` ranks runs it.

    target    `gpu`: attention is one fused kernel, as on every accelerator; `cpu`: as torch runs it
              on a CPU
    like      a graph of the model at another batch size or tp: only the first block of each of its
              kinds is traced, and the same blocks are assumed to depend on values
    rules     of tensor parallelism, valid for tp, and of sequence parallelism if the ranks share
              the tokens. If empty, tensor-parallel rules are derived
    backward  False for a graph without backward ops

    Raises TraceError, with the op and the module, if the model cannot be traced or split by tp.
    """
    built = build_model(spec, micro_batch=micro_batch, sequence_length=sequence_length, dtype=dtype)
    if tp > 1:
        if not rules:
            facts = executor_facts(spec, sequence_length=sequence_length)
            why, rules = facts.why_not(tp), facts.rules
            if why:
                raise TraceError(f"{spec.source}: tp={tp} is not possible: {why}")
        built = replace(built, tensor_parallel=rules)
    sharding = shard(built.module, built.tensor_parallel, tp)
    notes = ExchangeNotes()
    if sharding.tokens:
        SplitLayers(sharding, notes, rank=0).hook(built.module)
    candidates = cut_candidates(built.module)
    members = container_members(built.module, candidates)
    skipped = repeated_as(built.module, like.chain) if like else repeated(built.module, candidates)
    alone = 1  # members at the end of a group that are traced, too
    with no_logged_failures(), FakeTensorMode(allow_non_fake_inputs=True):
        fakes = make_fake(built, skipped)
        whole: dict[str, str] = {}  # candidates that cannot start a block -> the reason
        while True:
            again = partial(TracedPass, built, frozenset(candidates), members, skipped, sharding)
            run = notes.traced = again()
            try:
                run.trace(fakes, target, backward=backward)
                inside = _within_state(run) | _differentiated(run) | _kept(run) | _not_replayed(run)
                assumed = _assumed_in(like, run.entries)
                if not inside and assumed is None:
                    assumed = set()
                    inside = _by_values(run, again, assumed, fakes, target)
                if inside:
                    whole |= inside
                    candidates = tuple(path for path in candidates if path not in inside)
                    skipped = {k: v for k, v in skipped.items() if not {k, v} & set(inside)}
                    fakes = make_fake(built, skipped)
                    continue
                traced = TracedBlocks(
                    run, trusted=like is not None, alone=alone, assumed=assumed or set()
                )
                blocks = traced.blocks()
            except NotRepeated:
                blocks, alone = None, _MOST_ALONE
            if blocks is not None:
                break
            if like is not None:
                like, alone, skipped = None, 1, repeated(built.module, candidates)
            else:
                # Of the blocks that read one tensor, the last creates its gradient, the one before
                # adds to it out of place, the others add in place.
                first, alone = alone == 1, _MOST_ALONE
                skipped = repeated(built.module, candidates, alone=alone) if first else {}
            fakes = make_fake(built, skipped)
    kinds: dict[str, int] = {}
    chain = []
    for entry, block in zip(run.entries, blocks, strict=True):
        chain.append(BlockRef(entry=entry, kind=kinds.setdefault(block.kind, len(kinds))))
    distinct = {block.kind: block for block in reversed(blocks)}
    lone = "" if len(chain) > 1 else next(iter(whole.values()), _why_alone(run))
    return ModelGraph(
        name=spec.name,
        source=spec.source,
        micro_batch=micro_batch,
        sequence_length=sequence_length,
        dtype=dtype,
        tp=tp,
        kinds=tuple(distinct[kind] for kind in kinds),
        chain=tuple(chain),
        why_not_cuttable=lone,
        branches=traced.branches(),
        sample_bytes=_bytes_of_a_sample(built, micro_batch),
        state=tuple(run.state),
        clamped=run.clamped,
    )


def _bytes_of_a_sample(built: BuiltModel, samples: int) -> int:
    """Bytes per sample of all inputs and targets. A tensor that is both counts twice
    (executor/rank.py, `given`); one without a batch dimension, such as class weights, does not
    count."""
    found = (x for x in tree_leaves((built.args, built.targets)) if isinstance(x, Tensor))
    batched = (x for x in found if x.dim() and x.shape[0] % samples == 0)
    return sum(x.numel() * x.element_size() // samples for x in batched)


def _assumed_in(like: ModelGraph | None, entries: list[str]) -> set[int] | None:
    """The blocks in which an assumed truth value decides which code runs, taken from an earlier
    graph of the same blocks; None if there is no such graph."""
    if like is None or [ref.entry for ref in like.chain] != entries:
        return None
    return {i for i, ref in enumerate(like.chain) if like.kinds[ref.kind].assumed_values}


def _why_alone(run: TracedPass) -> str:
    """Why the model has only one block although no cut is forbidden."""
    uncalled = sorted(run.members - run.called)
    if uncalled:
        return f"{uncalled[0]} is never called as a module (call it itself, not its `forward`)"
    if run.transformed:
        return f"{run.transformed} is called inside a transform of torch.func (grad, vmap)"
    return "it has no sequence of parameter-holding modules"


def _within_state(run: TracedPass) -> dict[str, str]:
    """Blocks that cannot start a stage because a changing state spans them: a buffer that the
    forward changes and computes with must stay in one block. Entry -> reason; the next functions
    return the same."""
    return {
        entry: f"{name}, which its forward changes and computes with, is used throughout "
        "(change it outside of the forward)"
        for name, (first, last) in reversed(run.state.items())
        for entry in run.entries[first + 1 : last + 1]
    }


def _differentiated(run: TracedPass) -> dict[str, str]:
    """Entries of blocks through which a forward computes a gradient: a single stage would have only
    a part of that graph."""
    return {
        entry: f"the forward of {path or 'the model'} takes a gradient through its blocks "
        "(torch.autograd.grad), which one rank must hold"
        for path, (first, last) in run.recorder.differentiated.items()
        for entry in run.entries[first + 1 : last + 1]
    }


def _kept(run: TracedPass) -> dict[str, str]:
    """Entries between a block that stores a tensor on a module and the last block that reads it:
    other stages receive only outputs of modules."""
    found: dict[str, str] = {}
    for producer, consumer, number in sorted(run.recorder.crossings):
        record = run.recorder.storages[number]
        inside = (u for u in run.units if f"{record.module}.".startswith(f"{u}."))
        if not record.handed_on and (unit := next(inside, "")):
            why = f"{unit} keeps a tensor that code behind its block reads (return it)"
            found |= dict.fromkeys(run.entries[producer + 1 : consumer + 1], why)
    return found


def _not_replayed(run: TracedPass) -> dict[str, str]:
    """All entries, if a stage cannot run the code between blocks like the whole model. A stage
    identifies calls of that code by their number, and modules of other stages only return
    placeholders."""
    above = modules_above(run.entries)
    for path in run.rerun:
        if path in above or path in run.entries:
            why = f"{path} is called again in the backward (leave out torch.utils.checkpoint:"
            return dict.fromkeys(run.entries[1:], f"{why} a plan says what is recomputed)")
    for path, name in run.functions:
        if path in above:
            why = f"the forward of {path or 'the model'} applies the autograd function {name}"
            return dict.fromkeys(run.entries[1:], f"{why} between its blocks (do it inside one)")
    for path in run.given.changing:
        if path not in above and path.rpartition(".")[0] in above:
            why = f"{path} changes a list or dictionary that it is given, which others may read"
            return dict.fromkeys(run.entries[1:], f"{why} (return what it adds)")
    return {}


_MOST_ALONE = 3
_MOST_TRIED = 32  # truth values, one forward pass each; later ones are assumed to decide


def _by_values(
    run: TracedPass, again: Callable[[], TracedPass], assumed: set[int], fakes: Fakes, target: str
) -> dict[str, str]:
    """All entries, if values decide which code runs between blocks or which blocks run. Otherwise,
    entries crossed by tensors whose shapes depend on values, because a pipeline's messages have
    fixed sizes. Found by forward passes with other values.

    assumed  set to which blocks are added in which an assumed truth value decides which code runs

    Raises TraceError if a truth value is unknown.
    """
    above = modules_above(run.entries)

    def others_run(other: TracedPass) -> bool:
        return other.entries != run.entries or other.calls_of(above) != run.calls_of(above)

    def everywhere(why: str) -> dict[str, str]:
        return dict.fromkeys(run.entries[1:], why)

    for number, (path, place) in enumerate(run.assuming):
        unknown = number in run.shapes.checks
        between = path in above or unknown
        if not between and (place in assumed or number >= _MOST_TRIED):
            assumed.add(place)
            continue
        other = again()
        try:
            other.trace(fakes, target, backward=False, opposite=number)
        except NotRepeated:
            if not between:  # the block's output differs, too
                assumed.add(place)
            continue
        except TraceError:
            continue  # a validity check
        if unknown:
            raise TraceError(
                f"the forward pass fails in module {path or 'the model itself'} under fake "
                f"tensors: {VALUE_DECIDES}"
            )
        if between and others_run(other):
            why = f"a value decides in the forward of {path or 'the model'} which of its blocks run"
            return everywhere(f"{why} (`if tensor`)")
        if not between and other.recorder.weighted != run.recorder.weighted:
            assumed.add(place)
    extremes = ("low", "high") if any(run.drawn) or run.shapes.drawn else ()
    for draws in (*extremes, *(("",) if run.by_value else ())):
        other = again()
        try:
            other.trace(fakes, target, backward=False, uneven=not draws, draws=draws)
        except TraceError:
            # The model's shapes contradict each other with these values: no conclusion.
            if run.shapes.guessed:
                why = "its shapes depend on how many rows a mask selects, which is unknown"
                return everywhere(why)
            continue
        if others_run(other):
            cause = "a number that its code draws (`random`, numpy, torch.rand)" if draws else ""
            return everywhere(f"{cause or 'a choice by value'} decides which of its blocks run")
        found: set[str] = set()
        for branch, varied in zip_longest(run.branches(), other.branches()):
            if branch != varied:
                ends = (branch.producer, branch.consumers[-1]) if branch else (0, len(run.entries))
                found.update(run.entries[ends[0] + 1 : ends[1] + 1])
        if found:
            why = "the shapes of what its blocks hand on depend on values"
            return dict.fromkeys((entry for entry in run.entries if entry in found), why)
    return {}


@dataclass(frozen=True, slots=True)
class ExecutorFacts:
    """Properties of a model that the executor needs in addition to its blocks.

    derived  its tensor-parallel split;  tied  groups of parameter names that share a storage
    """

    spec: ModelSpec
    derived: Derived
    tied: tuple[tuple[str, ...], ...]
    tokens: SharedTokens

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Rules of tensor parallelism, and of sequence parallelism if it was requested."""
        return (*self.derived.rules, *self.tokens.rules)

    def why_not(self, tp: int) -> str:
        """Why the model cannot be split over `tp` ranks (1: over any number), or ""."""
        why = self.tokens.why_not
        return (
            uneven_heads(self.spec, tp)
            or self.derived.why_not(tp)
            or (f"sequence parallelism (--sequence-parallel) is not possible: {why}" if why else "")
        )


def executor_facts(
    spec: ModelSpec, *, sequence_length: int, sequence_parallel: bool = False
) -> ExecutorFacts:
    """The facts of `executor_build`. The last ones are cached, like the last builds."""
    return _facts(*build_key(spec, sequence_length), sequence_parallel)


def executor_build(spec: ModelSpec, *, sequence_length: int) -> BuiltModel:
    """An fp32 build, with enough samples that torch takes no shortcuts, not to be changed. The last
    ones are cached, except for a factory of another function, such as one loaded again."""
    return _build(*build_key(spec, sequence_length))


def build_key(spec: ModelSpec, sequence_length: int) -> tuple[ModelSpec, int, object]:
    """The key of a cached build. A factory makes its own inputs, whatever the length."""
    return (spec, 1, imported(spec.factory)) if spec.factory else (spec, sequence_length, None)


@lru_cache(maxsize=4)
def _build(spec: ModelSpec, sequence_length: int, factory: object) -> BuiltModel:
    return build_model(spec, micro_batch=_SAMPLES, sequence_length=sequence_length)


@lru_cache(maxsize=4)
@_no_garbage_collection()
def _facts(
    spec: ModelSpec, sequence_length: int, factory: object, sequence_parallel: bool
) -> ExecutorFacts:
    built = _build(spec, sequence_length, factory)
    if sequence_parallel:
        whole = _facts(spec, sequence_length, factory, False)
        return replace(whole, tokens=shared_tokens(built, whole.derived))
    return ExecutorFacts(spec, derive_rules(built), tied_parameters(built.module), SharedTokens())


def tied_parameters(module: nn.Module) -> tuple[tuple[str, ...], ...]:
    """The groups of parameter names that share one storage."""
    groups: dict[int, list[str]] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        groups.setdefault(id(p), []).append(name)
    return tuple(tuple(names) for names in groups.values() if len(names) > 1)


_SAMPLES = 3
