"""The data flow of a model, call by call, recorded in one run on fake tensors.

A model's forward is a sequence of calls: of its units (modules with weights and without a block
boundary inside) and of torch functions in the code between units. Calls that depend on no weight
(masks, positions) are repeated by every stage and are not recorded. Every other call belongs to the
block in whose part of the forward it runs, and makes values that later calls take. This gives the
calls of each stage, the values that it receives, and those that other stages need.

A plan may run blocks in another order than the model (block_order.py). A block whose outputs are
used late, or never, may then run after its successors in the model. Its code may create views of
other blocks' outputs (`x.view(...)`). The trace follows these by their storage and counts them for
no block; `where_used_first` moves them to the first block that uses them.

In the replay of a stage (executor/stages.py) the calls come in the same order, so a call is
identified by its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from executor.replay.draws import DrawsSeen
from executor.replay.torch_calls import InterceptTorchCalls
from executor.replay.wire import stored_type, wire_form
from profiles.errors import MismatchError
from profiles.model.building.build import BuiltModel
from profiles.model.building.tensor_parallel_rules import HEAD, TABLE, Rule
from profiles.model.fake_tensors.trace_expected_shapes import (
    ExpectedShapes,
    expected_shapes,
    loss_of,
)
from profiles.model.fake_tensors.trace_fakes import as_in_real_runs
from profiles.model.tracing.trace_block_boundaries import narrowed
from profiles.model.tracing.trace_flex import fused_flex_attention
from profiles.model.tracing.trace_split_layers import NoExchange, SplitLayers
from profiles.model.tracing.trace_tensor_parallel import shard

Shapes = tuple[tuple[tuple[int, ...], torch.dtype], ...]
"""Shapes and types of the tensors that cross a cut."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of the result of a call.

    value   number of the value that the leaf now has, or -1 if the call made none
    source  position of the same tensor among the call's input leaves, or -1
    handed  number of a value that a unit returns unchanged, or -1
    plain   the object, if it is not a tensor
    """

    value: int
    source: int
    handed: int
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    plain: Any


@dataclass(frozen=True, slots=True)
class Call:
    """A call that depends on weights: of a unit (`function` is its path) or of a torch function.

    takes   numbers of the values among its inputs
    writes  whether it changes its first input in place
    """

    block: int
    function: Any
    takes: tuple[int, ...]
    spec: Any
    leaves: tuple[Leaf, ...]
    writes: bool = False


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor made by a call: its block, shape, type, and the blocks that take it."""

    block: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    taken_by: frozenset[int]


@dataclass(frozen=True, slots=True)
class DataFlow:
    """All calls in their order, and the values that they made; blocks as the plan numbers them.

    entries  of the blocks
    units    paths of the modules that run as a whole
    reached  blocks that the forward reaches
    draws    whether random numbers are drawn; draws_from_others: also by generators of others
    by_value  whether tensor values decide which code the forward runs (loops over experts)
    reads    unit -> blocks whose code outside of the unit reads its weights (an embedding table as
             head); weight of no unit -> blocks that read it, the first block if none does
    casts    units whose inputs have a wider type than they compute in (fp32 position tables)
    differentiated  units that code between units differentiates in the forward or transforms
                    (torch.func), and units with tensor hooks, which may do so in the backward
    """

    entries: tuple[str, ...]
    units: tuple[str, ...]
    calls: tuple[Call, ...]
    values: tuple[Value, ...]
    reached: frozenset[int]
    draws: bool = False
    draws_from_others: bool = False
    by_value: bool = False
    reads: Mapping[str, frozenset[int]] = field(default_factory=dict)
    casts: frozenset[str] = frozenset()
    differentiated: frozenset[str] = frozenset()

    def crossing(self, cut: int) -> tuple[int, ...]:
        """Numbers of the values made before block `cut` and used by that block or later ones."""
        return tuple(
            number
            for number, value in enumerate(self.values)
            if value.block < cut and any(block >= cut for block in value.taken_by)
        )

    def shapes(self, cut: int) -> Shapes:
        """Shapes and types of the tensors sent over the cut before block `cut`; () for block 0."""
        crossing = [self.values[number] for number in (self.crossing(cut) if cut else ())]
        return tuple(wire_form(value.shape, value.dtype) for value in crossing)


