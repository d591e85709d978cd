"""Trace the op graph: the inputs and outputs of each call, and its kernels.

The forward pass runs on meta tensors under a function mode, which receives the calls of the model's
code. A dispatch mode inside it records each call's kernels; the call's backward is run immediately,
as the gradients of its direct inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from profiles.errors import ShardwrightError, TraceError
from profiles.model.building.build import BuiltModel
from profiles.model.fake_tensors.trace_expected_shapes import expected_shapes
from profiles.model.fake_tensors.trace_fakes import as_in_real_runs, plain_kernels
from profiles.model.graph import Phase
from profiles.model.tracing.trace_block_boundaries import (
    container_members,
    cut_candidates,
    repeated,
)
from profiles.model.tracing.trace_errors import failure_text, traced_loss
from profiles.model.tracing.trace_ops import dtype_name
from shardwright_placements.op_graph.op_calls import OpCall, Program, Repeat, TensorSlot
from shardwright_placements.op_graph.op_graph import GraphBlock, GraphOp, GraphTensor, OpGraph
from shardwright_placements.op_graph.trace_op_kernels import Kernels, backward_kernels, run_call
from shardwright_placements.op_graph.trace_op_options import (
    attribute_name,
    call_name,
    call_options,
    view_strides,
)

_TENSOR_ATTRIBUTES = ("T", "mT", "H", "data")


def trace_op_graph(built: BuiltModel, *, name: str) -> OpGraph:
    """The op graph of a module on meta, including the loss.

    Raises TraceError, with the module, if the forward pass does not run on shapes.
    """
    return trace_program(built, name=name).graph


def trace_program(built: BuiltModel, *, name: str) -> Program:
    """The op graph with its calls, for a replay on real tensors.

    Raises TraceError, with the module, if the forward pass does not run on shapes.
    """
    candidates = cut_candidates(built.module)
    skipped = _in_one_list(
        repeated(built.module, candidates, trusted=True),
        container_members(built.module, candidates),
    )
    tracer = _Tracer(built.module, candidates, skipped)
    tracer.name_origins(built)
    with ExitStack() as stack:
        tracer.hook(stack)
        stack.enter_context(as_in_real_runs(built.module))
        stack.enter_context(expected_shapes())
        stack.enter_context(plain_kernels())
        stack.enter_context(tracer)
        try:
            output = built.call(built.module, *built.args)
            traced_loss(built, output, built.targets)
        except ShardwrightError:
            raise
        except Exception as error:
            raise TraceError(
                f"the forward pass of {name} fails in module {tracer.path[-1] or 'the model'} on "
                f"meta tensors: {failure_text(error)}"
            ) from error
    return tracer.program(name, [x for x in tree_leaves(output) if isinstance(x, Tensor)])


def _in_one_list(skipped: Mapping[str, str], members: frozenset[str]) -> dict[str, str]:
    """Repeat -> the first equal member of the same list. Equal layers of two towers are not repeats
    of each other, because their calls may have different shapes."""
    first: dict[tuple[str, str], str] = {}
    for path in skipped.values():
        first.setdefault((path.rpartition(".")[0], path), path)
    found: dict[str, str] = {}
    for path, model in skipped.items():
        held = first.setdefault((path.rpartition(".")[0], model), path)
        if path in members and held != path:
            found[path] = held
    return found


class _Tracer(TorchFunctionMode):
    """Records all calls while it is active."""

    def __init__(
        self, module: nn.Module, candidates: tuple[str, ...], skipped: dict[str, str]
    ) -> None:
        super().__init__()
        self.module, self.skipped = module, skipped
        self.candidates = frozenset(candidates)
        self.members = container_members(module, candidates)
        self.path: list[str] = [""]
        self.pauses = 0
        self.tensors: list[GraphTensor] = []
        self.ops: list[GraphOp] = []
        self.labels: list[str] = [type(module).__name__]
        self.entries: list[list[str]] = [[""]]
        self.block = 0
        self.current_entry = ""
        self.block_of: dict[str, int] = {}
        self.outputs_of: dict[str, list[int]] = {}
        self.inputs_of: dict[str, list[int | None]] = {}
        self.carried: dict[int, dict[int, int]] = {}
        self.calls: list[OpCall] = []
        self.steps: list[int | Repeat] = []
        self.spans: dict[str, tuple[int, int]] = {}
        self._replaced: dict[str, tuple[tuple[int, int], ...]] = {}
        self._origins: dict[int, tuple[str, str]] = {}
        self._known: dict[int, int] = {}
        self._first: dict[int, int] = {}  # numbers before any in-place call
        self._storages: dict[int, int] = {}
        self._alive: list[Any] = []  # so that ids stay unique
        self._seen: set[str] = set()
        self._names = {id(p): path for path, p in module.named_parameters()}

    def name_origins(self, built: BuiltModel) -> None:
        """Record where tensors that no op makes come from."""
        for path, buffer in self.module.named_buffers():
            self._origins[id(buffer)] = ("buffer", path)
        for kind, values in (("argument", built.args), ("target", built.targets)):
            for i, x in enumerate(tree_leaves(values)):
                if isinstance(x, Tensor):
                    self._origins.setdefault(id(x), (kind, str(i)))

    # --- modules and blocks -------------------------------------------------------------------

    def hook(self, stack: ExitStack) -> None:
        """Hook the entry and exit of all modules, until the stack unwinds."""
        for path, module in self.module.named_modules():
            if path:
                first = module.register_forward_pre_hook(self._enter(path), with_kwargs=True)
                last = module.register_forward_hook(self._leave(path), always_call=True)
                stack.callback(first.remove)
                stack.callback(last.remove)

    def _enter(self, path: str) -> Any:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            self.path.append(path)  # first, since _leave always removes it
            if self.skipped.get(path, path) not in {*self._seen, path}:
                del self.skipped[path]  # the block that it repeats runs later
            if path in self.candidates and path not in self._seen and not self.pauses:
                self._cut(path, type(module).__name__)
                self._note_arguments(path, tree_leaves((args, kwargs)))
                self.spans[path] = (len(self.ops), len(self.ops))
            self._seen.add(path)
            self.pauses += path in self.skipped

        return enter

    def _leave(self, path: str) -> Any:
        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self.path.pop()
            self.pauses -= path in self.skipped
            leaves = [x for x in tree_leaves(output) if isinstance(x, Tensor)]
            if path in self.skipped and not self.pauses:
                model = self.outputs_of.get(self.skipped[path], [])
                if len(model) != len(leaves):
                    raise TraceError(
                        f"{path} was assumed to equal {self.skipped[path]}, but returns "
                        f"{len(leaves)} tensors instead of {len(model)}; equal modules must "
                        "return equal outputs"
                    )
                made = []
                for x, held in zip(leaves, model, strict=True):
                    known = self._known.get(id(x))
                    made.append((held, self._add(x, stands_for=held) if known is None else known))
                if path in (step.path for step in self.steps if isinstance(step, Repeat)):
                    raise TraceError(
                        f"the forward calls {path} twice, so it cannot be split op by op"
                    )
                self.steps.append(
                    Repeat(
                        path=path,
                        held=self.skipped[path],
                        inputs=self._replaced.get(path, ()),
                        outputs=tuple(made),
                    )
                )
            elif path in self.candidates and not self.pauses:
                self.outputs_of.setdefault(path, [self._number(x) for x in leaves])
                first, last = self.spans[path]
                self.spans[path] = (first, len(self.ops) if first == last else last)

        return leave

    def _note_arguments(self, path: str, leaves: list[Any]) -> None:
        """Record the inputs of a repeat that differ from those of the stored block."""
        numbers = [self._number(x) if isinstance(x, Tensor) else None for x in leaves]
        model = self.skipped.get(path)
        if model is None:
            self.inputs_of[path] = numbers
            return
        carried = self.carried.setdefault(self.block_of.get(model, 0), {})
        replaced = tuple(
            (held, own)
            for own, held in zip(numbers, self.inputs_of[model], strict=False)
            if own is not None and held is not None and own != held
        )
        self._replaced[path] = replaced
        for held, own in replaced:
            stands_for = self.tensors[own].stands_for
            carried.setdefault(held, own if stands_for is None else stands_for)

    def _cut(self, path: str, label: str) -> None:
        begun = bool(self.ops) or self.block > 0
        lone = self.members and path not in self.members
        if not begun or (lone and self.current_entry not in self.members):
            return
        self.current_entry = path
        model = self.skipped.get(path)
        if model is not None:
            self.entries[self.block_of[model]].append(path)
            return
        self.block = len(self.labels)
        self.block_of[path] = self.block
        self.labels.append(label)
        self.entries.append([path])

    # --- recording ----------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if self.pauses:
            return run_call(func, call_name(func), args, kwargs)
        if kwargs.get("inplace"):
            kwargs["inplace"] = False
        name = call_name(func)
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        has_gradient = torch.is_grad_enabled()
        before = [self._number(x) for x in inputs if name != "__get__" or id(x) in self._known]
        kept: list[Tensor] = []
        kernels = Kernels(Phase.FORWARD, self.path[-1])
        with torch.autograd.graph.saved_tensors_hooks(_note(kept), lambda x: x), kernels:
            out = run_call(func, name, args, kwargs)
        own = {id(x) for x in inputs}
        inplace = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
        inplace = inplace or name == "__setitem__"
        written = args[0] if name == "__setitem__" else out
        leaves = [x for x in tree_leaves(written) if isinstance(x, Tensor)]
        outputs = [x for x in leaves if inplace or id(x) not in own]
        if not outputs or (name == "__get__" and attribute_name(func) not in _TENSOR_ATTRIBUTES):
            return out
        if name == "__get__":
            before = [self._number(x) for x in inputs]
        number = len(self.ops)
        slots = tree_map_only(Tensor, lambda x: TensorSlot(self._known[id(x)]), (args, kwargs))
        made = [self._add(x, producer=number) for x in outputs]
        strides = () if inplace else view_strides(func, name, args, kwargs, outputs)
        saved, inner = self._saved(kept, [*before, *made])
        # The backward of an in-place call cannot be run separately.
        trains = not inplace and any(x.requires_grad for x in outputs)
        op = GraphOp(
            name=name,
            module=self.path[-1],
            block=self.block,
            inputs=tuple(before),
            outputs=tuple(made),
            options=call_options(name, args, kwargs, inputs),
            strides=strides,
            forward=tuple(kernels.ops),
            backward=backward_kernels(func, name, args, kwargs, self.path[-1]) if trains else (),
            saved=saved,
            saved_inner_bytes=inner,
        )
        self.ops.append(op)
        self.steps.append(number)
        self.calls.append(
            OpCall(
                function=func,
                args=tuple(slots[0]),
                kwargs=slots[1],
                has_gradient=has_gradient,
                is_in_place=inplace,
            )
        )
        return out

    def _number(self, x: Tensor) -> int:
        found = self._known.get(id(x))
        return self._add(x) if found is None else found

    def _add(self, x: Tensor, *, producer: int | None = None, stands_for: int | None = None) -> int:
        self.pauses += 1  # hooks run under the mode too: these reads are not the model's
        number = len(self.tensors)
        key = x.untyped_storage()._cdata
        storage = self._storages.setdefault(key, number)
        parameter = self._names.get(id(x), "")
        self.tensors.append(
            GraphTensor(
                shape=tuple(x.shape),
                dtype=dtype_name(x.dtype),
                producer=producer,
                needs_gradient=x.requires_grad and (x.is_floating_point() or x.is_complex()),
                parameter=parameter,
                stands_for=stands_for,
                storage=storage,
            )
        )
        self._known[id(x)] = number
        self._first.setdefault(id(x), number)
        self._alive += [x, x.untyped_storage()]
        self.pauses -= 1
        return number

    def _saved(self, kept: list[Tensor], own: list[int]) -> tuple[tuple[int, ...], float]:
        """The op's inputs and outputs that are kept, and the bytes of other kept tensors."""
        saved: dict[int, None] = {}
        inner: dict[int, float] = {}
        roots = {self.tensors[t].storage: t for t in reversed(own)}
        for x in kept:
            key = x.untyped_storage()._cdata
            root = self._storages.get(key)
            if root in roots:
                if not self.tensors[roots[root]].parameter:
                    saved[roots[root]] = None
            elif root is None:
                inner[key] = float(x.untyped_storage().nbytes())
        return tuple(saved), sum(inner.values())

    def program(self, name: str, outputs: list[Tensor]) -> Program:
        """The recorded program, without empty blocks."""
        used = sorted({op.block for op in self.ops})
        renumbered = {block: i for i, block in enumerate(used)}
        graph = OpGraph(
            name=name,
            tensors=tuple(self.tensors),
            ops=tuple(replace(op, block=renumbered[op.block]) for op in self.ops),
            blocks=tuple(
                GraphBlock(
                    label=self.labels[b],
                    entries=tuple(self.entries[b]),
                    carried=tuple(sorted(self.carried.get(b, {}).items())),
                )
                for b in used
            ),
        )
        origins = {
            number: self._origins[key]
            for key, number in self._first.items()
            if key in self._origins
        }
        origins |= {
            i: ("parameter", x.parameter) for i, x in enumerate(self.tensors) if x.parameter
        }
        return Program(
            graph=graph,
            calls=tuple(self.calls),
            steps=tuple(self.steps),
            spans=self.spans,
            origins=origins,
            outputs=tuple(self._known.get(id(x), -1) for x in outputs),
        )


def _note(kept: list[Tensor]) -> Callable[[Tensor], Tensor]:
    def pack(x: Tensor) -> Tensor:
        kept.append(x.detach())
        return x

    return pack
