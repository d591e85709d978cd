"""The blocks of a traced pass: ops, parameters, saved tensors, inputs and outputs."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from profiles.model.graph import (
    Block,
    Branch,
    OpKind,
    Parameter,
    Phase,
    TensorSpec,
    running_peak,
    with_kind,
)
from profiles.model.tracing.trace_block_boundaries import structure
from profiles.model.tracing.trace_ops import dtype_name
from profiles.model.tracing.trace_pass import TracedPass, path_in_block
from profiles.model.tracing.trace_recorder import changes


class TracedBlocks:
    """The blocks of a pass that has run.

    trusted  repeated blocks are known to be equal: the last of a group is not compared
    alone    members at the end of a group that were traced themselves
    assumed  blocks in which an assumed truth value decides which code runs
    """

    def __init__(
        self,
        traced: TracedPass,
        *,
        trusted: bool,
        alone: int = 1,
        assumed: AbstractSet[int] = frozenset(),
    ) -> None:
        self.traced, self.cuts = traced, traced.cuts
        self.segments, self.storages = traced.recorder.segments, traced.recorder.storages
        self.trusted, self.alone, self.assumed = trusted, alone, assumed
        self.consumers = traced.consumers()
        self.specs = traced.crossing_specs()
        self.owners = self._owners()
        self.calls = self._calls()
        # In a graph with branches several blocks may need a tensor.
        self.freed = set() if self.branches() else self.consumers.keys() - traced.alive

    def branches(self) -> tuple[Branch, ...]:
        """All tensors between blocks, or none if each goes only to the next block."""
        found = self.traced.branches()
        plain = all(branch.consumers == (branch.producer + 1,) for branch in found)
        return () if plain else found

    def blocks(self) -> list[Block] | None:
        """The block of every segment, or None if a skipped block may differ from the traced one."""
        made = {cut.entry: self._block(i) for i, cut in enumerate(self.cuts) if not cut.stub_of}
        last: dict[str, int] = {}
        for index, cut in enumerate(self.cuts):
            if cut.stub_of:
                if cut.stub_of not in made or not self._alike(index, cut.stub_of):
                    return None
                last[cut.stub_of] = index
        if not self.trusted and not all(
            self._last_agrees(index, model, made[model]) for model, index in last.items()
        ):
            return None
        return [made[cut.stub_of or cut.entry] for cut in self.cuts]

    def _alike(self, index: int, model: str) -> bool:
        """Whether the code around a skipped block is the same as around the traced one. Ops inside
        the skipped one are casts of its inputs."""
        position = self.traced.entries.index(model)
        glue, own = (
            [
                op.name
                for op in self.segments[place].ops
                if op.phase is Phase.FORWARD and not f"{op.module}.".startswith(f"{entry}.")
            ]
            for place, entry in ((index, self.cuts[index].entry), (position, model))
        )
        return glue == own and self.cuts[index].specs == self.cuts[position].specs

    def _last_agrees(self, last_stub: int, entry: str, model: Block) -> bool:
        """Whether the skipped blocks may be assumed equal to the traced block `model`: the next
        traced block of the same structure must equal it. If `alone` blocks are traced at the end,
        they may differ from it in their backward, and the last one also in ops that the model runs
        after it. Otherwise blocks of one structure might alternate."""
        part = self.traced.built.module.get_submodule
        own = structure(part(entry))
        after = range(last_stub + 1, len(self.cuts))
        same = [index for index in after if structure(part(self.cuts[index].entry)) == own]
        if len(same) < self.alone:
            return False
        behind = [self._block(index) for index in same[: self.alone]]
        count = len(model.forward_ops)
        return behind[0].kind == model.kind and all(
            (x.forward_ops[:count], x.parameters) == (model.forward_ops, model.parameters)
            and (x is behind[-1] or len(x.forward_ops) == count)
            for x in behind
        )

    def _owners(self) -> dict[int, int]:
        """Parameter index -> the first segment that uses it (0 if none does)."""
        owners: dict[int, int] = {}
        for index, segment in enumerate(self.segments):
            for parameter in segment.parameters:
                owners.setdefault(parameter, index)
        entries = {cut.entry: i for i, cut in reversed(list(enumerate(self.cuts))) if cut.entry}
        for parameter, name in enumerate(self.traced.fakes.names):
            if parameter not in owners:
                parts = name.split(".")
                inside = (entries.get(".".join(parts[:n])) for n in range(1, len(parts)))
                owners[parameter] = min((i for i in inside if i is not None), default=0)
        return owners

    def _calls(self) -> dict[tuple[str, int], tuple[int, int]]:
        """(parameter, block) -> `Parameter.calls`, for units that are called several times.

        FSDP2 frees the weights after the backward of a call, unless no argument has a gradient. A
        unit that shares a weight with other code belongs to the root, which is called once
        (executor/parallelize.py, `without_shared_weights`).
        """
        several = {p: c for p, c in self.traced.calls.items() if len(c) > 1}
        if not several:
            return {}
        holders: dict[int, set[str]] = {}
        for name, p in self.traced.built.module.named_parameters(remove_duplicate=False):
            unit = next((path for path in several if name.startswith(f"{path}.")), "")
            holders.setdefault(id(p), set()).add(unit)
        shared = {unit for units in holders.values() if len(units) > 1 for unit in units}
        found: dict[tuple[str, int], tuple[int, int]] = {}
        for path in several.keys() & self.traced.units - shared:
            at = [index for index, _ in several[path]]
            # Weights of the first call are always freed at the end of the backward.
            freed = [index for i, (index, given) in enumerate(several[path]) if given or not i]
            for name in self.traced.fakes.names:
                if name.startswith(f"{path}."):
                    for index in set(at):
                        found[name, index] = (at.count(index), freed.count(index))
        return found

    def _block(self, index: int) -> Block:
        cut, segment = self.cuts[index], self.segments[index]
        crossing = set(self.consumers)
        boundary = crossing | {n for found in self.traced.gradients.values() for n in found}
        following = self.cuts[index + 1].numbers if index + 1 < len(self.cuts) else ()
        made = [n for n in crossing if self.storages[n].segment == index]
        made.sort(key=lambda n: (following.index(n) if n in following else len(following), n))
        other_inputs = [
            n for n, by in self.consumers.items() if index in by and n not in cut.numbers
        ]
        ops = [replace(op, module=path_in_block(op.module, cut.entry)) for op in segment.ops]
        attention, attention_bytes = self._attention(index, boundary)
        forward = changes(segment.forward_events, boundary)
        backward = changes(self._arriving(index, made) + segment.backward_events, crossing)
        used = set(segment.parameters) | {p for p, owner in self.owners.items() if owner == index}
        grouped = any("grouped" in op.name for op in ops)
        label = "+".join(dict.fromkeys(cut.labels)) or type(self.traced.built.module).__name__
        return with_kind(
            Block(
                kind="",
                label=label,
                inputs=(*cut.specs, *(self.specs[n] for n in other_inputs)),
                outputs=tuple(self.specs[n] for n in made),
                forward_ops=tuple(op for op in ops if op.phase is Phase.FORWARD),
                backward_ops=tuple(op for op in ops if op.phase is Phase.BACKWARD),
                parameters=tuple(self._parameter(p, index) for p in sorted(used)),
                saved=tuple(self.traced.saved[index]),
                attention_module=attention,
                attention_input_bytes=attention_bytes,
                forward_peak_bytes=running_peak(forward),
                backward_peak_bytes=running_peak(backward),
                forward_changes=forward,
                backward_changes=backward,
                collectives=tuple(self.traced.collectives[index]),
                expected_shapes=index in self.traced.expected or grouped,
                assumed_values=index in self.assumed,
                freed_input_bytes=sum(
                    self.storages[n].memory_bytes for n in cut.numbers if n in self.freed
                ),
                table_bytes=sum(self.storages[n].memory_bytes for n in self._tables(index)),
                lent_bytes=sum(
                    self.storages[n].memory_bytes
                    for n in set().union(*map(self._tables, range(index + 1, len(self.cuts))))
                    if self.storages[n].segment == index
                ),
                weight_input_bytes=sum(self.storages[n].memory_bytes for n in segment.operands),
                weight_output_bytes=segment.product_bytes,
            )
        )

    def _tables(self, index: int) -> set[int]:
        """The storages of a block's `table_bytes`."""
        return (self.segments[index].tables & self.traced.alive) - self.consumers.keys()

    def _arriving(self, index: int, made: list[int]) -> list[tuple[int, int]]:
        """The gradients of a block's outputs, with which its backward begins."""
        numbers = {g for n in made for g in self.traced.gradients.get(n, ())}
        records = [self.storages[n] for n in sorted(numbers)]
        return [(r.number, r.memory_bytes) for r in records if r.segment != index]

    def _parameter(self, number: int, index: int) -> Parameter:
        entry, elsewhere = self.cuts[index].entry, self.owners[number] != index
        name, tensor = self.traced.fakes.names[number], self.traced.fakes.tensors[number]
        outside = bool(entry) and not name.startswith(f"{entry}.")
        return Parameter(
            name=path_in_block(name, entry),
            spec=TensorSpec(shape=tuple(tensor.shape), dtype=dtype_name(tensor.dtype)),
            full_shape=self.traced.sharding.full_shape(name, tuple(tensor.shape)),
            trainable=tensor.requires_grad,
            tied_to=name if elsewhere else "",
            whole_name=name if outside and not elsewhere else None,
            summed=name in self.traced.sharding.summed or None,
            calls=self.calls.get((name, index)),
        )

    def _attention(self, index: int, boundary: set[int]) -> tuple[str, int]:
        """Path of the attention module in a block, and bytes of its inputs."""
        entry, inputs = self.cuts[index].entry, self.traced.attention_inputs
        for op in self.segments[index].ops:
            if op.kind is not OpKind.ATTENTION and op.name != "_softmax":
                continue
            path = op.module
            while path and path not in inputs:
                path = path.rpartition(".")[0]
            if path and path != entry:
                numbers = set(inputs[path]) - boundary - self.traced.alive
                size = sum(self.storages[n].memory_bytes for n in numbers)
                return path_in_block(path, entry), size
        return "", 0
