"""A stage: any set of a model's blocks, run by replaying the model's own forward.

Modules outside of the stage have no weights. Every call that depends on weights (of a unit, or of a
torch function in the code between units) has a number (replay/data_flow.py). In a replay, the
stage's own calls are computed, and all other calls return placeholders of the right shape. The
replay ends after the last of the stage's calls. Python code between blocks runs unchanged. So a
stage may contain half of one tower and half of another, or the encoder of a UNet whose skip
connections pass other stages: a tensor for a later stage is passed on by every stage in between,
which sends the tensor that it received.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only, tree_unflatten

from executor.placeholder_weights import answer_for_weights, first_weights, leave_out
from executor.replay.data_flow import Call, DataFlow, Leaf, takes_shape_only
from executor.replay.draws import Draws
from executor.replay.leaves import leaves_of, mapped
from executor.replay.torch_calls import TorchCallSwitch
from executor.replay.wire import answering, sent, taken
from executor.replica_gradients import ReplicaGradients
from executor.split_backward import SplitBackward
from executor.stage_inputs import given_again
from executor.working_copies import WorkingCopies
from profiles.errors import RunError
from profiles.model.building.build import BuiltModel
from profiles.model.building.build_split_loss import Reduce, with_split_loss
from profiles.model.tracing.trace_block_boundaries import narrowed
from profiles.model.tracing.trace_tensor_parallel import Sharding

_CPU = torch.device("cpu")


class StopReplay(Exception):
    """Ends a replay; contains the tensors that cross the cut."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self.tensors = tensors


