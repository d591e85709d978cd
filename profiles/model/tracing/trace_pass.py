"""One forward and backward pass of a model on fake tensors, with what was seen on its way.

Hooks on modules note where blocks begin, what they are given and which collectives tensor
parallelism adds; the recorder below them notes every op and every storage. Skipped blocks return
what the block that stands for them returned. `trace_blocks.py` reads the blocks from it.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from profiles.errors import ShardwrightError, TraceError
from profiles.model.building.build import BuiltModel, lacks_values
from profiles.model.fake_tensors.trace_expected_shapes import expected_shapes, loss_of
from profiles.model.fake_tensors.trace_fakes import (
    Fakes,
    as_in_real_runs,
    plain_kernels,
    without_skipped,
)
from profiles.model.graph import Collective, Phase, SavedTensor, TensorSpec
from profiles.model.tracing.trace_cuts import Output, other_forward
from profiles.model.tracing.trace_failure import check_loss, told_loss, what_failed
from profiles.model.tracing.trace_fused import FusedAttention, FusedRecurrence
from profiles.model.tracing.trace_ops import dtype_name
from profiles.model.tracing.trace_recorder import Recorder
from profiles.model.tracing.trace_tensor_parallel import Sharding
from profiles.model.tracing.trace_watches import (
    GivenWatch,
    StateWatch,
    state_of_weights,
    watched_functions,
)


class NotRepeated(ShardwrightError):
    """A skipped module is called in another way than the one that stands for it."""


@dataclass(slots=True)
class Cut:
    """What was seen at the call that opens a block."""

    entry: str
    specs: tuple[TensorSpec, ...] = ()
    numbers: tuple[int, ...] = ()
    labels: list[str] = field(default_factory=list)
    stub_of: str = ""


@dataclass(eq=False)
class TracedPass:
    """A pass that `trace` runs once, and what it has then seen.

    cuts         the blocks' beginnings, in the order of their calls
    collectives  of each block, those of tensor parallelism
    saved        of each block, what is kept for its backward and is no tensor between blocks
    alive        storages that are kept at the end of the forward pass
    expected     blocks with shapes that depend on values;  by_value  some before the loss
    choosing     paths of modules in whose forward a value decides what runs
    assuming     of every truth value that was assumed, the module that asked for it, and its block
    functions    autograd functions of the model's own: the module that applies one, and its name
    rerun        paths of modules that are called again in the backward
    called       those of the candidates that are
    transformed  path of one that torch.func transforms (`grad`, `vmap`), which is not cut, or ""
    given        which modules change a list or dictionary that they are given
    gradients    storage of a tensor between blocks -> those of its gradient
    state        what the forward changes and computes with -> first and last of its blocks
    drawn        [True] where something was drawn at random outside torch
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
    choosing: list[str] = field(default_factory=list)
    assuming: list[tuple[str, int]] = field(default_factory=list)
    functions: list[tuple[str, str]] = field(default_factory=list)
    rerun: list[str] = field(default_factory=list)
    transformed: str = ""
    called: set[str] = field(default_factory=set)
    given: GivenWatch = field(default_factory=GivenWatch)
    gradients: dict[int, set[int]] = field(default_factory=dict)
    state: dict[str, tuple[int, int]] = field(default_factory=dict)
    drawn: list[bool] = field(default_factory=list)
    _failing: tuple[BaseException | None, str] = (None, "")  # where it was raised

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
        share: float = 1.0,
        opposite: int = -1,
        draws: str = "",
    ) -> None:
        """Run it, with or without its backward; masks hold for `share` of what is expected, one
        assumed truth value is the `opposite`, and what is drawn outside torch is low or high
        (`draws`). Raises TraceError, and NotRepeated where a skipped block is called otherwise."""
        self.fakes = fakes
        watch = StateWatch(self.built.module)
        self.recorder = Recorder(fakes.keys, self._watch_gradient, watch, target=target)

        def used() -> None:
            self.expected.add(len(self.cuts) - 1)

        def applied(name: str) -> None:
            self.functions.append((self.recorder._path[-1], name))

        with ExitStack() as stack:
            self._hook(stack)
            stack.enter_context(FusedAttention() if target == "gpu" else FusedRecurrence())
            self.drawn = stack.enter_context(as_in_real_runs(self.built.module, draws))
            shapes = self.shapes = stack.enter_context(
                expected_shapes(used, share, self._chosen, opposite, unknown=True)
            )
            stack.enter_context(plain_kernels())
            stack.enter_context(watched_functions(applied))
            stack.enter_context(self.recorder)
            try:
                output = self.built.call(self.built.module, *fakes.args)
                self.by_value = bool(self.expected)
                loss = loss_of(shapes, partial(told_loss, self.built), output, fakes.targets)
                check_loss(loss)
                del output
                changed = [fakes.names[i] for i in sorted(self.recorder.changed)]
                self.state = watch.state() | state_of_weights(changed, len(self.cuts))
                self._note_saved()
                if backward:
                    self.recorder.phase = Phase.BACKWARD
                    loss.backward()
            except ShardwrightError:
                raise
            except Exception as error:
                if self.skipped and lacks_values(error):
                    raise NotRepeated from error  # code reads the weights of a skipped module
                known = self._failing[0] is error
                place = self._failing[1] if known else self.recorder._path[-1]
                place = place or "the model itself"
                raise TraceError(
                    f"the {self.recorder.phase.value} pass fails in module {place} under fake "
                    f"tensors: {what_failed(error)}"
                ) from error

    def _chosen(self, assumed: bool) -> None:
        path = self.recorder._path[-1]
        if assumed:
            self.assuming.append((path, len(self.cuts) - 1))
        else:
            self.choosing.append(path)

    def _hook(self, stack: ExitStack) -> None:
        recipes: dict[str, Output] = {}
        standing = set(self.skipped.values())

        def remember(path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            recipes.setdefault(path, Output(args, kwargs, output))

        def keep(handle: Any) -> None:
            stack.callback(handle.remove)

        for path, module in without_skipped(self.built.module, self.skipped, themselves=True):
            if path == "":
                continue
            if path in self.candidates:
                first = partial(self._at_candidate, path)
                keep(module.register_forward_pre_hook(first, with_kwargs=True))
                if path in standing:
                    hook = partial(remember, path)
                    keep(module.register_forward_hook(hook, with_kwargs=True))
                if path in self.skipped:
                    forward = partial(self._stand_in, path, recipes)
                    stack.enter_context(other_forward(module, forward))
            enter, leave = partial(self._enter, path), partial(self._leave, path)
            keep(module.register_forward_pre_hook(enter, with_kwargs=True))
            keep(module.register_forward_hook(leave, always_call=True))
        for p in self.fakes.tensors:
            if p.requires_grad and isinstance(p, FakeTensor):
                keep(p.register_post_accumulate_grad_hook(_drop_gradient))

    def _stand_in(self, path: str, recipes: dict[str, Output], *args: Any, **kwargs: Any) -> Any:
        """In place of a skipped module's forward: what its model returned, as new tensors."""
        model = self.skipped[path]
        recipe = recipes.get(model)
        if recipe is None or not recipe.fits(args, kwargs) or self.cuts[-1].entry != path:
            raise NotRepeated
        self.cuts[-1].stub_of = model
        with self.recorder.pause():
            made = recipe.make(args, kwargs)
        for x in tree_leaves(made):
            # What is handed on as it was given depends on what it did before.
            if isinstance(x, Tensor) and self.recorder.storage_of(x) is None:
                self.recorder._note_output(x, self.recorder._segment, path)
        return made

    def _at_candidate(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if path in self.called:
            return
        self.called.add(path)
        if self._cut_here(path, args, kwargs):
            self._cut(path, args, kwargs)
        self.cuts[-1].labels.append(type(module).__name__)

    def _cut_here(self, path: str, args: Any, kwargs: Any) -> bool:
        if len(self.cuts) == 1 and not self.recorder.weighted:
            return False  # a stage of it would have no call that depends on weights
        if torch._C._functorch.peek_interpreter_stack() is not None:
            self.transformed = self.transformed or path
            return False
        if path in self.members or not self.members:
            return True
        # Beside the lists (stem, final norm, head): a new block only where a list has just ended,
        # or where another tower begins that takes nothing from the blocks before it.
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

    def _enter(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.recorder.phase is Phase.BACKWARD:
            self.rerun.append(path)
        self.recorder.enter_module(path)
        self.given.enter((*args, *kwargs.values()))
        if "Attention" in type(module).__name__:
            self.attention_inputs.setdefault(path, self._numbers(tree_leaves((args, kwargs))))
        if args and self.sharding.rule_of(path) == "column":
            self._note_column(path, args[0])

    def _leave(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and self._failing[0] is not error:
            self._failing = (error, path)
        if len(self.recorder._path) == 1:
            return  # what runs before a call has failed
        self.recorder.leave_module()
        self.given.leave(path)
        if isinstance(output, Tensor) and self.sharding.rule_of(path) == "row":
            size = output.numel() * output.element_size()
            self._add_collective(Phase.FORWARD, path, size)

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
        """Storage number of every tensor between blocks -> the blocks that use it, rising."""
        found: dict[int, set[int]] = {}
        for index, cut in enumerate(self.cuts):
            for number in cut.numbers:
                found.setdefault(number, set()).add(index)
        for _, consumer, number in self.recorder.crossings:
            found.setdefault(number, set()).add(consumer)
        return {number: tuple(sorted(found[number])) for number in sorted(found)}

    def calls_of(self, paths: set[str]) -> list[tuple[str, str]]:
        """Ops that depend on weights in the own code of these modules: module and op."""
        return [found for found in self.recorder.weighted if found[0] in paths]

    def crossing_specs(self) -> dict[int, TensorSpec]:
        """Storage number of every tensor between blocks -> its shape and type."""
        found = dict(self.recorder.crossing)
        for cut in reversed(self.cuts):  # the first cut's where several have one
            found |= dict(zip(cut.numbers, cut.specs, strict=True))
        return found


def path_in_block(path: str, entry: str) -> str:
    """A module's path relative to the module that opens its block."""
    if path == entry:
        return ""
    return path.removeprefix(f"{entry}.") if entry else path


def _drop_gradient(parameter: Tensor) -> None:
    """In steady state a new gradient is added to the kept one and freed at once."""
    parameter.grad = None
