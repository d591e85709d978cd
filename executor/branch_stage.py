"""A stage that is any set of a model's blocks: half of one tower and half of another, or the way
down of a UNet whose features skip over the stages between.

The model's own forward is replayed, as in executor/stages.py. Here every call that depends on
weights is known by its number (executor/replay/data_flow.py): the stage's own calls run on what
stands for their inputs, all others give placeholders back. What a later stage takes goes through
every stage between: a stage that only hands a tensor on sends the one that it received.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import (
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_unflatten,
)

from executor.replay.data_flow import Call, DataFlow, data_flow, takes_shape_only
from executor.replay.draws import DrawsSeen
from executor.replay.wire import answering, sent, taken, wire_form
from executor.split_backward import SplitBackward
from executor.stage_layout import Boundary, Layout, fake_state, units_of
from executor.stages import Absent, StageModule, StopReplay
from profiles.errors import MismatchError, RunError
from profiles.model.building.build import BuiltModel
from profiles.model.fake_tensors.trace_expected_shapes import expected_shapes, loss_of
from profiles.model.fake_tensors.trace_fakes import no_causal_mask


def boundary_of(flow: DataFlow, cut: int) -> Boundary:
    """What crosses the cut before block `cut`; positions are numbers of values."""
    numbers = flow.over(cut) if cut else ()
    shapes = tuple(wire_form(flow.values[n].shape, flow.values[n].dtype) for n in numbers)
    return Boundary(numbers, shapes)


def flow_of(built: BuiltModel, entries: tuple[str, ...]) -> DataFlow:
    """The data flow of a model whose blocks open at `entries`; the built model is used up by it.

    Raises MismatchError where the model has no module of an entry's name, or never calls it.
    """
    modules = dict(built.module.named_modules())
    opening = tuple(entry for entry in entries if entry)
    for entry in opening:
        if entry not in modules:
            raise MismatchError(
                f"the plan cuts the model at {entry!r}, but the model has no such module: the plan "
                "is for another model; plan again for this one"
            )
    units = units_of(built.module, ("", *opening))
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        fake_state(built.module, fake)
        args, targets = tree_map_only(Tensor, fake.from_tensor, (built.args, built.targets))
        with no_causal_mask(), expected_shapes() as shapes, DrawsSeen() as seen:
            flow = data_flow(
                built.module,
                lambda: loss_of(shapes, built.loss_fn, built.call(built.module, *args), targets),
                entries=entries,
                units=units,
            )
    flow = replace(flow, draws=seen.any)
    missing = sorted(set(range(len(entries))) - set(flow.reached))
    if missing:
        raise MismatchError(
            f"the model never calls {entries[missing[0]]!r}, where the plan cuts it"
        )
    return flow


class _Replay(TorchFunctionMode):
    """Around a replay: every torch function between units goes to the stage."""

    def __init__(self, stage: BranchStage) -> None:
        super().__init__()
        self._stage = stage

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return self._stage.between(func, args, kwargs or {})


class BranchStage(StageModule):
    """Blocks [first, last) of a plan's order as a module; see StageModule."""

    def __init__(
        self,
        built: BuiltModel,
        flow: DataFlow,
        first: int,
        last: int,
        *,
        split: SplitBackward | None = None,
    ) -> None:
        self._flow = flow
        self._entering = boundary_of(flow, first).positions if first else ()
        self._leaving = boundary_of(flow, last).positions if last < len(flow.entries) else ()
        own = [n for n, call in enumerate(flow.calls) if first <= call.block < last]
        self._final = max(own)
        self._number = self._depth = 0
        self._in_loss = False  # all of it is the last stage's, and values may decide what runs
        self._running_own = False  # the outermost unit that runs
        self._standing: dict[int, tuple[Tensor, int]] = {}
        self._real: dict[int, Tensor] = {}
        super().__init__(built, Layout(flow.entries, flow.units, {}, {}), first, last, split=split)

    # --- set-up -------------------------------------------------------------------------------

    def _install(self) -> None:
        modules = dict(self.model.named_modules())
        called: dict[str, set[int]] = {path: set() for path in self._layout.units}
        for call in self._flow.calls:
            if isinstance(call.function, str):
                called[call.function].add(call.block)
        for path, blocks in called.items():
            if path and not any(self._own(block) for block in blocks):
                self._replace(path, Absent(self, path, modules[path]))
            elif any(not self._own(block) for block in blocks):
                self._guard(path, modules[path])

    def _own(self, block: int) -> bool:
        return self.first <= block < self.last

    def _guard(self, path: str, module: nn.Module) -> None:
        """A unit that other stages call, too: placeholders where the call is theirs."""
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._own(self._flow.calls[self._number].block):
                return original(*args, **kwargs)
            return self.placeholder(path, args, kwargs)

        module.forward = forward

    def unit_paths(self, block: int) -> list[str]:
        """Units of this stage that a block calls, in the order of the layout."""
        called = {call.function for call in self._flow.calls if call.block == block}
        return [path for path in self._flow.units if path in called]

    def watch_entries(self) -> None:
        """Hook the units of the stage. To be called last: FSDP's own hooks hand the module new
        tensor objects, and placeholders are known by identity."""
        modules = dict(self.model.named_modules())
        for path in self._layout.units:
            if path and not isinstance(modules[path], Absent):
                modules[path].register_forward_pre_hook(self._began, prepend=True, with_kwargs=True)
                modules[path].register_forward_hook(self._ended(path), with_kwargs=True)

    def _began(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        self._depth += 1
        if self._depth > 1:
            return None
        self._running_own = self._own(self._flow.calls[self._number].block)
        if not self._running_own:
            return None
        return tuple(tree_map(self._stands_for, args)), tree_map(self._stands_for, kwargs)

    def _ended(self, path: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self._depth -= 1
            # Another stage's call has been counted already, by its placeholder.
            if self._depth == 0 and self._running_own:
                self._expect(path)
                self._made(self._flow.calls[self._number], output)

        return hook

    # --- replay -------------------------------------------------------------------------------

    def forward(self, *received: Tensor, **model_args: Any) -> Any:
        self._number = self._depth = 0
        self._in_loss = False
        received = received if self.first else ()
        self._real = self._taken_in(received)
        self._standing = {id(x): (x, number) for number, x in self._real.items()}
        args, targets = self.given(model_args)
        try:
            with self._replaying(_Replay(self)):
                output = self._built.call(self.model, *args)
                self._in_loss = True
                loss = self._built.loss_fn(output, targets)
        except StopReplay as stop:
            return answering([sent(x) for x in stop.tensors], self._quiet(received))
        finally:
            self._standing, self._real = {}, {}
        return answering([loss.reshape(1)], self._quiet(received))[0]

    def _taken_in(self, received: tuple[Tensor, ...]) -> dict[int, Tensor]:
        """What was received, by the numbers of the values; without gradient what has none."""
        values = self._flow.values
        return {
            n: taken(wire, values[n].dtype, requires_grad=values[n].requires_grad)
            for n, wire in zip(self._entering, received, strict=True)
        }

    def _quiet(self, received: tuple[Tensor, ...]) -> list[Tensor]:
        """What was received and has no gradient in the model."""
        numbered = zip(self._entering, received, strict=True)
        return [wire for n, wire in numbered if not self._flow.values[n].requires_grad]

    def between(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A torch function of the code between units."""
        if self._in_loss:
            return func(*tree_map(self._stands_for, args), **tree_map(self._stands_for, kwargs))
        if self._depth or self._number >= len(self._flow.calls) or takes_shape_only(func):
            return func(*args, **kwargs)
        call = self._flow.calls[self._number]
        inputs = tree_leaves((args, kwargs))
        known = [self._standing[id(x)][1] for x in inputs if id(x) in self._standing]
        depends = self._depends(inputs)
        if call.function != func or tuple(known) != call.takes or not depends:
            # Data that depends on no weight, or a question about a shape.
            out = func(*tree_map(self._stands_for, args), **tree_map(self._stands_for, kwargs))
            if depends and any(isinstance(x, Tensor) for x in tree_leaves(out)):
                raise RunError(
                    f"the model calls {getattr(func, '__name__', func)!r} where it called "
                    f"{getattr(call.function, '__name__', call.function)!r} when its blocks were "
                    "looked at: it runs differently from one call to the next; pin --pp 1"
                )
            return out
        if not self._own(call.block):
            return self._stand_in(call, inputs)
        for leaf in call.leaves:
            if leaf.source >= 0:
                self._may_be_written(inputs[leaf.source])
        out = func(*tree_map(self._stands_for, args), **tree_map(self._stands_for, kwargs))
        # What is written in place is the tensor that stood for the first input.
        self._made(call, self._stands_for(inputs[0]) if call.writes else out)
        return out

    def _may_be_written(self, x: Any) -> None:
        """What was received is a leaf of autograd, which must not be written to: a copy may."""
        found = self._standing.get(id(x))
        real = None if found is None else self._real.get(found[1])
        if found is not None and real is not None and real.is_leaf and real.requires_grad:
            self._real[found[1]] = real.clone()

    def _depends(self, inputs: list[Any]) -> bool:
        return any(
            isinstance(x, Tensor) and (x.requires_grad or id(x) in self._standing) for x in inputs
        )

    def _stands_for(self, x: Any) -> Any:
        found = self._standing.get(id(x)) if isinstance(x, Tensor) else None
        return x if found is None else self._real.get(found[1], x)

    def _expect(self, path: str) -> None:
        expected = self._flow.calls[self._number].function
        if expected != path:
            raise RunError(
                f"the model calls {path!r} where it called {expected!r} when its blocks were "
                "looked at: it runs differently from one call to the next; pin --pp 1"
            )

    def _made(self, call: Call, out: Any) -> None:
        """An own call has given `out` back."""
        for leaf, x in zip(call.leaves, tree_flatten(out)[0], strict=True):
            number = max(leaf.value, leaf.handed)
            if number >= 0:
                self._real[number] = x
                self._standing[id(x)] = (x, number)
        if self._number == self._final and self._leaving:
            raise StopReplay(tuple(self._real[n] for n in self._leaving))
        self._number += 1

    def placeholder(self, path: str, args: Any, kwargs: Any) -> Any:
        """Outputs of a unit's call that is another stage's: no memory, right shapes."""
        self._expect(path)
        return self._stand_in(self._flow.calls[self._number], tree_leaves((args, kwargs)))

    def _stand_in(self, call: Call, inputs: list[Any]) -> Any:
        made: list[Any] = []
        given: dict[int, Any] = {}
        for leaf in call.leaves:
            if leaf.source >= 0:
                x = inputs[leaf.source]
            elif leaf.value in given:
                x = given[leaf.value]
            elif leaf.dtype is not None:
                x = torch.zeros((), dtype=leaf.dtype, device=self.device).expand(leaf.shape)
            else:
                x = leaf.plain
            if leaf.value >= 0:
                self._standing[id(x)] = (x, leaf.value)
                given[leaf.value] = x
            made.append(x)
        self._number += 1
        return None if call.writes else tree_unflatten(made, call.spec)
