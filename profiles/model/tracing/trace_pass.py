"""One forward and backward pass of a model on fake tensors, and everything recorded in it.

Hooks on modules record where blocks begin, their arguments, and the collectives of tensor
parallelism; the recorder below them records all ops and storages. A skipped block returns outputs
like those of the traced block that it repeats. `trace_blocks.py` reads the blocks from the pass.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from profiles.errors import ShardwrightError, TraceError
from profiles.model.activity import doing
from profiles.model.building.build import BuiltModel, needs_values
from profiles.model.building.build_split_loss import with_split_loss
from profiles.model.building.tensor_parallel_rules import HEAD, TABLE
from profiles.model.fake_tensors.trace_expected_shapes import expected_shapes, loss_of
from profiles.model.fake_tensors.trace_fakes import (
    Fakes,
    as_in_real_runs,
    plain_kernels,
    without_skipped,
)
from profiles.model.graph import Branch, Collective, Phase, SavedTensor, TensorSpec
from profiles.model.tracing.trace_block_boundaries import Output, narrowed, other_forward
from profiles.model.tracing.trace_checkpoints import in_checkpoint, modes_in_checkpoints
from profiles.model.tracing.trace_errors import check_loss, failure_text, traced_loss
from profiles.model.tracing.trace_flex import fused_flex_attention
from profiles.model.tracing.trace_fused import (
    CUDNN_TYPES,
    ONEDNN_TYPES,
    FusedAttention,
    FusedNorms,
    FusedRecurrence,
)
from profiles.model.tracing.trace_ops import dtype_name
from profiles.model.tracing.trace_recorder import Recorder
from profiles.model.tracing.trace_scans import fused_scans
from profiles.model.tracing.trace_side_effects import (
    GivenWatch,
    StateWatch,
    modules_above,
    watched_functions,
)
from profiles.model.tracing.trace_split_layers import NoExchange
from profiles.model.tracing.trace_tensor_parallel import Sharding


class NotRepeated(ShardwrightError):
    """A skipped module is called differently from the traced one that it repeats."""


@dataclass(slots=True)
class Cut:
    """The call that opens a block: `specs` and storage `numbers` of its arguments with a gradient.

    stub_of  entry of the traced block that this skipped one repeats, or ""
    """

    entry: str
    specs: tuple[TensorSpec, ...] = ()
    numbers: tuple[int, ...] = ()
    labels: list[str] = field(default_factory=list)
    stub_of: str = ""


@dataclass(eq=False)
class TracedPass:
    """One forward and backward pass, run by `trace`, and its records.

    cuts         the calls that start the blocks, in order
    collectives  per block, those of tensor parallelism
    saved        per block, tensors kept for its backward, except for those between blocks
    alive        storages that exist at the end of the forward pass
    expected     blocks with shapes that depend on values
    by_value     whether there are such shapes before the loss
    assuming     per assumed truth value: the module that reads it, and its block
    functions    Python autograd functions of the model: the calling module, and the function's name
    rerun        paths of modules that the backward calls, or will call, again
    called       candidates that were called
    transformed  path of a candidate inside a torch.func transform (`grad`, `vmap`), or ""
    given        modules that change a list or dictionary among their arguments
    gradients    storage of a tensor between blocks -> storages of its gradient
    state        name of a state that the forward changes and reads -> its first and last block
    units        paths of modules that a stage runs as a whole
    calls        path of a possible unit -> for each call in the forward: the block, and whether an
                 argument has a gradient
    clamped      weights that are clamped by their own layers
    drawn        [True] if a random number was drawn outside torch
    """

    built: BuiltModel
    candidates: frozenset[str]
    members: frozenset[str]
    skipped: dict[str, str]
    sharding: Sharding
    cuts: list[Cut] = field(default_factory=lambda: [Cut(entry="")])
    collectives: list[list[Collective]] = field(default_factory=lambda: [[]])
    attention_inputs: dict[str, list[int]] = field(default_factory=dict)
    split_inputs: set[tuple[int, str, int]] = field(default_factory=set)
    saved: list[list[SavedTensor]] = field(default_factory=list)
    alive: set[int] = field(default_factory=set)
    expected: set[int] = field(default_factory=set)
    by_value: bool = False
    assuming: list[tuple[str, int]] = field(default_factory=list)
    functions: list[tuple[str, str]] = field(default_factory=list)
    rerun: list[str] = field(default_factory=list)
    transformed: str = ""
    called: set[str] = field(default_factory=set)
    given: GivenWatch = field(default_factory=GivenWatch)
    gradients: dict[int, set[int]] = field(default_factory=dict)
    state: dict[str, tuple[int, int]] = field(default_factory=dict)
    units: set[str] = field(default_factory=set)
    calls: dict[str, list[tuple[int, bool]]] = field(default_factory=dict)
    clamped: tuple[str, ...] = ()
    drawn: list[bool] = field(default_factory=list)
    _above: set[str] = field(default_factory=set)  # modules in which a block begins
    _handed_on: tuple[str, Any] = ("", ())  # the last block of a list, and its output
    _failing: tuple[BaseException | None, str] = (None, "")  # an error and its module

    @property
    def entries(self) -> list[str]:
        """The path of the module whose call opens each block; empty for the first."""
        return [cut.entry for cut in self.cuts]

    def trace(
        self,
        fakes: Fakes,
        target: str,
        *,
        backward: bool = True,
        uneven: bool = False,
        opposite: int = -1,
        draws: str = "",
    ) -> None:
        """Run the pass, with or without its backward.

        uneven, opposite  as of ExpectedShapes
        draws     `low` or `high`: extreme random numbers outside torch, and of torch.rand

        Raises TraceError, and NotRepeated if a skipped block is called differently.
        """
        self.fakes, self._above = fakes, modules_above(self.members)
        watch = StateWatch(self.built.module)

        def used() -> None:
            self.expected.add(len(self.cuts) - 1)

        def assumed() -> None:
            self.assuming.append((self.recorder._path[-1], len(self.cuts) - 1))

        def applied(name: str) -> None:
            self.functions.append((self.recorder._path[-1], name))

        with ExitStack() as stack:
            self._hook(stack)
            if target == "gpu":
                stack.enter_context(fused_scans(self.built.module))
                stack.enter_context(fused_flex_attention())
                stack.enter_context(FusedNorms())
                stack.enter_context(FusedAttention())
            types = CUDNN_TYPES if target == "gpu" else ONEDNN_TYPES
            stack.enter_context(FusedRecurrence(types))
            self.drawn = stack.enter_context(as_in_real_runs(self.built.module, draws))
            settings = {"uneven": uneven, "opposite": opposite, "draws": draws, "unknown": True}
            shapes = stack.enter_context(expected_shapes(used, assumed, **settings))
            self.shapes = shapes
            self.recorder = Recorder(
                fakes.keys, self._watch_gradient, watch, shapes.values, target=target
            )
            sizes = (size for x in self.built.args for size in x.shape[1:])
            self.recorder.longest = max(sizes, default=0)
            stack.enter_context(doing(self._progress))
            stack.enter_context(plain_kernels())
            stack.enter_context(modes_in_checkpoints())
            stack.enter_context(watched_functions(applied))
            stack.enter_context(self.recorder)
            try:
                output = self.built.call(self.built.module, *fakes.args)
                self.by_value = bool(self.expected)
                traced = partial(traced_loss, self._with_own_loss())
                loss = loss_of(shapes, traced, output, fakes.targets)
                check_loss(loss)
                del output
                self.state = watch.state(self.entries, self._uses())
                self.clamped = tuple(watch.clamped)
                self._note_saved()
                if backward:
                    self.recorder.phase = Phase.BACKWARD
                    loss.backward()
            except ShardwrightError:
                raise
            except Exception as error:
                usual = opposite < 0 and not uneven and not draws
                if self.skipped and (usual or needs_values(error)):
                    # Code may read weights or new attributes of a skipped module.
                    raise NotRepeated from error
                known = self._failing[0] is error
                place = self._failing[1] if known else self.recorder._path[-1]
                place = place or "the model itself"
                inputs = fakes.args if self.recorder.phase is Phase.FORWARD else ()
                raise TraceError(
                    f"the {self.recorder.phase.value} pass fails in module {place} under fake "
                    f"tensors: {failure_text(error, inputs)}"
                ) from error

    def _uses(self) -> dict[str, list[int]]:
        """Weight -> the blocks that use it."""
        uses: dict[str, list[int]] = defaultdict(list)
        for index, segment in enumerate(self.recorder.segments):
            for parameter in segment.parameters:
                uses[self.fakes.names[parameter]].append(index)
        return uses

    def _with_own_loss(self) -> BuiltModel:
        """The model with a loss of one rank's logits, whose exchanges between ranks are
        recorded."""
        if not self.sharding.splits_logits:
            return self.built

        def reduce(x: Tensor, _: str) -> Tensor:
            self._add_collective(Phase.FORWARD, "", x.numel() * x.element_size())
            return x

        return with_split_loss(self.built, first=0, reduce=reduce)

    def _progress(self) -> str:
        path = self.recorder._path[-1] or "the model"
        return f"{self.recorder.phase.value} pass, {self.recorder.operations:,} ops, now in {path}"

    def _hook(self, stack: ExitStack) -> None:
        recipes: dict[str, tuple[Output, list[int]]] = {}
        standing = set(self.skipped.values())

        def remember(path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            read = self._read_from_others(tree_leaves((args, kwargs)))
            recipes.setdefault(path, (Output(path, args, kwargs, output), read))

        def keep(handle: Any) -> None:
            stack.callback(handle.remove)

        for path, module in without_skipped(self.built.module, self.skipped, themselves=True):
            if path == "":
                continue
            if path in self.candidates:
                first = partial(_plain, self._at_candidate, path)
                keep(module.register_forward_pre_hook(first, with_kwargs=True))
                if path in standing:
                    hook = partial(_plain, remember, path)
                    keep(module.register_forward_hook(hook, with_kwargs=True))
                if path in self.skipped:
                    forward = partial(_plain, self._substitute, path, recipes)
                    stack.enter_context(other_forward(module, forward))
            enter, leave = partial(_plain, self._enter, path), partial(_plain, self._leave, path)
            keep(module.register_forward_pre_hook(enter, with_kwargs=True))
            keep(module.register_forward_hook(leave, always_call=True))
        for p in self.fakes.tensors:
            if p.requires_grad and isinstance(p, FakeTensor):
                keep(p.register_post_accumulate_grad_hook(_drop_gradient))

    def _read_from_others(self, leaves: list[Any]) -> list[int]:
        """Indices of the arguments that the current block has read from an earlier one."""
        here, found = len(self.cuts) - 1, []
        for i, x in enumerate(leaves):
            record = self.recorder.storage_of(x) if isinstance(x, Tensor) else None
            if record and (record.segment, here, record.number) in self.recorder.crossings:
                found.append(i)
        return found

    def _substitute(
        self, path: str, recipes: dict[str, tuple[Output, list[int]]], *args: Any, **kwargs: Any
    ) -> Any:
        """A skipped module's forward: new tensors like the outputs of the module it repeats."""
        model = self.skipped[path]
        recipe, read = recipes.get(model, (None, []))
        if recipe is None or not recipe.fits(path, args, kwargs) or self.cuts[-1].entry != path:
            raise NotRepeated
        self.cuts[-1].stub_of = model
        leaves = tree_leaves((args, kwargs))
        self.recorder.note_inputs([leaves[i] for i in read], len(self.cuts) - 1)
        with self.recorder.pause():
            made = recipe.make(args, kwargs)
        for x in tree_leaves(made):
            # Outputs that are arguments have a record already.
            if isinstance(x, Tensor) and self.recorder.storage_of(x) is None:
                self.recorder._note_output(x, self.recorder._segment, path)
        return made

    def _at_candidate(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.sharding.tokens and path in self.members:
            self._check_handed_on(path, tree_leaves((args, kwargs)))
        if path in self.called:
            return
        self.called.add(path)
        if self._cut_here(path, args, kwargs):
            self._cut(path, args, kwargs)
        self.cuts[-1].labels.append(type(module).__name__)

    def _check_handed_on(self, path: str, given: list[Any]) -> None:
        """Raises TraceError if a block does not receive the tokens of the previous block."""
        before, output = self._handed_on
        made = tree_leaves(output)[:1]
        if path in self.called or (made and all(x is not made[0] for x in given)):
            why = f"{path} runs again after" if path in self.called else f"{path} does not take"
            raise TraceError(f"sequence parallelism: {why} the tokens of {before}")

    def _cut_here(self, path: str, args: Any, kwargs: Any) -> bool:
        if len(self.cuts) == 1 and not self.recorder.weighted:
            return False  # otherwise the block before the cut has no call that depends on weights
        if torch._C._functorch.peek_interpreter_stack() is not None:
            self.transformed = self.transformed or path
            return False
        if path in self.members or not self.members:
            return True
        # Modules outside lists (stem, final norm, head) start a block only after the end of a list,
        # or at the start of another tower, whose arguments come from no block.
        if self.cuts[-1].entry in self.members:
            return True
        second = any(cut.entry in self.members for cut in self.cuts)
        given = (x.requires_grad for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor))
        return second and bool(self.cuts[-1].numbers) and not any(given)

    def _cut(self, path: str, args: Any, kwargs: Any) -> None:
        cut = Cut(entry=path)
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
        self._above |= modules_above([path])
        self.collectives.append([])
        self.recorder.cut()

    def _watch_gradient(self, number: int, x: Tensor) -> None:
        """Record the storage of the gradient of a tensor between blocks once it exists."""
        if number in self.gradients:
            return
        found = self.gradients[number] = set()

        def hook(gradient: Tensor) -> None:
            record = self.recorder.storage_of(gradient)
            if record is not None:
                found.add(record.number)

        x.register_hook(hook)

    def _enter(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.recorder.phase is Phase.BACKWARD or in_checkpoint():
            self.rerun.append(path)
        self.recorder.enter_module(path)
        if self.candidates and self._is_unit(path, module):
            args, kwargs = narrowed(module, (args, kwargs))
            if self.recorder.phase is Phase.FORWARD:
                leaves = tree_leaves((args, kwargs))
                given = any(x.requires_grad for x in leaves if isinstance(x, Tensor))
                self.calls.setdefault(path, []).append((len(self.cuts) - 1, given))
        self.given.enter((*args, *kwargs.values()))
        if "Attention" in type(module).__name__:
            self.attention_inputs.setdefault(path, self._numbers(tree_leaves((args, kwargs))))
        side = self.sharding.rule_of(path)
        if args and (side == HEAD or (side == "column" and not self.sharding.tokens)):
            self._note_column(path, args[0])
        return args, kwargs

    def _leave(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and self._failing[0] is not error:
            self._failing = (error, path)
        if len(self.recorder._path) == 1:
            return  # a hook before the call has failed
        self.recorder.leave_module()
        self.given.leave(path)
        if path in self.members:
            self._handed_on = (path, output)
        if torch._C._functorch.peek_interpreter_stack() is None and self._is_unit(path, module):
            self.units.add(path)
            self.recorder.note_handed_on(tree_leaves(output))
        side = self.sharding.rule_of(path)
        sums = side == TABLE or (side == "row" and not self.sharding.tokens)
        if isinstance(output, Tensor) and sums:
            size = output.numel() * output.element_size()
            self._add_collective(Phase.FORWARD, path, size)

    def _is_unit(self, path: str, module: nn.Module) -> bool:
        """Whether a stage runs the module either as a whole or not at all: the top-most module with
        weights in which no block begins."""
        alone = path.rpartition(".")[0] in self._above and path not in self._above
        return alone and next(module.parameters(), None) is not None

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
        module = path_in_block(path, self.cuts[-1].entry)
        self.collectives[-1].append(
            Collective(operation="all_reduce", phase=phase, module=module, size_bytes=size)
        )

    def _note_saved(self) -> None:
        self._handed_on = ("", ())  # would keep the output of the last block of a list
        boundary = set(self.consumers())
        self.saved = [[] for _ in self.cuts]
        for record in self.recorder.storages:
            if record.alive:
                self.alive.add(record.number)
                if record.number not in boundary and record.memory_bytes:
                    path = path_in_block(record.module, self.cuts[record.segment].entry)
                    self.saved[record.segment].append(
                        SavedTensor(module=path, memory_bytes=record.memory_bytes)
                    )

    def consumers(self) -> dict[int, tuple[int, ...]]:
        """Storage number of every tensor between blocks -> the blocks that use it, ascending."""
        found: dict[int, set[int]] = {}
        for index, cut in enumerate(self.cuts):
            for number in cut.numbers:
                found.setdefault(number, set()).add(index)
        for _, consumer, number in self.recorder.crossings:
            found.setdefault(number, set()).add(consumer)
        return {number: tuple(sorted(found[number])) for number in sorted(found)}

    def branches(self) -> tuple[Branch, ...]:
        """All tensors between blocks."""
        specs, made = self.crossing_specs(), self.recorder.storages
        return tuple(
            Branch(producer=made[number].segment, consumers=consumers, spec=specs[number])
            for number, consumers in self.consumers().items()
        )

    def calls_of(self, paths: set[str]) -> list[tuple[str, str]]:
        """(module, op) of all ops that depend on weights and are called by these modules."""
        return [found for found in self.recorder.weighted if found[0] in paths]

    def crossing_specs(self) -> dict[int, TensorSpec]:
        """Storage number of every tensor between blocks -> its shape and type."""
        found = dict(self.recorder.crossing)
        for cut in reversed(self.cuts):  # the first cut overrides later ones
            found |= dict(zip(cut.numbers, cut.specs, strict=True))
        return found


@dataclass(slots=True)
class ExchangeNotes(NoExchange):
    """Records exchanges of ranks with shares of the tokens as collectives of the blocks; `Exchange`
    of trace_split_layers.py. A gather belongs to the column-split layer that reads it, so that
    recomputing the layer repeats it."""

    traced: TracedPass | None = None

    def gather(self, out: Tensor, part: Tensor) -> None:
        """Record an all-gather."""
        self._note("all_gather", out)

    def scatter(self, out: Tensor, parts: Tensor) -> None:
        """Record a reduce-scatter."""
        self._note("reduce_scatter", parts)

    def _note(self, operation: str, whole: Tensor) -> None:
        assert self.traced is not None  # set before the pass runs
        recorder, rules = self.traced.recorder, self.traced.sharding.rules
        segment, path = recorder.place()
        inside = (p for p, side in rules.items() if side == "column" and f"{p}.".startswith(path))
        entry = self.traced.cuts[segment].entry
        runs_in = next(inside, path) if path != entry else path
        self.traced.collectives[segment].append(
            Collective(
                operation=operation,
                phase=recorder.phase,
                module=path_in_block(runs_in, entry),
                size_bytes=whole.numel() * whole.element_size(),
            )
        )


def path_in_block(path: str, entry: str) -> str:
    """A module's path relative to the module that opens its block."""
    if path == entry:
        return ""
    return path.removeprefix(f"{entry}.") if entry else path


def _plain(hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of a hook, in which reading an attribute of a tensor is no call to intercept."""
    with torch._C.DisableTorchFunction():
        return hook(*args, **kwargs)


def _drop_gradient(parameter: Tensor) -> None:
    """Free a gradient at once: in later steps a new gradient is added to the existing one."""
    parameter.grad = None
