"""`peak_of_program`: what torch's allocator reserves on nanotron's first rank, tensor by tensor.

What nanotron keeps is known from its code, but what its report prints is what the allocator
reserved, and that depends on the order of events: the gradients of a step lie in blocks that
activations left, the optimizer's states of the first step take pieces of others, and ZeRO-1 gathers
the updated parameters in one block that no activation left behind. So its first rank is run here
against `CachingAllocator`, for two steps; nothing in the order or the sizes is fitted.

Read off github.com/huggingface/nanotron 67c5ebb6 (2024-12-27), the branch of the Ultra-Scale sweep:
models/llama.py (a layer), parallel/tensor_parallel/functional.py (asynchronous reduce-scatter mode,
inputs gathered again into one buffer; cross-entropy), parallel/pipeline_parallel/engine.py (1F1B;
the host waits for a received gradient), optim/gradient_accumulator.py (bf16 gradients of all
parameters until the end of a backward pass, then fp32), optim/zero.py with distributed.py
(all_gather_coalesced: one flat tensor per data-parallel rank; torch's ProcessGroupNCCL gathers them
in one more of all parameters), flash-attn 2's autograd functions, torch's reducer (buckets of 25
MiB) and cuBLAS workspaces (32 MiB on Hopper, one for the forward's thread and one for autograd's).
Launches per operator are counted from the same code.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.training_run.nanotron.caching_allocator import Block, CachingAllocator
from simulator.training_run.nanotron.nanotron_shapes import NanotronShapes

_BUCKET_BYTES = 25 * 2**20
_WORKSPACE_BYTES = 32 * 2**20
# The first step makes the optimizer's states, the second runs beside them; later ones repeat it.
_STEPS = 2
# With more micro-batches than these beyond those in flight nothing new happens.
_STEADY = 3

_Kept = dict[str, Block | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPeak:
    """Bytes: most that was reserved and allocated; is_overfull where a tensor did not fit."""

    reserved_bytes: float
    allocated_bytes: float
    is_overfull: bool


def peak_of_program(
    shapes: NanotronShapes, *, capacity_bytes: float, launches_ahead: int
) -> ProgramPeak:
    """Of the first rank, whose host is ahead of its device by so many launches (0: never)."""
    lasting = shapes.lasting_bytes
    allocator = CachingAllocator(
        capacity_bytes=capacity_bytes - lasting, launches_ahead=launches_ahead
    )
    _Program(shapes=shapes, allocator=allocator).run()
    return ProgramPeak(
        reserved_bytes=allocator.peak_reserved_bytes + lasting,
        allocated_bytes=allocator.peak_allocated_bytes + lasting,
        is_overfull=allocator.is_overfull,
    )


@dataclass(slots=True, kw_only=True)
class _Program:
    shapes: NanotronShapes
    allocator: CachingAllocator
    buffers: dict[str, int] = field(default_factory=dict)
    gradients: dict[str, Block | None] = field(default_factory=dict)
    has_states: bool = False

    def run(self) -> None:
        shapes = self.shapes
        if shapes.buckets:
            self._make_buckets()
        count = min(shapes.num_microbatches, shapes.in_flight + _STEADY)
        for _ in range(_STEPS):
            held: list[list[_Kept]] = []
            for place in range(count):
                held.append(self._forward())
                if place >= shapes.in_flight - 1:
                    self._backward(held.pop(0))
            while held:
                self._backward(held.pop(0))
            self._step()

    def _make_buckets(self) -> None:
        filled = 0
        for _, size in reversed(self.shapes.parameters):
            filled += 2 * size
            if filled >= _BUCKET_BYTES:
                self.allocator.allocate(filled)
                filled = 0
        if filled:
            self.allocator.allocate(filled)

    def _new(self, size_bytes: float, launches: int = 1) -> Block | None:
        block = self.allocator.allocate(size_bytes)
        self.allocator.launch(launches)
        return block

    def _buffer(self, name: str, size_bytes: int) -> None:
        """A tensor that is kept for good once it was made, anew where it was smaller."""
        if self.buffers.get(name, 0) < size_bytes:
            self.allocator.allocate(size_bytes)
            self.buffers[name] = size_bytes

    def _reduce_scattered(self, whole: Block | None) -> Block | None:
        """The rank's part of a tensor that a collective reads; itself where tp is 1."""
        if self.shapes.tp == 1:
            return whole
        part = self._new(self.shapes.shard)
        self.allocator.free(whole, read_by_collective=True)
        return part

    def _free_shared(self, block: Block | None) -> None:
        """A part of the sequence that a collective read or wrote: inputs of an all-gather and
        outputs of a reduce-scatter are recorded on its stream like what is whole."""
        self.allocator.free(block, read_by_collective=self.shapes.tp > 1)

    def _forward(self) -> list[_Kept]:
        s, free = self.shapes, self.allocator.free
        if s.has_embedding:
            hidden = self._reduce_scattered(self._new(s.whole, 4))
        else:
            hidden = self._new(s.shard)
        kept: list[_Kept] = []
        for _ in range(s.num_layers):
            layer, hidden = self._layer_forward(hidden)
            if s.runs_again:
                for name, block in layer.items():
                    if name != "input":
                        free(block)
                layer = {"input": layer["input"]}
            kept.append(layer)
        last: _Kept = {"hidden": hidden}
        if s.has_head:
            last["normed"] = self._new(s.shard)
            if s.tp > 1:
                self._buffer("gathered", s.whole)
            logits = self._new(s.logits, 3)
            wide = self._new(2 * s.logits)
            free(logits)
            last["softmax"] = self._new(2 * s.logits, 20)
            free(wide)
        kept.append(last)
        return kept

    def _layer_forward(self, hidden: Block | None) -> tuple[_Kept, Block | None]:
        s, free = self.shapes, self.allocator.free
        kept: _Kept = {"input": hidden, "normed": self._new(s.shard)}
        if s.tp > 1:
            self._buffer("gathered", s.whole)
        projected = self._new(s.query + s.key_value, 4)
        self._buffer("workspace of the forward pass", _WORKSPACE_BYTES)
        kept["query, key and value"] = self._new(s.query + s.key_value)
        free(projected)
        joined = self._new(s.key_value)
        kept["key and value"] = self._new(s.key_value, 9)
        free(joined)
        kept["attention"] = self._new(s.query)
        kept["sums"] = self._new(s.softmax_sums, 2)
        turned = self._new(s.query, 0) if s.is_batched else None
        out = self._new(s.whole, 2)
        free(turned)
        out = self._reduce_scattered(out)
        kept["middle"] = self._new(s.shard)
        self._free_shared(out)
        kept["normed middle"] = self._new(s.shard)
        kept["gate and up"] = self._new(2 * s.inner, 4)
        kept["activated"] = self._new(s.inner)
        kept["product"] = self._new(s.inner)
        out = self._reduce_scattered(self._new(s.whole))
        following = self._new(s.shard)
        self._free_shared(out)
        return kept, following

    def _gradient(self, name: str, elements: int) -> None:
        """bf16, kept to the end of the backward pass; added where the weight is used twice."""
        block = self._new(2 * elements)
        if name in self.gradients:
            self.allocator.free(block)
        else:
            self.gradients[name] = block

    def _backward(self, kept: list[_Kept]) -> None:
        s, free = self.shapes, self.allocator.free
        last = kept.pop()
        if s.has_head:
            gradient = self._head_backward(last)
        else:
            self.allocator.synchronize()
            gradient = self._new(s.shard, 0)
        free(last["hidden"])
        for layer in reversed(range(s.num_layers)):
            tensors = kept.pop()
            if s.runs_again:
                tensors, following = self._layer_forward(tensors["input"])
                free(following)
            gradient = self._layer_backward(layer, tensors, gradient)
        if s.has_embedding:
            whole = None
            if s.tp > 1:
                self._buffer("gathered", s.whole)
                whole = self._new(s.whole)
            self._gradient("embedding", s.table)
            free(whole, read_by_collective=True)
        free(gradient)
        for block in self.gradients.values():
            free(block)
            self.allocator.launch()
        self.gradients = {}

    def _head_backward(self, last: _Kept) -> Block | None:
        s, free = self.shapes, self.allocator.free
        logits = self._new(s.logits, 5)
        free(last["softmax"])
        whole = self._new(s.whole, 3)
        self._buffer("workspace of the backward pass", _WORKSPACE_BYTES)
        part = self._new(s.shard, 0) if s.tp > 1 else whole
        self._gradient("embedding" if s.is_tied else "head", s.table)
        if s.tp > 1:
            free(whole, read_by_collective=True)
        free(logits)
        self._free_shared(last["normed"])
        gradient = self._new(s.shard, 2)
        self._free_shared(part)
        return gradient

    def _layer_backward(self, layer: int, kept: _Kept, gradient: Block | None) -> Block | None:
        s, free = self.shapes, self.allocator.free
        if s.tp > 1:
            self._buffer("gathered gradient", s.whole)
        product = self._new(s.inner, 4)
        self._buffer("workspace of the backward pass", _WORKSPACE_BYTES)
        self._gradient(f"down {layer}", s.down)
        free(kept["product"])
        activated, up = self._new(s.inner), self._new(s.inner)
        free(product)
        gate = self._new(s.inner)
        free(activated)
        free(kept["activated"])
        both = self._new(2 * s.inner)
        free(gate)
        free(up)
        free(kept["gate and up"])
        gradient = self._input_gradient(
            f"gate and up {layer}",
            2 * s.down,
            both,
            kept["normed middle"],
            kept["middle"],
            gradient,
        )
        attention = self._new(s.query, 4)
        turned = self._new(s.query, 0) if s.is_batched else None
        self._gradient(f"out {layer}", s.out)
        free(turned)
        query, key = self._new(s.query), self._new(s.key_value / 2)
        value, summed = self._new(s.key_value / 2), self._new(2 * s.query)
        free(summed)
        for block in (attention, kept["attention"], kept["sums"]):
            free(block)
        joined = self._new(s.key_value)
        for block in (key, value, kept["key and value"]):
            free(block)
        unrotated = self._new(s.key_value, 2)
        free(joined)
        stacked = self._new(s.query + s.key_value, 3)
        for block in (unrotated, query, kept["query, key and value"]):
            free(block)
        turned = self._new(s.query + s.key_value)
        free(stacked)
        return self._input_gradient(
            f"query, key and value {layer}",
            s.projection,
            turned,
            kept["normed"],
            kept["input"],
            gradient,
        )

    def _input_gradient(
        self,
        name: str,
        weight: int,
        gradient_of_output: Block | None,
        normed: Block | None,
        before_norm: Block | None,
        residual: Block | None,
    ) -> Block | None:
        """Backward of a column-parallel matmul and the norm before it, added to the residual's."""
        s, free = self.shapes, self.allocator.free
        whole = self._new(s.whole, 2)
        part = self._new(s.shard) if s.tp > 1 else whole
        self._gradient(name, weight)
        if s.tp > 1:
            free(whole, read_by_collective=True)
        free(gradient_of_output)
        self._free_shared(normed)
        of_norm = self._new(s.shard, 2)
        self._free_shared(part)
        free(before_norm)
        added = self._new(s.shard)
        free(of_norm)
        self._free_shared(residual)
        return added

    def _step(self) -> None:
        s, allocator = self.shapes, self.allocator
        allocator.synchronize()
        if not self.has_states:
            self.has_states = True
            for _, size in s.parameters:
                allocator.allocate(4 * size // s.state_ranks)
                allocator.allocate(4 * size // s.state_ranks)
        if s.state_ranks > 1:
            part = 2 * s.num_parameters // s.state_ranks
            blocks = [allocator.allocate(part) for _ in range(s.state_ranks + 1)]
            blocks.append(allocator.allocate(part * s.state_ranks))
            for block in reversed(blocks):
                allocator.free(block)