class StageModule(nn.Module):
    """Blocks [first, last) of a plan's order as a module.

    forward(*received, **model_args) -> tuple of tensors for the next stage, or for the last stage
    the loss as a tensor of shape [1]. `model_args` are those of `model_arguments`. Only its own
    blocks have real weights; a stage with all blocks runs the model directly. A model whose forward
    returns tensors of data-dependent shapes cannot be staged.

    flow    data flow between all blocks
    split   set if the backward is split in two
    device  of the stage
    """

    def __init__(
        self,
        built: BuiltModel,
        flow: DataFlow,
        first: int,
        last: int,
        *,
        split: SplitBackward | None = None,
        device: torch.device = _CPU,
    ) -> None:
        super().__init__()
        self.split = split
        self.draws: Draws | None = None  # set before `watch_entries`, where the model draws
        self.copies: WorkingCopies | None = None  # in mixed precision without sharded parameters
        self.replicas = ReplicaGradients((), None, 1)  # of weights that are not sharded
        self.sharding = Sharding(tp=1)  # modules that tensor parallelism splits
        self.micro_batch = 0  # the next one, numbered in the global batch
        self.model = built.module
        self.first, self.last = first, last
        self.flow = flow
        # Each stage has its own targets that are not part of the batch (class weights).
        targets = tree_map_only(Tensor, lambda x: x.to(device), built.targets)
        self._built = replace(built, targets=targets)
        # Not taken from a call's inputs: models move these to the device of a weight that is absent
        # here.
        self.device = device
        own = [n for n, call in enumerate(flow.calls) if self._own(call.block)]
        self._entering = flow.crossing(first) if first else ()
        self._leaving = flow.crossing(last) if last < len(flow.entries) else ()
        self._final = max(own)
        # For each value, the number of the stage's last call that takes it.
        self._last_use = {number: n for n in own for number in flow.calls[n].takes}
        self._number = self._depth = 0
        self._running_own = False  # whether the outermost running unit is its own
        self._in_loss = False  # the last stage has the whole loss, and values may decide its code
        self._looking = TorchCallSwitch(self._between)
        # id of a tensor -> (the tensor, its number). The tensor is kept alive, because the id of a
        # freed one could be reused.
        self._standing: dict[int, tuple[Tensor, int]] = {}
        self._real: dict[int, Tensor] = {}
        # Placeholder and number of each value of other stages, created once.
        self._stand_ins: dict[int, tuple[Tensor, int]] = {}
        self.absent: frozenset[str] = frozenset()  # paths of units that only other stages run
        if not self.is_whole:
            self._install()

    @property
    def is_whole(self) -> bool:
        """Whether the stage is the whole model, so that nothing is replayed."""
        return self.first == 0 and self.last == len(self.flow.entries)

    @property
    def runs_own(self) -> bool:
        """Whether the running unit belongs to this stage, and is no placeholder."""
        return self.is_whole or self._running_own

    # --- set-up -------------------------------------------------------------------------------

    def split_logits(self, *, first: int, reduce: Reduce) -> None:
        """Compute the loss from this rank's share of the logits, as `with_split_loss`."""
        self._built = with_split_loss(self._built, first=first, reduce=reduce)

    def _install(self) -> None:
        modules = dict(self.model.named_modules())
        firsts = first_weights(self.model)
        called: dict[str, set[int]] = {path: set() for path in self.flow.units}
        for call in self.flow.calls:
            if isinstance(call.function, str):
                called[call.function].add(call.block)
        for path, reading in self.flow.reads.items():
            if path in called:
                called[path] |= reading
            elif not any(map(self._own, reading)):
                loose = self.model.get_parameter(path)
                leave_out(self.model.modules(), self.device, loose)
        # A unit that is never called is read by code of the first stage (DeBERTa's positions).
        self.absent = frozenset(
            path
            for path, blocks in called.items()
            if path and not any(map(self._own, blocks)) and (blocks or self.first)
        )
        # A part of an absent unit may also be a part of a unit of this stage.
        kept = {part for path in called.keys() - self.absent for part in modules[path].modules()}
        for path, blocks in called.items():
            if path in self.absent:
                modules[path].forward = partial(self._placeholder, path)
                leave_out((m for m in modules[path].modules() if m not in kept), self.device)
            elif any(not self._own(block) for block in blocks):
                self._guard(path, modules[path])
        answer_for_weights(firsts, self.device)

    def _own(self, block: int) -> bool:
        return self.first <= block < self.last

    def _guard(self, path: str, module: nn.Module) -> None:
        """Wrap a unit that other stages call too: placeholders for their calls."""
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._running_own:
                return original(*args, **kwargs)
            return self._placeholder(path, *args, **kwargs)

        module.forward = forward

    def unit_paths(self, block: int) -> list[str]:
        """Units of this stage that a block calls, in model order."""
        called = {call.function for call in self.flow.calls if call.block == block}
        return [path for path in self.flow.units if path in called]

    def watch_entries(self) -> None:
        """Hook the units of the stage. Call it last: FSDP's own hooks pass new tensor objects to
        the module, and placeholders are recognized by identity."""
        modules = dict(self.model.named_modules())
        for path in self.flow.casts if self.is_whole and self.copies is not None else ():
            modules[path].register_forward_pre_hook(
                lambda unit, *given: narrowed(unit, given), with_kwargs=True
            )
        for path in () if self.is_whole else self.flow.units:
            if path and path not in self.absent:
                began = partial(self._began, path)
                modules[path].register_forward_pre_hook(began, prepend=True, with_kwargs=True)
                modules[path].register_forward_hook(partial(self._ended, path))
        if self.draws is not None:
            # After the stage's own hooks: a unit leaves their mode first.
            self.draws.watch(self.model, (p for p in self.flow.units if p not in self.absent))

    def _began(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        self._depth += 1
        if self._depth > 1:
            return None
        self._running_own = self._own(self._call_of(path).block)
        if not self._running_own:
            return None
        given = self._with_own(args, kwargs)
        # Calls inside a unit are not intercepted.
        self._looking.turn(False)
        # FSDP2 casts the inputs of the units that it shards.
        casts = self.copies is not None and path in self.flow.casts
        return narrowed(module, given) if casts else given

    def _ended(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1
        # The placeholder has already counted another stage's call.
        if self._depth == 0 and self._running_own:
            self._looking.turn(True)
            self._made(self._call_of(path), output)

    # --- replay -------------------------------------------------------------------------------

    def forward(self, *received: Tensor, **model_args: Any) -> Any:
        self._number = self._depth = 0
        self._in_loss = False
        values = [self.flow.values[n] for n in self._entering]
        entering = list(zip(values, received if self.first else (), strict=True))
        real = (taken(x, v.dtype, requires_grad=v.requires_grad) for v, x in entering)
        self._real = dict(zip(self._entering, real, strict=True))
        quiet = [wire for value, wire in entering if not value.requires_grad]
        self._standing = {id(x): (x, number) for number, x in self._real.items()}
        args, targets = given_again(model_args, self._built)
        self.device = args[0].device
        try:
            # The last mode entered is the first called: draws, then placeholders, then products.
            with ExitStack() as stack:
                if self.split:
                    stack.enter_context(self.split.watching())
                self._looking.turn(not self.is_whole)
                stack.callback(self._looking.turn, False)
                if self.draws:
                    stack.enter_context(self.draws.forward(self.micro_batch))
                output = self._built.call(self.model, *args)
                self._in_loss = True
                loss = self._built.loss_fn(output, targets)
        except StopReplay as stop:
            return answering([sent(x) for x in stop.tensors], quiet)
        finally:
            self._standing, self._real = {}, {}
        return answering([loss.reshape(1)], quiet)[0]

    def _between(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A torch function in the code between units."""

        def run() -> Any:
            own_args, own_kwargs = self._with_own(args, kwargs)
            return func(*own_args, **own_kwargs)

        if self._in_loss:
            return run()
        if self._depth or self._number >= len(self.flow.calls) or takes_shape_only(func):
            return func(*args, **kwargs)
        call = self.flow.calls[self._number]
        inputs = leaves_of((args, kwargs))
        known = [self._standing[id(x)][1] for x in inputs if id(x) in self._standing]
        depends = self._depends(inputs)
        if call.function != func or tuple(known) != call.takes or not depends:
            # Data that depends on no weight, or a query of a shape.
            out = run()
            if depends and any(isinstance(x, Tensor) for x in leaves_of(out)):
                raise _runs_differently(getattr(func, "__name__", func), call)
            return out
        if not self._own(call.block):
            return self._stand_in(call, (args, kwargs))
        for leaf in call.leaves:
            if leaf.source >= 0:
                self._may_be_written(inputs[leaf.source])
        out = run()
        # The tensor written in place is the placeholder of the first input.
        self._made(call, self._replacement(inputs[0]) if call.writes else out)
        return out

    def _may_be_written(self, x: Any) -> None:
        """A copy of a received tensor, a leaf of autograd, that may be changed in place."""
        found = self._standing.get(id(x))
        real = None if found is None else self._real.get(found[1])
        if found is not None and real is not None and real.is_leaf and real.requires_grad:
            self._real[found[1]] = real.clone()

    def _depends(self, inputs: list[Any]) -> bool:
        return any(
            isinstance(x, Tensor) and (x.requires_grad or id(x) in self._standing) for x in inputs
        )

    def _with_own(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of one of the stage's calls, with placeholders replaced."""
        return tuple(mapped(self._replacement, args)), mapped(self._replacement, kwargs)

    def _replacement(self, x: Any) -> Any:
        found = self._standing.get(id(x)) if isinstance(x, Tensor) else None
        return x if found is None else self._real.get(found[1], x)

    def _call_of(self, path: str) -> Call:
        """The current call, which must be of this unit."""
        calls = self.flow.calls
        call = calls[self._number] if self._number < len(calls) else None
        if call is None or call.function != path:
            raise _runs_differently(path, call)
        return call

    def _made(self, call: Call, out: Any) -> None:
        """Record the output of one of the stage's calls."""
        for leaf, x in zip(call.leaves, leaves_of(out), strict=True):
            number = max(leaf.value, leaf.handed)
            if number >= 0:
                self._real[number] = x
                self._standing[id(x)] = (x, number)
        if self._number == self._final and self._leaving:
            raise StopReplay(tuple(self._real[n] for n in self._leaving))
        for number in call.takes:
            if self._last_use[number] == self._number:
                self._let_go(number)
        self._number += 1

    def _let_go(self, number: int) -> None:
        """Free a value of this stage after its last use; autograd keeps the tensors it needs."""
        if not self._own(self.flow.values[number].block) or number in self._leaving:
            return
        x = self._real.pop(number, None)
        # A tensor that was written in place has another number by now.
        if x is not None and self._standing.get(id(x), (x, -1))[1] == number:
            del self._standing[id(x)]

    def _placeholder(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """Outputs of another stage's call: right shapes, no memory."""
        return self._stand_in(self._call_of(path), (args, kwargs))

    def _stand_in(self, call: Call, given: Any) -> Any:
        made: list[Any] = []
        inputs: list[Any] | None = None
        for leaf in call.leaves:
            if leaf.source >= 0:
                inputs = leaves_of(given) if inputs is None else inputs
                x = inputs[leaf.source]
                if leaf.value >= 0:
                    self._standing[id(x)] = (x, leaf.value)
            elif leaf.dtype is not None:
                found = self._stand_ins.get(leaf.value)
                if found is None:
                    found = self._stand_ins[leaf.value] = (self._empty(leaf), leaf.value)
                x = found[0]
                self._standing[id(x)] = found
            else:
                x = leaf.plain
            made.append(x)
        self._number += 1
        if call.writes:
            return None
        return made[0] if call.spec.is_leaf() else tree_unflatten(made, call.spec)

    def _empty(self, leaf: Leaf) -> Tensor:
        """A tensor of the leaf's shape and type, without memory."""
        with torch._C.DisableTorchFunction():  # not calls of the model
            return torch.zeros((), dtype=leaf.dtype, device=self.device).expand(leaf.shape)


def _runs_differently(what: object, call: Call | None) -> RunError:
    before = "nothing more" if call is None else getattr(call.function, "__name__", call.function)
    return RunError(
        f"the model calls {what!r} now and called {before!r} when it was traced: it runs "
        "differently from one call to the next; pin --pp 1"
    )
