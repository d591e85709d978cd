"""The recorder: every op of a forward and backward pass, and every byte while it is alive.

It runs as a dispatch mode under autograd. The segment (block) and the module of a backward op are
those of the forward op whose autograd node is running: nodes carry sequence numbers, and the
recorder notes the number at every entry and exit of a module and at every cut.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from profiles.errors import ShardwrightError, TraceError
from profiles.model.fake_tensors.trace_fakes import tensors_in
from profiles.model.fake_tensors.trace_known_values import KnownValues
from profiles.model.graph import DEFERRED_PRODUCTS, Op, OpKind, Phase, TensorSpec
from profiles.model.tracing.trace_errors import refuse_long_loop
from profiles.model.tracing.trace_kernels import device_kernels
from profiles.model.tracing.trace_ops import describe_op, dtype_name, named_on_cpu
from profiles.model.tracing.trace_side_effects import StateWatch


@dataclass(slots=True)
class StorageRecord:
    """A storage that an op allocated: its number, size, segment and module.

    weighted  its content depends on parameters (with a gradient or not)
    node      number of the autograd node whose backward allocated it; None in the forward
    handed_on  it is the output of a module that a stage runs as a whole
    """

    number: int
    memory_bytes: int
    segment: int
    module: str
    alive: bool = True
    weighted: bool = True
    node: int | None = None
    handed_on: bool = False


@dataclass(slots=True)
class Segment:
    """The ops between two cuts. Events are (storage number, bytes; negative when freed).

    tables         storages of earlier segments that it reads and that depend on no parameter
    operands       storages read by products with trainable parameters
    product_bytes  bytes written by these products
    """

    ops: list[Op] = field(default_factory=list)
    forward_events: list[tuple[int, int]] = field(default_factory=list)
    backward_events: list[tuple[int, int]] = field(default_factory=list)
    parameters: dict[int, None] = field(default_factory=dict)
    tables: set[int] = field(default_factory=set)
    operands: dict[int, None] = field(default_factory=dict)
    product_bytes: int = 0


aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default

# Ops that read only shape, type and device of their input.
_OF_SHAPE = {f"{kind}_like" for kind in ("zeros", "ones", "empty", "full", "rand", "randn")}
_OF_SHAPE |= {f"new_{kind}" for kind in ("zeros", "ones", "empty", "full", "empty_strided")}


class Recorder(TorchDispatchMode):
    """Records all ops while it is active; `segments[i]` are those of block i.

    parameters  storage key -> index of the parameter
    weighted    module and name of all forward ops with an input that depends on parameters
    crossings   (producing segment, consuming segment, storage number) of every tensor that depends
                on parameters and is read in a later segment. A later stage must receive it, even
                without a gradient (a teacher's output, a mask made of activations)
    crossing    storage number -> shape and type of the tensor of a crossing at its first use
    target      `gpu`: masks of unfused attention scores are read (accelerators fuse them)
    on_crossing called with number and tensor of a crossing at its first use
    state       receives all ops of the forward
    known       has the values of masks
    differentiated  module that computes a gradient in its forward (`torch.autograd.grad`) -> the
                    first and the last segment that the gradient passes
    """

    def __init__(
        self,
        parameters: dict[int, int],
        on_crossing: Callable[[int, Tensor], None],
        state: StateWatch,
        known: KnownValues,
        *,
        target: str,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self._on_crossing, self._state, self._target = on_crossing, state, target
        self._known = known
        self.parameters = parameters
        self.segments = [Segment()]
        self.weighted: list[tuple[str, str]] = []
        self.crossings: set[tuple[int, int, int]] = set()
        self.differentiated: dict[str, tuple[int, int]] = {}
        self.crossing: dict[int, TensorSpec] = {}
        self.storages: list[StorageRecord] = []
        self.phase = Phase.FORWARD
        self.operations = 0
        self.longest = 0  # dimension of the inputs, without the batch
        self.paused = False
        self._live: dict[int, StorageRecord] = {}
        self._references: dict[int, Any] = {}
        self._segment = 0
        # An addition that may accumulate gradients: first operand, result, and place of the op.
        self._sum: tuple[int, int, int, int] | None = None
        self._path: list[str] = [""]
        self._cut_numbers = [0]
        self._module_numbers = [0]
        self._module_paths = [""]

    # --- current module and segment ------------------------------------------------------------

    def enter_module(self, path: str) -> None:
        """Following ops belong to the module at `path`."""
        self._path.append(path)
        self._note_module(path)

    def leave_module(self) -> None:
        """Following ops belong to the enclosing module."""
        self._path.pop()
        self._note_module(self._path[-1])

    def cut(self) -> None:
        """Begin the next segment."""
        self.segments.append(Segment())
        self._segment = len(self.segments) - 1
        self._cut_numbers.append(torch._C._autograd._get_sequence_nr())

    @contextmanager
    def pause(self) -> Any:
        """Inside it, nothing is recorded."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    def storage_of(self, x: Tensor) -> StorageRecord | None:
        """The record of a tensor's storage, if a recorded op allocated it."""
        return self._live.get(x.untyped_storage()._cdata)

    # --- recording ----------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE and not args[0].fake_mode.in_kernel_invocation:
            return args[0].fake_device  # autograd reads it at least twice per op
        if self.paused or func.namespace == "prim":
            return func(*args, **kwargs)
        self._sum = None
        segment, module = self.place()
        given = tensors_in((args, kwargs))
        weighted = self.note_inputs(given, segment)
        try:
            out = func(*args, **kwargs)
            op = describe_op(func, args, kwargs, out, phase=self.phase, module=module)
        except ShardwrightError as error:
            raise TraceError(f"{error} (in module {module or 'the model itself'})") from error
        except NotImplementedError as error:
            raise TraceError(
                f"{func} in module {module or 'the model itself'} cannot be traced: {error}"
            ) from error
        if self._target == "cpu":
            op = named_on_cpu(op, args)
        else:
            op = replace(op, kernels=device_kernels(op, args, kwargs, out))
        if self.phase is Phase.FORWARD:
            op = self._with_mask(op, func, args)
            self._state.note(func, args, kwargs, out, segment, module)
            self._note_product(op, given, self.segments[segment])
        self.segments[segment].ops.append(op)
        self.operations += 1
        if self.operations % 1024 == 0 and self.phase is Phase.FORWARD:
            refuse_long_loop(self.segments[segment].ops, module, self.longest)
        weighted = weighted and op.name not in _OF_SHAPE
        if weighted and self.phase is Phase.FORWARD:
            self.weighted.append((module, op.name))
        for x in tensors_in(out):
            self._note_output(x, segment, module, weighted=weighted)
        if self.phase is Phase.BACKWARD:
            self._note_sum(func, args, out, segment)
        return out

    def _note_sum(self, func: Any, args: Any, out: Any, segment: int) -> None:
        """Record an addition that may accumulate the gradients of a tensor from several nodes.

        Autograd adds in place if the first operand has no other reference and is dense (torch
        2.13, torch/csrc/autograd/input_buffer.cpp), but never inside a dispatch mode. So the op
        counts as `add_` if the first operand is freed right after it (`_freer`).
        """
        if func is not aten.add.Tensor or args[0]._is_view():
            return
        record, made = self.storage_of(args[0]), self.storage_of(out)
        if record is None or made is None or record.node in (None, _running_node()):
            return
        if record.memory_bytes == made.memory_bytes:
            index = len(self.segments[segment].ops) - 1
            self._sum = (record.number, made.number, segment, index)

    def _with_mask(self, op: Op, func: Any, args: Any) -> Op:
        """The op with the number of positions that its attention mask allows, if it takes a
        mask."""
        if op.attention is None:
            reach = self._known.of_scores(func, args) if self._target == "gpu" else None
            return op if reach is None else replace(op, mask_reach=reach)
        if op.attention.mask_reach is None:
            return op
        reach = self._known.reach(args[3])
        return replace(op, attention=replace(op.attention, mask_reach=reach))

    def place(self) -> tuple[int, str]:
        """The block and the module to which ops of this moment belong."""
        node = torch._C._current_autograd_node()
        if self.phase is Phase.FORWARD:
            self._note_differentiated(node)
            return self._segment, self._path[-1]
        if node is not None and "AccumulateGrad" not in node.name():
            number = node._sequence_nr()
            self._segment = bisect_right(self._cut_numbers, number) - 1
            self._path[-1] = self._module_paths[bisect_right(self._module_numbers, number) - 1]
        return self._segment, self._path[-1]

    def _note_differentiated(self, node: Any) -> None:
        """Record a node of an earlier segment that runs backward during the forward."""
        if node is None or "AccumulateGrad" in node.name():
            return
        made = bisect_right(self._cut_numbers, node._sequence_nr()) - 1
        if made < self._segment:
            path = self._path[-1]
            first, last = self.differentiated.get(path, (made, self._segment))
            self.differentiated[path] = (min(first, made), max(last, self._segment))

    def _note_module(self, path: str) -> None:
        if self.phase is Phase.FORWARD:
            self._module_numbers.append(torch._C._autograd._get_sequence_nr())
            self._module_paths.append(path)

    def note_inputs(self, given: list[Tensor], segment: int) -> bool:
        """Record the read tensors; returns whether one of them depends on parameters."""
        weighted = False
        for x in given:
            key = x.untyped_storage()._cdata
            index = self.parameters.get(key)
            if index is not None:
                self.segments[segment].parameters[index] = None
                weighted = True
                continue
            record = self._live.get(key)
            if record is None or self.phase is not Phase.FORWARD:
                continue
            weighted = weighted or record.weighted
            if record.segment == segment:
                continue
            if not (x.requires_grad or record.weighted):
                self.segments[segment].tables.add(record.number)
            else:
                self.crossings.add((record.segment, segment, record.number))
                if record.number not in self.crossing:
                    self.crossing[record.number] = TensorSpec(
                        shape=tuple(x.shape), dtype=dtype_name(x.dtype)
                    )
                    if x.requires_grad:
                        self._on_crossing(record.number, x)
        return weighted

    def note_handed_on(self, outputs: list[Any]) -> None:
        """Record the outputs of a module that a stage runs as a whole. A stage without the module
        must receive all of them, even constants (T5's zeros for relative positions)."""
        for x in outputs:
            record = self.storage_of(x) if isinstance(x, Tensor) else None
            if record is not None and self.phase is Phase.FORWARD:
                record.weighted = record.handed_on = True

    def _note_product(self, op: Op, tensors: list[Tensor], segment: Segment) -> None:
        if op.kind is not OpKind.CONV and op.name not in (*DEFERRED_PRODUCTS, "embedding"):
            return
        found = [(x.untyped_storage()._cdata, x.requires_grad) for x in tensors]
        if any(trained and key in self.parameters for key, trained in found):
            segment.product_bytes += op.written_bytes
            records = [self._live[key] for key, _ in found if key in self._live]
            segment.operands |= dict.fromkeys(record.number for record in records)

    def _note_output(self, x: Tensor, segment: int, module: str, *, weighted: bool = True) -> None:
        storage = x.untyped_storage()
        key = storage._cdata
        if key in self._live and weighted:
            self._live[key].weighted = True  # written in place
        if key in self.parameters or key in self._live:
            return
        record = StorageRecord(
            number=len(self.storages),
            memory_bytes=storage.nbytes(),
            segment=segment,
            module=module,
            weighted=weighted,
            node=_running_node() if self.phase is Phase.BACKWARD else None,
        )
        self.storages.append(record)
        self._live[key] = record
        self._event(record.number, record.memory_bytes)
        self._references[key] = weakref.ref(storage, self._freer(key, record))

    def _freer(self, key: int, record: StorageRecord) -> Callable[[Any], None]:
        def free(_: Any) -> None:
            record.alive = False
            self._live.pop(key, None)
            self._references.pop(key, None)
            if self._sum is not None and self._sum[0] == record.number:
                self._add_in_place(-record.memory_bytes)
            else:
                self._event(record.number, -record.memory_bytes)

        return free

    def _add_in_place(self, change: int) -> None:
        """Correct the last addition: it was in place, so its first operand has the sum and no
        storage is new."""
        assert self._sum is not None
        first, made, segment, index = self._sum
        self._sum = None
        own = self.segments[segment]
        own.ops[index] = replace(own.ops[index], name="add_")
        at = len(own.backward_events)
        if own.backward_events[-1:] == [(made, -change)]:
            at -= 1
        own.backward_events.insert(at, (first, change))

    def _event(self, number: int, change: int) -> None:
        if self.phase is Phase.BACKWARD:
            self.place()
            self.segments[self._segment].backward_events.append((number, change))
        else:
            self.segments[self._segment].forward_events.append((number, change))


def _running_node() -> int | None:
    """The number of the autograd node whose backward runs or whose outputs are accumulated."""
    node = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def changes(events: list[tuple[int, int]], left_out: set[int]) -> tuple[int, ...]:
    """The byte changes of the events without some storages; runs of one sign are summed."""
    joined: list[int] = []
    for number, change in events:
        if number in left_out or not change:
            continue
        if joined and (joined[-1] > 0) == (change > 0):
            joined[-1] += change
        else:
            joined.append(change)
    return tuple(joined)