def takes_shape_only(func: Any) -> bool:
    """Whether a torch function reads only shape, type and device of its tensor, so that its result
    depends on no weight and every stage can compute it."""
    return getattr(func, "__name__", "") in _OF_SHAPE


_OF_SHAPE = {f"{kind}_like" for kind in ("zeros", "ones", "empty", "full", "rand", "randn")}
_OF_SHAPE |= {f"new_{kind}" for kind in ("zeros", "ones", "empty", "full", "tensor")}


class _Recording:
    """The calls of one run of the whole model on fake tensors.

    entries  of the blocks, in the plan's order; "" is the block at the beginning of the forward
    units    paths of the modules that run as a whole
    """

    def __init__(self, module: nn.Module, entries: tuple[str, ...], units: tuple[str, ...]) -> None:
        self._modules = dict(module.named_modules())
        self._entries, self._units = entries, units
        # id of a weight -> the units that have it, or its name if none has
        self._owners: dict[int, list[str]] = {}
        for unit in units:
            for p in self._modules[unit].parameters():
                self._owners.setdefault(id(p), []).append(unit)
        for name, p in module.named_parameters():
            self._owners.setdefault(id(p), [name])
        self._reads: dict[str, set[int]] = {}
        self._casts: set[str] = set()
        self._differentiated: set[str] = set()
        self._block = 0
        self._depth = 0  # number of running units
        self._running = ""  # the outermost running unit
        self._given: Any = None  # its input
        self._calls: list[Call] = []
        self._made: list[Tensor] = []
        self._reached: set[int] = set()
        self._numbers: dict[int, tuple[Tensor, int]] = {}

    def of(self, run: Callable[[], Any]) -> DataFlow:
        """The data flow of `run`, which calls the model and its loss."""
        self._enter(self._entries.index(""))
        handles = []
        for block, path in enumerate(self._entries):
            if path:
                entered = partial(self._enter, block)
                handles.append(self._modules[path].register_forward_pre_hook(entered))
        for path in self._units:
            unit, began = self._modules[path], partial(self._began, path)
            handles.append(unit.register_forward_pre_hook(began, with_kwargs=True))
            handles.append(unit.register_forward_hook(partial(self._ended, path)))
        try:
            with InterceptTorchCalls(self._handle):
                run()
        finally:
            for handle in handles:
                handle.remove()
        return self._flow()

    def _enter(self, block: int, *_: Any) -> None:
        """Assign the following calls to this block, if it has not been entered before."""
        if block not in self._reached:
            self._block = block
            self._reached.add(block)

    def _began(self, path: str, unit: nn.Module, args: Any, kwargs: Any) -> Any:
        self._note_reads(tree_leaves((args, kwargs)))
        self._depth += 1
        if self._depth > 1:
            return None
        self._running = path
        if torch._C._functorch.peek_interpreter_stack() is not None:
            self._differentiated.add(path)
        self._given = args, kwargs
        given = narrowed(unit, (args, kwargs))
        if given[0] is args:
            return None
        self._casts.add(path)
        return given

    def _ended(self, path: str, unit: nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._note(path, tree_leaves(self._given), output)

    def _handle(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Record a call of a torch function."""
        if func is torch.autograd.grad and self._depth == 0:
            called = (call.function for call in self._calls)
            self._differentiated.update(name for name in called if isinstance(name, str))
        elif func is Tensor.register_hook and self._depth:
            self._differentiated.add(self._running)
        out = func(*args, **kwargs)
        if not takes_shape_only(func):
            inputs = tree_leaves((args, kwargs))
            depends = any(self._depends(x) for x in inputs)
            self._note_reads(inputs, depends=depends)
            if depends and self._depth == 0:
                writes = getattr(func, "__name__", "") == "__setitem__"
                self._note(func, inputs, inputs[0] if writes else out, writes=writes)
        return out

    def _depends(self, x: Any) -> bool:
        return isinstance(x, Tensor) and (x.requires_grad or id(x) in self._numbers)

    def _note_reads(self, inputs: Sequence[Any], *, depends: bool = True) -> None:
        """Record reads of weights among these inputs, except a unit's reads of its own weights."""
        for x in inputs:
            owners = self._owners.get(id(x), ())
            if owners and not (self._depth and self._running in owners):
                # Values that depend on no trained weight are computed by every stage.
                here = depends or self._depth
                blocks = {self._block} if here else set(range(len(self._entries)))
                self._reads.setdefault(owners[0], set()).update(blocks)

    def _note(
        self, function: Any, inputs: Sequence[Any], out: Any, *, writes: bool = False
    ) -> None:
        """Record a call with these input leaves and the result `out`."""
        leaves, spec = tree_flatten(out)
        if not any(isinstance(x, Tensor) for x in leaves):
            return
        takes = tuple(self._numbers[id(x)][1] for x in inputs if id(x) in self._numbers)
        unit = isinstance(function, str)
        given: dict[int, Leaf] = {}  # a tensor that is returned twice is one value
        found = []
        for x in leaves:
            leaf = given.get(id(x)) if isinstance(x, Tensor) else None
            found.append(leaf or given.setdefault(id(x), self._leaf(x, inputs, passes=unit)))
        self._calls.append(Call(self._block, function, takes, spec, tuple(found), writes))

    def _leaf(self, x: Any, inputs: Sequence[Any], *, passes: bool) -> Leaf:
        if not isinstance(x, Tensor):
            return Leaf(-1, -1, -1, (), None, x)
        source = next((i for i, y in enumerate(inputs) if y is x), -1)
        if source >= 0 and passes:
            # A unit that returns an input unchanged; a function would have changed it.
            handed = self._numbers[id(x)][1] if id(x) in self._numbers else -1
            return Leaf(-1, source, handed, (), None, None)
        number = len(self._made)
        self._made.append(x)
        # Kept alive, because the id of a freed tensor could be reused.
        self._numbers[id(x)] = (x, number)
        return Leaf(number, source, -1, tuple(x.shape), x.dtype, None)

    def _flow(self) -> DataFlow:
        calls, taken = where_used_first(self._calls)
        made = {leaf.value: call.block for call in calls for leaf in call.leaves}
        values = [
            Value(made[n], tuple(x.shape), x.dtype, x.requires_grad, frozenset(taken.get(n, ())))
            for n, x in enumerate(self._made)
        ]
        nowhere = {path: {0} for path, *_ in self._owners.values() if path not in self._units}
        return DataFlow(
            self._entries,
            self._units,
            calls,
            tuple(values),
            frozenset(self._reached),
            reads={path: frozenset(where) for path, where in (nowhere | self._reads).items()},
            casts=frozenset(self._casts),
            differentiated=frozenset(self._differentiated),
        )


def units_of(module: nn.Module, opening: tuple[str, ...]) -> tuple[str, ...]:
    """Paths of the top-most modules that hold parameters and contain no entry of a block."""
    above = {entry[:i] for entry in opening for i, c in enumerate(entry) if c == "."}
    above |= {""} if opening else set()
    units: list[str] = []
    first = {path for path, _ in module.named_modules()}

    def visit(path: str, child: nn.Module) -> None:
        if next(child.parameters(), None) is None:
            return
        # Lists and dictionaries are never called. Parameters that are directly in one, or directly
        # in the model, belong to the stages whose code reads them.
        if isinstance(child, (nn.ParameterList, nn.ParameterDict)):
            return
        listed = isinstance(child, (nn.ModuleList, nn.ModuleDict))
        if listed or (path in above and path not in opening):
            for name, member in child.named_children():
                visit(f"{path}.{name}" if path else name, member)
        elif path in first and path not in units:  # listed by its first name, if it has several
            units.append(path)

    visit("", module)
    return tuple(units) if units != [""] else ("",)


def flow_of(
    built: BuiltModel, entries: tuple[str, ...], rules: Iterable[Rule] = (), tp: int = 1
) -> DataFlow:
    """The data flow of a model whose blocks start at `entries`; changes the built model.

    rules  of tensor and sequence parallelism over `tp` ranks, which shares the tokens of blocks

    Raises MismatchError if the model has no module with an entry's name, or never calls it.
    """
    modules = dict(built.module.named_modules())
    opening = tuple(entry for entry in entries if entry)
    for entry in opening:
        if entry not in modules:
            raise MismatchError(
                f"the plan cuts the model at {entry!r}, but the model has no such module: the plan "
                "is for another model; plan again for this one"
            )
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        own = [rule for rule in rules if rule[1] not in (TABLE, HEAD)]  # these change no shape
        SplitLayers(shard(built.module, own, tp), NoExchange(), rank=0).hook(built.module)
        _fake_state(built.module)
        args, targets = tree_map_only(Tensor, fake.from_tensor, (built.args, built.targets))
        shapes: ExpectedShapes
        used: list[bool] = []  # for each question about a value: whether it was in the loss
        with (
            as_in_real_runs(built.module) as drawn,
            fused_flex_attention(),
            expected_shapes(lambda: used.append(shapes.guesses), unknown=True) as shapes,
            DrawsSeen() as seen,
        ):
            flow = _Recording(built.module, entries, units_of(built.module, opening)).of(
                lambda: loss_of(shapes, built.loss_fn, built.call(built.module, *args), targets)
            )
    flow = replace(
        flow, draws=seen.any or drawn[0], draws_from_others=drawn[0], by_value=not all(used)
    )
    missing = sorted(set(range(len(entries))) - flow.reached)
    if missing:
        raise MismatchError(
            f"the plan cuts the model at {entries[missing[0]]!r}, which its forward never calls"
        )
    return flow


def _fake_state(module: nn.Module) -> None:
    """Replace parameters and buffers by fake CPU tensors (shapes without storage), in place. Scalar
    parameters get the type in which they are stored (working_copies.py)."""
    for child in module.modules():
        for key, p in child._parameters.items():
            if p is not None:
                dtype = p.dtype if p.dim() else stored_type(p)
                empty = torch.empty(p.shape, dtype=dtype, device="cpu")
                child._parameters[key] = nn.Parameter(empty, requires_grad=p.requires_grad)
        for key, b in child._buffers.items():
            if b is not None:
                child._buffers[key] = torch.empty(b.shape, dtype=b.dtype, device="cpu")


def where_used_first(calls: Sequence[Call]) -> tuple[tuple[Call, ...], dict[int, set[int]]]:
    """The calls, and for each value the blocks that take it. Functions are moved to the first block
    that takes their result, except for calls that write in place."""
    taken: dict[int, set[int]] = {}
    found = []
    for call in reversed(calls):
        makes = [leaf.value for leaf in call.leaves if leaf.value >= 0]
        first = min((block for number in makes for block in taken.get(number, ())), default=None)
        moves = not isinstance(call.function, str) and not call.writes
        if first is not None and first < call.block and moves:
            call = replace(call, block=first)
        for number in call.takes:
            taken.setdefault(number, set()).add(call.block)
        found.append(call)
    return tuple(reversed(found)), taken


def written_units(flow: DataFlow) -> frozenset[str]:
    """Paths of the units that made an input of a function that writes in place."""
    makers = {leaf.value: call.function for call in flow.calls for leaf in call.leaves}
    between = [call for call in flow.calls if not isinstance(call.function, str)]
    writing = [call for call in between if any(leaf.source >= 0 for leaf in call.leaves)]
    found = {makers[number] for call in writing for number in call.takes}
    return frozenset(path for path in found if isinstance(path, str))
