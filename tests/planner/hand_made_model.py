"""A model with an embedding, equal layers and a head, whose graphs are written down, not traced."""

from __future__ import annotations

from dataclasses import replace

from profiles.model.graph import (
    Block,
    BlockRef,
    Collective,
    MatmulShape,
    ModelGraph,
    Op,
    OpKind,
    Parameter,
    Phase,
    SavedTensor,
    TensorSpec,
)

TOKENS, WIDTH, VOCABULARY = 2048, 1024, 32000


class HandMadeModel:
    """An embedding, equal layers of two products, and a head; written down, not traced.

    A layer: [tokens, width] x [width, 4 width] and back; its first product may be recomputed alone
    (as `attention`). Tensor parallelism splits the inner dimension. `frozen`: the embedding and the
    first product of every layer are not trained. `freed`: no backward needs the inputs of blocks;
    layers read tables of half their size.
    If the head's weight is `tied`, one process adds its gradient to the embedding's.
    """

    name = "hand-made"
    content_hash = "hand-made"
    tensor_parallel = (("layers.*.first", "column"), ("layers.*.second", "row"))
    why_not_tensor_parallel = ""

    def __init__(self, layers, *, tied=False, frozen=False, freed=False, width=WIDTH):
        self.layers, self.tied, self.frozen, self.width = layers, tied, frozen, width
        self.freed = freed
        self.tp_degrees = (1, 2, 4, 8)
        self.tied_parameters = (("embed.weight", "head.weight"),) if tied else ()
        self._graphs = {}

    def at(self, micro_batch, tp=1):
        key = (micro_batch, tp)
        if key not in self._graphs:
            self._graphs[key] = self._graph(micro_batch, tp)
        return self._graphs[key]

    def _graph(self, batch, tp):
        rows, width, inner = batch * TOKENS, self.width, 4 * self.width // tp
        edge = TensorSpec(shape=(batch, TOKENS, width), dtype="bfloat16")
        moved, table = 2 * rows * width, 2 * VOCABULARY * width
        freed, grown = moved if self.freed else 0, (3 if self.tied else 2) * table
        added = replace(memory_op("add", Phase.BACKWARD, "embed", table), read_bytes=2 * table)
        embed = Block(
            kind=f"embed{batch}",
            label="Embedding",
            inputs=(),
            outputs=(edge,),
            forward_ops=(memory_op("aten.embedding", Phase.FORWARD, "", moved),),
            backward_ops=(
                memory_op("aten.embedding_backward", Phase.BACKWARD, "", moved),
                *((added,) if self.tied else ()),
            ),
            backward_changes=(grown, -grown),
            parameters=(parameter("embed.weight", (VOCABULARY, width), trainable=not self.frozen),),
            saved=(SavedTensor(module="", memory_bytes=8 * rows),),
            attention_module="",
            attention_input_bytes=0,
            forward_peak_bytes=2 * moved,
            backward_peak_bytes=grown,
        )
        layer = Block(
            kind=f"layer{batch}-{tp}",
            label="Layer",
            inputs=(edge,),
            outputs=(edge,),
            forward_ops=(
                product(Phase.FORWARD, "first", rows, inner, width),
                product(Phase.FORWARD, "second", rows, width, inner),
            ),
            backward_ops=tuple(
                product(Phase.BACKWARD, name, *shape)
                for name, shape in (
                    ("second", (rows, inner, width)),
                    ("second", (inner, width, rows)),
                    ("first", (rows, width, inner)),
                    ("first", (width, inner, rows)),
                )
            ),
            parameters=(
                parameter("first.weight", (width, inner), trainable=not self.frozen),
                parameter("second.weight", (inner, width)),
            ),
            saved=(
                SavedTensor(module="first", memory_bytes=2 * rows * inner),
                SavedTensor(module="second", memory_bytes=2 * rows * inner),
            ),
            attention_module="first",
            attention_input_bytes=moved,
            freed_input_bytes=freed,
            table_bytes=freed // 2,
            forward_peak_bytes=5 * rows * inner,
            backward_peak_bytes=6 * rows * inner,
            collectives=()
            if tp == 1
            else tuple(
                Collective(operation="all_reduce", phase=phase, module=name, size_bytes=moved)
                for phase, name in ((Phase.FORWARD, "second"), (Phase.BACKWARD, "first"))
            ),
        )
        logits = 2 * rows * VOCABULARY
        head = Block(
            kind=f"head{batch}",
            label="Head",
            inputs=(edge,),
            outputs=(),
            forward_ops=(product(Phase.FORWARD, "head", rows, VOCABULARY, width),),
            backward_ops=(
                product(Phase.BACKWARD, "head", rows, width, VOCABULARY),
                product(Phase.BACKWARD, "head", width, VOCABULARY, rows),
            ),
            parameters=(
                parameter("head.weight", (VOCABULARY, width), "embed.weight" if self.tied else ""),
            ),
            saved=(SavedTensor(module="head", memory_bytes=logits),),
            attention_module="",
            attention_input_bytes=0,
            freed_input_bytes=freed,
            forward_peak_bytes=2 * logits,
            backward_peak_bytes=2 * logits,
        )
        names = [f"layers.{index}" for index in range(self.layers)]
        return ModelGraph(
            name=self.name,
            source="hand-made",
            micro_batch=batch,
            sequence_length=TOKENS,
            dtype="bfloat16",
            tp=tp,
            kinds=(embed, layer, head),
            chain=(
                BlockRef(entry="", kind=0),
                *(BlockRef(entry=name, kind=1) for name in names),
                BlockRef(entry="head", kind=2),
            ),
            sample_bytes=16 * TOKENS,
        )


def product(phase, module, m, n, k):
    return Op(
        name="aten.mm",
        kind=OpKind.MATMUL,
        phase=phase,
        module=module,
        dtype="bfloat16",
        work_flop=2 * m * n * k,
        read_bytes=2 * (m * k + k * n),
        written_bytes=2 * m * n,
        matmul=MatmulShape(batch=1, m=m, n=n, k=k),
    )


def memory_op(name, phase, module, moved):
    return Op(
        name=name,
        kind=OpKind.MEMORY,
        phase=phase,
        module=module,
        dtype="bfloat16",
        work_flop=0,
        read_bytes=moved,
        written_bytes=moved,
    )


def parameter(name, shape, tied_to="", *, trainable=True):
    spec = TensorSpec(shape=shape, dtype="bfloat16")
    return Parameter(name=name, spec=spec, full_shape=shape, tied_to=tied_to, trainable=trainable)
