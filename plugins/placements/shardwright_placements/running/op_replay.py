"""Run a model op by op in the placements of a file, each op on a rank's parts.

The traced calls are replayed in order (op_graph/op_calls.py). The inputs of an op are converted to
the layouts in the file, and its outputs are checked against them. Weights are DTensors in their
planned placements; each op works on plain local tensors, so that torch chooses no placements
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._pytree import tree_leaves, tree_map

from profiles.errors import MismatchError
from profiles.model.building.build import BuiltModel
from shardwright_placements.op_graph.op_calls import OpCall, Program, Repeat, TensorSlot
from shardwright_placements.running.op_kernels import LocalCall, run_local
from shardwright_placements.running.placement_changes import changed, fan_out
from shardwright_placements.running.shard_position import PARTIAL, Position, dtensor_placements
from shardwright_placements.sharding_file import (
    Change,
    Conversion,
    OpShardingFile,
    PlacedCall,
    PlacedTensor,
    Placements,
)

_CASTS = ("bfloat16", "half", "double")


@dataclass(frozen=True, slots=True)
class _Made:
    """A tensor with the op that made it."""

    local: Tensor
    op: int
    output: int


@dataclass(slots=True)
class _Scope:
    """One run of a block: the tensors that it made, and replacements for those of the stored block.

    prefix   (path of the stored block, path of this one)
    """

    replaced: Mapping[int, int] = field(default_factory=dict)
    prefix: tuple[str, str] = ("", "")
    made: dict[int, _Made] = field(default_factory=dict)
    forms: dict[tuple[int, int], dict[PlacedTensor, Tensor]] = field(default_factory=dict)


def check_program(program: Program, answer: OpShardingFile) -> None:
    """Raises MismatchError if the trace on this machine differs from the planned one."""
    graph = program.graph
    if len(graph.ops) != len(answer.calls):
        raise MismatchError(
            f"{answer.model} has {len(graph.ops)} ops here and {len(answer.calls)} in the file; it "
            "was traced with other versions. Make the file again with `shardwright shard`"
        )
    for op, placed in zip(graph.ops, answer.calls, strict=True):
        shapes = tuple(graph.tensors[t].shape for t in op.outputs)
        if (op.name, op.module, shapes) != (placed.name, placed.module, placed.shapes):
            raise MismatchError(
                f"op {placed.op} of {answer.model} differs. Traced here: {op.name} of {op.module} "
                f"with outputs {shapes}; in the file: {placed.name} of {placed.module} with "
                f"outputs {placed.shapes}. Make the file again with `shardwright shard`"
            )


class Replay:
    """A model's weights on the mesh, and its forward pass on them.

    `gradients` has those of the last backward pass, in the weights' placements.
    """

    def __init__(
        self,
        program: Program,
        answer: OpShardingFile,
        built: BuiltModel,
        position: Position,
        unplanned: Callable[[str], AbstractContextManager[None]] | None = None,
    ) -> None:
        check_program(program, answer)
        self.program, self.answer, self.position = program, answer, position
        self.unplanned = unplanned or (lambda name: nullcontext())
        self.conversions: dict[tuple[int, int, int, int], Conversion] = {
            (c.block, c.tensor, c.maker, c.output): c for c in answer.conversions
        }
        self.args = tree_leaves(built.args)
        self.targets = tree_leaves(built.targets)
        self.buffers = dict(built.module.named_buffers())
        self.aliases = _aliases(built.module)
        self.weights: dict[str, DTensor] = self._distributed(built.module)
        self.leaves: dict[tuple[str, Placements], Tensor] = {}
        self.outer = _Scope()

    # --- weights ------------------------------------------------------------------------------

    def _distributed(self, module: nn.Module) -> dict[str, DTensor]:
        """Every trained weight as a DTensor in the placements in which its readers store it."""
        placements: dict[str, Placements] = {}
        graph = self.program.graph
        for op, placed in zip(graph.ops, self.answer.calls, strict=True):
            for t, layout in zip(op.inputs, placed.inputs, strict=True):
                name = graph.tensors[t].parameter
                if name:
                    placements.setdefault(self.aliases[name], layout.forward)
        for step in self.program.steps:
            if isinstance(step, Repeat):
                for name, form in list(placements.items()):
                    own = _renamed(name, (step.held, step.path))
                    if own != name and own in self.aliases:
                        placements.setdefault(self.aliases[own], form)
        whole = ("R",) * len(self.position.sizes)
        return {
            name: distribute_tensor(
                weight.detach(),
                self.position.mesh,
                dtensor_placements(placements.get(name, whole)),
                src_data_rank=None,
            )
            for name, weight in module.named_parameters()
        }

    def _leaf(self, name: str, layout: PlacedTensor) -> Tensor:
        """The rank's part of a weight; a leaf per layout of its gradient."""
        name = self.aliases[name]
        key = (name, layout.backward)
        if key not in self.leaves:
            weight = self.weights[name]
            if list(weight.placements) != dtensor_placements(layout.forward):
                raise MismatchError(
                    f"{name} has the placements {weight.placements}, but {layout.forward} in "
                    "another op that reads it; make the file again with `shardwright shard`"
                )
            local = weight.to_local().detach()
            self.leaves[key] = local.requires_grad_(local.is_floating_point())
        return self.leaves[key]

    def gradients(self) -> dict[str, DTensor]:
        """The gradient of each weight, summed over ranks if partial, in the weight's placements."""
        found: dict[str, DTensor] = {}
        for name, weight in self.weights.items():
            arrived = {
                backward: leaf.grad
                for (own, backward), leaf in self.leaves.items()
                if own == name and leaf.grad is not None
            }
            if not arrived:
                continue
            local = self._summed(arrived, tuple(weight.shape), _texts(weight))
            found[name] = DTensor.from_local(
                local, self.position.mesh, weight.placements, run_check=False
            )
        return found

    def _summed(
        self, arrived: dict[Placements, Tensor], shape: tuple[int, ...], held: Placements
    ) -> Tensor:
        """The sum of the gradients, reduced over every axis on which one of them is partial."""
        partial = tuple(
            PARTIAL if any(form[axis] == PARTIAL for form in arrived) else placement
            for axis, placement in enumerate(held)
        )
        total: Tensor | None = None
        for form, gradient in arrived.items():
            local = self._change(gradient, form, partial, shape)
            total = local if total is None else total + local
        assert total is not None  # there is at least one
        return self._change(total, partial, held, shape)

    def _change(
        self, local: Tensor, before: Placements, after: Placements, shape: tuple[int, ...]
    ) -> Tensor:
        steps, form = [], list(before)
        for axis, placement in enumerate(after):
            if form[axis] != placement:
                form[axis] = placement
                steps.append(tuple(form))
        if not steps:
            return local
        return changed(local, Change(source=before, steps=tuple(steps)), shape, self.position)

    def clear(self) -> None:
        """Discard the tensors of the last pass."""
        self.leaves.clear()
        self.outer = _Scope()

    # --- the forward pass ---------------------------------------------------------------------

    def forward(self) -> Tensor:
        """Run the forward pass; returns this rank's loss: the whole loss, or its part of a sum."""
        self.outer = _Scope()
        for step in self.program.steps:
            if isinstance(step, Repeat):
                self._repeat(step)
            else:
                self._run(step, self.outer)
        return self.value(self.last).local

    @property
    def last(self) -> int:
        """The number of the loss."""
        return self.program.graph.ops[-1].outputs[0]

    def value(self, number: int) -> _Made:
        return self.outer.made[number]

    def seed(self) -> Tensor:
        """The initial gradient of the backward pass: 1, or this rank's part of it."""
        loss = self.value(self.last)
        backward = self.answer.calls[loss.op].outputs[loss.output].backward
        return torch.ones_like(loss.local) * float(self.position.is_first(backward))

    def whole(self, number: int) -> Tensor:
        """A tensor of the last forward pass, gathered from all ranks."""
        made = self.value(number)
        layout = self.answer.calls[made.op].outputs[made.output].forward
        shape = self.answer.calls[made.op].shapes[made.output]
        held = DTensor.from_local(
            made.local.detach().contiguous(),
            self.position.mesh,
            dtensor_placements(layout),
            run_check=False,
            shape=torch.Size(shape),
            stride=torch.empty(shape, device="meta").stride(),
        )
        return held.full_tensor()

    def _repeat(self, step: Repeat) -> None:
        scope = _Scope(replaced=dict(step.inputs), prefix=(step.held, step.path))
        first, last = self.program.spans[step.held]
        for op in range(first, last):
            self._run(op, scope)
        for held, own in step.outputs:
            if held in scope.made:
                self.outer.made[own] = scope.made[held]

    def _run(self, number: int, scope: _Scope) -> None:
        op, call = self.program.graph.ops[number], self.program.calls[number]
        placed = self.answer.calls[number]
        with torch.set_grad_enabled(call.has_gradient):
            tensors = tuple(
                self._read(t, op.block, layout, scope)
                for t, layout in zip(op.inputs, placed.inputs, strict=True)
            )
            out = run_local(self._local_call(call, placed, op.inputs, tensors))
        made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        for output, (x, t) in enumerate(zip(made, op.outputs, strict=True)):
            shape, layout = placed.shapes[output], placed.outputs[output]
            if tuple(x.shape) != self.position.local_shape(layout.forward, shape):
                raise MismatchError(
                    f"op {number} ({op.name} of {op.module}) made shape {tuple(x.shape)} on this "
                    f"rank, which is not its part of {shape} as {layout.forward}"
                )
            scope.made[t] = _Made(x, number, output)

    def _read(self, t: int, block: int, layout: PlacedTensor, scope: _Scope) -> Tensor:
        tensor = self.program.graph.tensors[t]
        if tensor.parameter:
            return self._leaf(_renamed(tensor.parameter, scope.prefix), layout)
        made = scope.made.get(t) or self.outer.made.get(scope.replaced.get(t, t))
        if made is None:
            return self.position.part(self._given(scope.replaced.get(t, t), scope), layout.forward)
        if self.answer.calls[made.op].outputs[made.output] == layout:
            conversion = self.conversions.get((block, t, made.op, made.output))
            if conversion is None:
                return made.local
        forms = scope.forms.setdefault((block, t), {})
        if layout not in forms:
            conversion = self.conversions.get((block, t, made.op, made.output))
            if conversion is None or layout not in conversion.used:
                raise MismatchError(
                    f"tensor {t} is needed as {layout.forward} in block {block}, but the file has "
                    "no conversion to it; make it again with `shardwright shard`"
                )
            forms |= fan_out(made.local, conversion, tensor.shape, self.position)
        return forms[layout]

    def _given(self, t: int, scope: _Scope) -> Tensor:
        kind, name = self.program.origins.get(t, ("", ""))
        if kind == "buffer":
            return self.buffers[_renamed(name, scope.prefix)]
        if kind in ("argument", "target"):
            found: Tensor = (self.args if kind == "argument" else self.targets)[int(name)]
            return found
        raise MismatchError(
            f"tensor {t} of {self.answer.model} is made outside of torch's functions (a constant "
            "of the module?); register it as a buffer"
        )

    def _local_call(
        self,
        call: OpCall,
        placed: PlacedCall,
        numbers: tuple[int, ...],
        tensors: tuple[Tensor, ...],
    ) -> LocalCall:
        if call.is_in_place and tensors:
            tensors = (tensors[0].clone(), *tensors[1:])
        given = iter(tensors)
        args, kwargs = tree_map(
            lambda x: next(given) if isinstance(x, TensorSlot) else self._exact(x),
            (call.args, dict(call.kwargs)),
        )
        function = torch.Tensor.float if placed.name in _CASTS else call.function
        return LocalCall(
            name=placed.name,
            function=_written(function) if placed.name == "__setitem__" else function,
            args=args,
            kwargs=kwargs,
            tensors=tensors,
            inputs=placed.inputs,
            outputs=placed.outputs,
            shapes=tuple(self.program.graph.tensors[t].shape for t in numbers),
            made=placed.shapes,
            position=self.position,
            unplanned=self.unplanned,
        )

    def _exact(self, x: Any) -> Any:
        """The argument for this device, in fp32 in place of any other precision."""
        if isinstance(x, torch.dtype) and x.is_floating_point:
            return torch.float32
        if isinstance(x, torch.device) or (isinstance(x, str) and x == "meta"):
            return torch.device(self.position.mesh.device_type)
        return x


def _written(function: Any) -> Any:
    def write(x: Tensor, index: Any, value: Any) -> Tensor:
        function(x, index, value)
        return x

    return write


def _renamed(name: str, prefix: tuple[str, str]) -> str:
    held, own = prefix
    if held and (name == held or name.startswith(f"{held}.")):
        return own + name[len(held) :]
    return name


def _aliases(module: nn.Module) -> dict[str, str]:
    """Name of a parameter -> its first name; tied weights have several."""
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        found[name] = first.setdefault(id(weight), name)
    return found


def _texts(weight: DTensor) -> Placements:
    return tuple(f"S({p.dim})" if isinstance(p, Shard) else "R" for p in weight.placements)
