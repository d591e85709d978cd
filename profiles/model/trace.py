"""Tracing: a model's training step as a graph of blocks, from shapes alone.

Weights are fake tensors (shapes without storage), so a 405B model traces on a laptop. The forward
and backward passes really run, op by op, under a recorder. Repeated blocks are found by structure;
the first, the second and the last of each group are traced and must agree, and the others are
skipped. What one block makes and a later one uses is found by storage, whether it goes through the
call that opens the next block or beside it: blocks form a chain, or a graph with branches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from profiles.errors import ShardwrightError, TraceError
from profiles.model.build import BuiltModel, build_model
from profiles.model.graph import (
    Block,
    BlockRef,
    Branch,
    Collective,
    ModelGraph,
    OpKind,
    Parameter,
    Phase,
    SavedTensor,
    TensorSpec,
    running_peak,
    with_kind,
)
from profiles.model.loaders import ModelSpec
from profiles.model.trace_attention import FusedAttention
from profiles.model.trace_cuts import Output, container_members, cut_candidates, repeated
from profiles.model.trace_expected_shapes import expected_shapes
from profiles.model.trace_ops import dtype_name
from profiles.model.trace_recorder import Recorder, changes
from profiles.model.trace_tensor_parallel import Sharding, shard, why_not_tensor_parallel


def trace_graph(
    spec: ModelSpec,
    *,
    micro_batch: int,
    sequence_length: int,
    dtype: str,
    tp: int = 1,
    target: str = "gpu",
    trusted: bool = False,
) -> ModelGraph:
    """The model graph of `spec` as one of `tp` ranks runs it.

    target  `gpu`: attention is one fused kernel, as on every accelerator; `cpu`: what torch runs
            on a CPU
    trusted  repeated blocks were found equal before: trace the first of each group alone
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
        fakes = _make_fake(built, skipped)
        while True:
            run = _Run(built, candidates, members, skipped, sharding, trusted)
            try:
                run.trace(fakes, target)
                blocks = run.blocks()
            except _NotRepeated:
                blocks = None
            if blocks is not None:
                break
            skipped = {}
            fakes = _make_fake(built, skipped)
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
        branches=run.branches(),
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


@dataclass(slots=True)
class _Fakes:
    """Fake inputs, and where each parameter lives."""

    args: tuple[Any, ...]
    targets: Any
    keys: dict[int, int]
    names: list[str]
    tied: dict[str, str]
    tensors: list[Tensor]


@contextmanager
def no_causal_mask() -> Iterator[None]:
    """Inside it, transformers gives attention no mask where a real run would give none.

    Under fake tensors it takes itself to be compiled and materialises a causal S x S mask, which
    turns fused causal attention into masked attention (twice the work, no flash kernel).
    """
    masks = sys.modules.get("transformers.masking_utils")
    replaced: dict[str, Any] = {}
    # `fast_all` asks a padding mask for values: the inputs here are never padded.
    for name, answer in (
        ("is_tracing", False),
        ("find_packed_sequence_indices", None),
        ("fast_all", True),
    ):
        if masks is not None and hasattr(masks, name):
            replaced[name] = getattr(masks, name)
            setattr(masks, name, lambda *args, _answer=answer, **kwargs: _answer)
    try:
        yield
    finally:
        for name, original in replaced.items():
            setattr(masks, name, original)


# What torch raises where a module asks for values, which a trace of shapes does not have.
_ASKS_FOR_VALUES = {
    "DataDependentOutputException": "a value decides what runs (`.item()`, `if tensor`)",
    "DynamicOutputShapeException": "a shape depends on values (`nonzero`, a mask as an index)",
}


def first_line(error: Exception) -> str:
    """What torch says of a failed trace, in one line, and what it means where that is known."""
    kind = type(error).__name__
    line = next(iter(str(error).splitlines()), "")
    said = f"{kind}: {line}"
    if kind in _ASKS_FOR_VALUES:
        said += (
            f": {_ASKS_FOR_VALUES[kind]}, and only shapes are traced; pass package.module:factory "
            "of a model that decides by shapes or settings"
        )
    return said


