"""Tracing: a model's training step as a graph of blocks, from shapes alone.

Weights are fake tensors (shapes without storage), so a 405B model traces on a laptop. The forward
and backward passes really run, op by op, under a recorder. Repeated blocks are found by structure;
the first, the second and the last of each group are traced and must agree, and the others are
skipped. What one block makes and a later one uses is found by storage, whether it goes through the
call that opens the next block or beside it: blocks form a chain, or a graph with branches.
"""

from __future__ import annotations

from torch._subclasses.fake_tensor import FakeTensorMode

from profiles.errors import TraceError
from profiles.model.build import BuiltModel, build_model
from profiles.model.graph import BlockRef, ModelGraph
from profiles.model.loaders import ModelSpec
from profiles.model.trace_blocks import TracedBlocks
from profiles.model.trace_cuts import container_members, cut_candidates, repeated
from profiles.model.trace_fakes import make_fake
from profiles.model.trace_pass import NotRepeated, TracedPass
from profiles.model.trace_tensor_parallel import shard, why_not_tensor_parallel


def trace_graph(
    spec: ModelSpec,
    *,
    micro_batch: int,
    sequence_length: int,
    dtype: str,
    tp: int = 1,
    target: str = "gpu",
    trusted: bool = False,
    backward: bool = True,
) -> ModelGraph:
    """The model graph of `spec` as one of `tp` ranks runs it.

    target  `gpu`: attention is one fused kernel, as on every accelerator; `cpu`: what torch runs
            on a CPU
    trusted  repeated blocks were found equal before: trace the first of each group alone
    backward  False for a graph without backward ops, where the forward pass is all that is asked
    Raises TraceError, naming the op and the module, for what cannot be traced or not split by tp.
    """
    built = build_model(spec, micro_batch=micro_batch, sequence_length=sequence_length, dtype=dtype)
    return trace_built(
        built,
        name=spec.name,
        source=spec.source,
        micro_batch=micro_batch,
        sequence_length=sequence_length,
        dtype=dtype,
        tp=tp,
        target=target,
        trusted=trusted,
        backward=backward,
    )


def trace_built(
    built: BuiltModel,
    *,
    name: str,
    source: str,
    micro_batch: int,
    sequence_length: int,
    dtype: str,
    tp: int = 1,
    target: str = "gpu",
    trusted: bool = False,
    backward: bool = True,
) -> ModelGraph:
    """The model graph of a module that is built already (on meta; it is changed by tracing)."""
    why_not_tp = why_not_tensor_parallel(built, tp)
    if tp > 1 and why_not_tp:
        raise TraceError(f"{source}: tp={tp} is not possible: {why_not_tp}")
    sharding = shard(built, tp)
    candidates = cut_candidates(built.module)
    members = container_members(built.module, candidates)
    skipped = repeated(built.module, candidates, trusted=trusted)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = make_fake(built, skipped)
        while True:
            run = TracedPass(built, candidates, members, skipped, sharding)
            try:
                run.trace(fakes, target, backward=backward)
                traced = TracedBlocks(run, trusted=trusted)
                blocks = traced.blocks()
            except NotRepeated:
                blocks = None
            if blocks is not None:
                break
            skipped = {}
            fakes = make_fake(built, skipped)
    kinds: dict[str, int] = {}
    chain = []
    for entry, block in zip(run.entries, blocks, strict=True):
        chain.append(BlockRef(entry=entry, kind=kinds.setdefault(block.kind, len(kinds))))
    distinct = {block.kind: block for block in reversed(blocks)}
    lone = "" if len(chain) > 1 else "it has no sequence of parameter-holding modules"
    return ModelGraph(
        name=name,
        source=source,
        micro_batch=micro_batch,
        sequence_length=sequence_length,
        dtype=dtype,
        tp=tp,
        kinds=tuple(distinct[kind] for kind in kinds),
        chain=tuple(chain),
        why_not_cuttable=lone,
        why_not_tensor_parallel=why_not_tp if tp == 1 else "",
        branches=traced.branches(),
    )


def rules_and_ties(
    spec: ModelSpec, *, sequence_length: int, dtype: str
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, ...], ...]]:
    """Tensor-parallel rules, and the groups of parameter names that share one storage."""
    built = build_model(spec, micro_batch=1, sequence_length=sequence_length, dtype=dtype)
    groups: dict[int, list[str]] = {}
    for name, p in built.module.named_parameters(remove_duplicate=False):
        groups.setdefault(id(p), []).append(name)
    tied = tuple(tuple(names) for names in groups.values() if len(names) > 1)
    return built.tensor_parallel, tied