def _make_fake(built: BuiltModel, skipped: Mapping[str, str]) -> _Fakes:
    """Replace parameters and buffers by fake tensors in place; shared ones stay shared.

    Those of skipped modules stay on meta: nothing runs on them, and only their shapes are asked.
    """
    memo: dict[int, Tensor] = {}

    def convert(x: Tensor) -> Tensor:
        if isinstance(x, FakeTensor):
            return x
        if id(x) not in memo:
            empty = torch.empty(x.shape, dtype=x.dtype, device="cpu")
            if isinstance(x, nn.Parameter):
                memo[id(x)] = nn.Parameter(empty, requires_grad=x.requires_grad)
            else:
                memo[id(x)] = empty
        return memo[id(x)]

    for _, module in _without_skipped(built.module, skipped):
        for table in (module._parameters, module._buffers):
            for name, x in table.items():
                if x is not None:
                    table[name] = convert(x)  # type: ignore[assignment] # of its own kind
    for module in built.module.modules():
        for name, p in module._parameters.items():
            if p is not None and id(p) in memo:  # a skipped module's, shared with a traced one
                module._parameters[name] = convert(p)  # type: ignore[assignment] # a Parameter
    names: list[str] = []
    tensors: list[Tensor] = []
    keys: dict[int, int] = {}
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, p in built.module.named_parameters(remove_duplicate=False):
        key = p.untyped_storage()._cdata
        if key in keys:
            tied[name] = first[key]
            continue
        keys[key] = len(names)
        first[key] = name
        names.append(name)
        tensors.append(p)
    make = tree_map_only(Tensor, lambda x: torch.empty(x.shape, dtype=x.dtype), built.args)
    targets = tree_map_only(Tensor, lambda x: torch.empty(x.shape, dtype=x.dtype), built.targets)
    return _Fakes(make, targets, keys, names, tied, tensors)


class _NotRepeated(Exception):
    """A skipped module is called in another way than the one that stands for it."""


def _without_skipped(
    module: nn.Module, skipped: Mapping[str, str], *, themselves: bool = False
) -> Iterator[tuple[str, nn.Module]]:
    """named_modules() without what is inside skipped modules; with or without `themselves`.

    A module that is also reached from outside them is kept.
    """
    seen: set[int] = set()
    pending = [("", module)]
    while pending:
        path, current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if path in skipped:
            if themselves:
                yield path, current
            continue
        yield path, current
        children = [(f"{path}.{name}" if path else name, m) for name, m in current._modules.items()]
        pending += [(name, m) for name, m in reversed(children) if m is not None]


@dataclass(slots=True)
class _Cut:
    """What was seen at the call that opens a block."""

    entry: str
    specs: tuple[TensorSpec, ...] = ()
    numbers: tuple[int, ...] = ()
    labels: list[str] = field(default_factory=list)
    stub_of: str = ""


class _Run:
    """One traced forward and backward pass."""

    def __init__(
        self,
        built: BuiltModel,
        candidates: tuple[str, ...],
        members: frozenset[str],
        skipped: dict[str, str],
        sharding: Sharding,
        trusted: bool,
    ) -> None:
        self.built = built
        self.candidates = frozenset(candidates)
        self.members = members
        self.skipped = skipped
        self.sharding = sharding
        self.trusted = trusted
        self.cuts: list[_Cut] = [_Cut(entry="")]
        self.collectives: list[list[Collective]] = [[]]
        self.attention_inputs: dict[str, list[int]] = {}
        self.split_inputs: set[tuple[int, str, int]] = set()
        self.saved: list[list[SavedTensor]] = []
        self.alive: set[int] = set()
        self.expected: set[int] = set()  # blocks with shapes that depend on values
        self.owners: dict[int, int] = {}
        # Storage number of a tensor between blocks -> those of its gradient.
        self.gradients: dict[int, set[int]] = {}

    @property
    def entries(self) -> list[str]:
        return [cut.entry for cut in self.cuts]

    # --- running ------------------------------------------------------------------------------

    def trace(self, fakes: _Fakes, target: str) -> None:
        self.fakes = fakes
        self.recorder = Recorder(fakes.keys, self._watch_gradient)
        with ExitStack() as stack:
            self._hook(stack)
            if target == "gpu":
                stack.enter_context(FusedAttention())
            stack.enter_context(no_causal_mask())
            stack.enter_context(expected_shapes(lambda: self.expected.add(len(self.cuts) - 1)))
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
            stack.enter_context(self.recorder)
            try:
                output = self.built.call(self.built.module, *fakes.args)
                loss = self.built.loss_fn(output, fakes.targets)
                if loss.dim() != 0:
                    raise TraceError(f"the loss must be a scalar, it has shape {tuple(loss.shape)}")
                if not loss.requires_grad:
                    raise TraceError(
                        "nothing is trained: no parameter that needs a gradient reaches the loss"
                    )
                del output
                self._note_saved()
                self.recorder.begin_backward()
                loss.backward()
            except (ShardwrightError, _NotRepeated):
                raise
            except Exception as error:
                place = self.recorder._path[-1] or "the model itself"
                raise TraceError(
                    f"the {self.recorder.phase.value} pass fails in module {place} under fake "
                    f"tensors: {first_line(error)}"
                ) from error

    def _hook(self, stack: ExitStack) -> None:
        recipes: dict[str, Output] = {}
        seen: set[str] = set()
        standing = set(self.skipped.values())
        for path, module in _without_skipped(self.built.module, self.skipped, themselves=True):
            if path == "":
                continue
            if path in self.candidates:
                self._keep(
                    stack,
                    module.register_forward_pre_hook(
                        self._at_candidate(path, type(module).__name__, seen), with_kwargs=True
                    ),
                )
                if path in standing:
                    self._keep(
                        stack,
                        module.register_forward_hook(_remember(path, recipes), with_kwargs=True),
                    )
                if path in self.skipped:
                    self._stub(stack, module, self.skipped[path], recipes, path)
            self._keep(stack, module.register_forward_pre_hook(self._enter(path), with_kwargs=True))
            self._keep(stack, module.register_forward_hook(self._leave(path), always_call=True))
        for p in self.fakes.tensors:
            if p.requires_grad and isinstance(p, FakeTensor):
                self._keep(stack, p.register_post_accumulate_grad_hook(_drop_gradient))

    @staticmethod
    def _keep(stack: ExitStack, handle: Any) -> None:
        stack.callback(handle.remove)

    def _stub(
        self, stack: ExitStack, module: nn.Module, model: str, recipes: dict[str, Output], path: str
    ) -> None:
        def forward(*args: Any, **kwargs: Any) -> Any:
            recipe = recipes.get(model)
            fits = recipe is not None and recipe.fits(args, kwargs)
            if recipe is None or not fits or self.cuts[-1].entry != path:
                raise _NotRepeated
            self.cuts[-1].stub_of = model
            with self.recorder.pause():
                made = recipe.make(args, kwargs)
            for x in tree_leaves(made):
                if isinstance(x, Tensor):
                    self.recorder._note_output(x, self.recorder._segment, path)
            return made

        module.forward = forward
        stack.callback(lambda: module.__dict__.pop("forward", None))

    def _at_candidate(self, path: str, label: str, seen: set[str]) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            first = path not in seen
            seen.add(path)
            if first and self._cut_here(path, args, kwargs):
                self._cut(path, args, kwargs)
            if first:
                self.cuts[-1].labels.append(label)

        return hook

    def _cut_here(self, path: str, args: Any, kwargs: Any) -> bool:
        begun = len(self.cuts) > 1 or bool(self.recorder.segments[0].ops)
        if not begun:
            return False
        if not self.recorder.has_gradients and not _takes_any(args, kwargs):
            return False  # frozen so far: a pipeline sends what gradients come back for
        if path in self.members or not self.members:
            return True
        # Beside the lists (stem, final norm, head): a new block only where a list has just ended,
        # or where another tower begins that takes nothing from the blocks before it.
        if self.cuts[-1].entry in self.members:
            return True
        second = any(cut.entry in self.members for cut in self.cuts)
        return second and bool(self.cuts[-1].numbers) and not _takes_any(args, kwargs)

    def _cut(self, path: str, args: Any, kwargs: Any) -> None:
        cut = _Cut(entry=path)
        numbers, specs = [], []
        for x in tree_leaves((args, kwargs)):
            if not isinstance(x, Tensor) or not x.requires_grad:
                continue
            record = self.recorder.storage_of(x)
            if record is None or record.number in numbers:
                continue
            numbers.append(record.number)
            specs.append(TensorSpec(shape=tuple(x.shape), dtype=dtype_name(x.dtype)))
            self._watch_gradient(record.number, x)
        cut.specs, cut.numbers = tuple(specs), tuple(numbers)
        self.cuts.append(cut)
        self.collectives.append([])
        self.recorder.cut()

    def _watch_gradient(self, number: int, x: Tensor) -> None:
        """Note the storage of the gradient of a tensor between blocks when it comes."""
        if number in self.gradients:
            return
        found = self.gradients[number] = set()

        def hook(gradient: Tensor) -> None:
            record = self.recorder.storage_of(gradient)
            if record is not None:
                found.add(record.number)

        x.register_hook(hook)

    def _enter(self, path: str) -> Any:
        rule = self.sharding.rule_of(path)

        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            self.recorder.enter_module(path)
            if "Attention" in type(module).__name__:
                self.attention_inputs.setdefault(path, self._numbers(tree_leaves((args, kwargs))))
            if rule == "column" and args:
                self._note_column(path, args[0])

        return hook

    def _leave(self, path: str) -> Any:
        rule = self.sharding.rule_of(path)

        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self.recorder.leave_module()
            if rule == "row" and isinstance(output, Tensor):
                size = output.numel() * output.element_size()
                self._add_collective(Phase.FORWARD, path, size)

        return hook

    def _numbers(self, leaves: list[Any]) -> list[int]:
        records = [
            self.recorder.storage_of(x) for x in leaves if isinstance(x, Tensor) and x.requires_grad
        ]
        return [record.number for record in records if record is not None]

    def _note_column(self, path: str, x: Tensor) -> None:
        """One gradient all-reduce per distinct input of a group of column-split layers."""
        parent = path.rpartition(".")[0]
        record = self.recorder.storage_of(x)
        given = (len(self.cuts), parent, record.number if record is not None else -1)
        if given not in self.split_inputs:
            self.split_inputs.add(given)
            size = x.numel() * x.element_size()
            self._add_collective(Phase.BACKWARD, parent, size)

    def _add_collective(self, phase: Phase, path: str, size: int) -> None:
        self.collectives[-1].append(
            Collective(
                operation="all_reduce", phase=phase, module=self._relative(path), size_bytes=size
            )
        )

    def _relative(self, path: str) -> str:
        return _relative(path, self.cuts[-1].entry)

    def _note_saved(self) -> None:
        boundary = set(self._consumers())
        self.saved = [[] for _ in self.cuts]
        for record in self.recorder.storages:
            if record.alive:
                self.alive.add(record.number)
                if record.number not in boundary and record.memory_bytes:
                    path = _relative(record.module, self.cuts[record.segment].entry)
                    self.saved[record.segment].append(
                        SavedTensor(module=path, memory_bytes=record.memory_bytes)
                    )

    # --- reading what was recorded ------------------------------------------------------------

    def _consumers(self) -> dict[int, tuple[int, ...]]:
        """Storage number of every tensor between blocks -> the blocks that use it, rising."""
        found: dict[int, set[int]] = {}
        for index, cut in enumerate(self.cuts):
            for number in cut.numbers:
                found.setdefault(number, set()).add(index)
        for _, consumer, number in self.recorder.crossings:
            found.setdefault(number, set()).add(consumer)
        return {number: tuple(sorted(found[number])) for number in sorted(found)}

    def _spec(self, number: int) -> TensorSpec:
        for cut in self.cuts:
            if number in cut.numbers:
                return cut.specs[cut.numbers.index(number)]
        return self.recorder.crossing[number]

    def branches(self) -> tuple[Branch, ...]:
        """Every tensor between blocks, or none where each goes to the next block alone."""
        found = tuple(
            Branch(
                producer=self.recorder.storages[number].segment,
                consumers=consumers,
                spec=self._spec(number),
            )
            for number, consumers in self._consumers().items()
        )
        plain = all(branch.consumers == (branch.producer + 1,) for branch in found)
        return () if plain else found

    def blocks(self) -> list[Block] | None:
        """The block of every segment, or None where a skipped block may not equal its model."""
        made: dict[str, Block] = {}
        blocks: list[Block | None] = []
        owners = self.owners = self._owners()
        for index, cut in enumerate(self.cuts):
            block = None if cut.stub_of else self._block(index, owners)
            if block is not None:
                made[cut.entry] = block
            blocks.append(block)
        for index, cut in enumerate(self.cuts):
            if cut.stub_of:
                model = made.get(cut.stub_of)
                if model is None or not self._alike(index, cut.stub_of, model):
                    return None
                blocks[index] = model
        for model_path in set() if self.trusted else set(self.skipped.values()):
            last = max(
                (i for i, cut in enumerate(self.cuts) if cut.stub_of == model_path), default=None
            )
            if last is not None and not self._last_agrees(last, made[model_path]):
                return None
        return [block for block in blocks if block is not None]

    def _alike(self, index: int, model_path: str, model: Block) -> bool:
        """Glue around a skipped block must be that of its model."""
        glue = [op.name for op in self.recorder.segments[index].ops if op.phase is Phase.FORWARD]
        position = self.entries.index(model_path)
        inside = f"{model_path}."
        own = [
            op.name
            for op in self.recorder.segments[position].ops
            if op.phase is Phase.FORWARD
            and op.module != model_path
            and not op.module.startswith(inside)
        ]
        return glue == own and self.cuts[index].specs == self.cuts[position].specs

    def _last_agrees(self, last_stub: int, model: Block) -> bool:
        if last_stub + 1 >= len(self.cuts):
            return False
        return self._block(last_stub + 1, self.owners).kind == model.kind

    def _owners(self) -> dict[int, int]:
        """Parameter index -> the first segment that uses it (0 where none does)."""
        owners: dict[int, int] = {}
        for index, segment in enumerate(self.recorder.segments):
            for parameter in segment.parameters:
                owners.setdefault(parameter, index)
        entries = {cut.entry: i for i, cut in reversed(list(enumerate(self.cuts))) if cut.entry}
        for parameter, name in enumerate(self.fakes.names):
            if parameter not in owners:
                parts = name.split(".")
                inside = (entries.get(".".join(parts[:n])) for n in range(1, len(parts)))
                owners[parameter] = min((i for i in inside if i is not None), default=0)
        return owners

    def _block(self, index: int, owners: dict[int, int]) -> Block:
        cut = self.cuts[index]
        segment = self.recorder.segments[index]
        consumers = self._consumers()
        crossing = set(consumers)
        boundary = crossing | {n for found in self.gradients.values() for n in found}
        following = self.cuts[index + 1].numbers if index + 1 < len(self.cuts) else ()
        made = [n for n in crossing if self.recorder.storages[n].segment == index]
        made.sort(key=lambda n: (following.index(n) if n in following else len(following), n))
        beside = [n for n, users in consumers.items() if index in users and n not in cut.numbers]
        ops = [op_relative(op, cut.entry) for op in segment.ops]
        attention, attention_bytes = self._attention(index, boundary)
        forward = changes(segment.forward_events, boundary)
        backward = changes(self._arriving(index, made) + segment.backward_events, crossing)
        used = set(segment.parameters) | {p for p, owner in owners.items() if owner == index}
        return with_kind(
            Block(
                kind="",
                label="+".join(dict.fromkeys(cut.labels)) or type(self.built.module).__name__,
                inputs=(*cut.specs, *(self._spec(n) for n in beside)),
                outputs=tuple(self._spec(n) for n in made),
                forward_ops=tuple(op for op in ops if op.phase is Phase.FORWARD),
                backward_ops=tuple(op for op in ops if op.phase is Phase.BACKWARD),
                parameters=tuple(
                    self._parameter(p, cut.entry, owners[p] != index) for p in sorted(used)
                ),
                saved=tuple(self.saved[index]),
                attention_module=attention,
                attention_input_bytes=attention_bytes,
                forward_peak_bytes=running_peak(forward),
                backward_peak_bytes=running_peak(backward),
                forward_changes=forward,
                backward_changes=backward,
                collectives=tuple(self.collectives[index]),
                expected_shapes=index in self.expected or any("grouped" in op.name for op in ops),
                weight_input_bytes=sum(
                    self.recorder.storages[n].memory_bytes for n in segment.operands
                ),
                weight_output_bytes=segment.product_bytes,
            )
        )

    def _arriving(self, index: int, made: list[int]) -> list[tuple[int, int]]:
        """The gradients that a block's backward begins with: those of its outputs."""
        numbers = {g for n in made for g in self.gradients.get(n, ())}
        records = [self.recorder.storages[n] for n in sorted(numbers)]
        return [(r.number, r.memory_bytes) for r in records if r.segment != index]

    def _parameter(self, index: int, entry: str, elsewhere: bool) -> Parameter:
        name, tensor = self.fakes.names[index], self.fakes.tensors[index]
        full, dim = self.sharding.full_shape(name, tuple(tensor.shape))
        return Parameter(
            name=_relative(name, entry),
            spec=TensorSpec(shape=tuple(tensor.shape), dtype=dtype_name(tensor.dtype)),
            full_shape=full,
            sharded_dim=dim,
            trainable=tensor.requires_grad,
            tied_to=name if elsewhere else "",
        )

    def _attention(self, index: int, boundary: set[int]) -> tuple[str, int]:
        entry = self.cuts[index].entry
        for op in self.recorder.segments[index].ops:
            if op.kind is not OpKind.ATTENTION and op.name != "_softmax":
                continue
            path = op.module
            while path and path not in self.attention_inputs:
                path = path.rpartition(".")[0]
            if path and path != entry:
                numbers = set(self.attention_inputs[path]) - boundary - self.alive
                size = sum(self.recorder.storages[n].memory_bytes for n in numbers)
                return _relative(path, entry), size
        return "", 0


def _takes_any(args: Any, kwargs: Any) -> bool:
    """Whether a call is given any tensor that needs a gradient."""
    return any(isinstance(x, Tensor) and x.requires_grad for x in tree_leaves((args, kwargs)))


def op_relative(op: Any, entry: str) -> Any:
    """The op with its module path relative to the block."""
    return replace(op, module=_relative(op.module, entry))


def _relative(path: str, entry: str) -> str:
    if path == entry:
        return ""
    return path.removeprefix(f"{entry}.") if entry else path


def _remember(path: str, recipes: dict[str, Output]) -> Any:
    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        recipes.setdefault(path, Output(args, kwargs, output))

    return hook


def _drop_gradient(parameter: Tensor) -> None:
    """In steady state a new gradient is added to the kept one and freed at once."""
    parameter.grad = None
