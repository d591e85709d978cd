"""The loops of an op: the ways in which its work can be cut.

A loop is an index that the op's work runs over, with the dim of each input and output that it
indexes (None: the tensor lacks it). Cutting it over the ranks of an axis splits the tensors that
have it; an input that lacks it is needed whole and gets a partial gradient; an output that lacks it
is a sum over it and comes out partial. Every placement rule of this package is such a list. As in
Alpa (Zheng et al., OSDI 2022, section 4.1, table 3: the loops of a batched matmul) and in DTensor's
einsum rules; ops that are not listed are only run replicated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from profiles.model.graph import DTYPE_BYTES
from profiles.model.op_graph import GraphOp, GraphTensor

Dims = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A collective inside an op.

    elements, dtype   of the full buffer
    phase             `forward` or `backward`
    without           dims of the first input: where another axis cuts one, the buffer is as much
                      smaller
    """

    operation: str
    elements: int
    dtype: str
    phase: str
    without: tuple[int, ...] = ()

    @property
    def memory_bytes(self) -> float:
        return float(self.elements * DTYPE_BYTES[self.dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """An index of an op's work.

    role       what it is in the kernel: `b`, `m`, `n` or `k` of a matmul or convolution, `batch`,
               `heads` or `rows` of attention, `` elsewhere
    inputs, outputs   the dim of each tensor that it indexes
    exchanged  collectives that cutting it needs inside the op
    whole      inputs that lack it and whose gradient every rank has whole nevertheless: what is
               added once to a sum over ranks (a bias)
    """

    role: str
    inputs: Dims
    outputs: Dims
    exchanged: tuple[Exchange, ...] = ()
    is_sum: bool = True
    whole: tuple[int, ...] = ()


Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    op: GraphOp
    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]

    def input_shape(self, index: int) -> tuple[int, ...]:
        return self.inputs[index].shape

    @property
    def out(self) -> tuple[int, ...]:
        return self.outputs[0].shape

    @property
    def dims(self) -> tuple[int, ...]:
        """The `dim` option, () where there is none."""
        found = self.op.option("dim")
        return found if isinstance(found, tuple) else ()


def loops_of(op: GraphOp, tensors: tuple[GraphTensor, ...]) -> tuple[Loop, ...]:
    """Every way to cut the op; () where it is not known."""
    call = _Call(
        op=op,
        inputs=tuple(tensors[t] for t in op.inputs),
        outputs=tuple(tensors[t] for t in op.outputs),
    )
    if op.strides:
        return _view(call)
    rule = RULES.get(op.name)
    return rule(call) if rule is not None and call.inputs else ()


def passes_partial(op: GraphOp, tensors: tuple[GraphTensor, ...]) -> bool:
    """Whether summands in give summands out: the op is linear in all its tensor inputs at once."""
    if op.strides or op.name in _LINEAR:
        return True
    count = len(op.inputs)
    if op.name in ("add", "sub", "add_"):
        return count == 2
    return op.name in ("mul", "div", "truediv") and count == 1


_LINEAR = frozenset(("neg", "to", "float", "bfloat16", "half", "clone", "contiguous", "reshape"))
_LINEAR |= {"cat", "concat", "stack", "sum", "mean", "permute", "transpose", "type_as"}


# --- views ------------------------------------------------------------------------------------


def _view(call: _Call) -> tuple[Loop, ...]:
    """Dims whose outermost part is that of a dim of the input.

    Over a contiguous input a dim of n elements at stride s spans n s elements; a cut of it is a cut
    of the input's dim of equal span (its outermost part, where dims are merged or divided).
    """
    shape = call.input_shape(0)
    inner = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    spans: dict[int, int] = {}
    for d, n in enumerate(shape):
        if n > 1:
            spans[n * inner[d]] = d
    rest: Dims = (None,) * (len(call.inputs) - 1)
    found: dict[int, list[int | None]] = {}
    for number, strides in enumerate(call.op.strides):
        out = call.outputs[number].shape
        for e, (n, stride) in enumerate(zip(out, strides, strict=True)):
            source = spans.get(n * stride)
            if source is not None and n > 1:
                found.setdefault(source, [None] * len(call.outputs))[number] = e
    return tuple(
        Loop(role="", inputs=(d, *rest), outputs=tuple(outs))
        for d, outs in sorted(found.items())
        if None not in outs
    )


# --- element-wise and over dims ---------------------------------------------------------------


def _elementwise(call: _Call, *, without: tuple[int, ...] = ()) -> tuple[Loop, ...]:
    """One loop per dim of the (broadcast) output."""
    out = call.out
    loops = []
    for e, n in enumerate(out):
        if n == 1 or e in without:
            continue
        dims: list[int | None] = []
        for x in call.inputs:
            d = e - (len(out) - len(x.shape))
            dims.append(d if d >= 0 and x.shape[d] == n else None)
        same = all(len(x.shape) == len(out) and x.shape[e] == n for x in call.outputs)
        if same:
            loops.append(Loop(role="", inputs=tuple(dims), outputs=(e,) * len(call.outputs)))
    return tuple(loops)


def _along_dims(call: _Call) -> tuple[Loop, ...]:
    """As element-wise, without the dims that the op works along; none known: the last."""
    return _elementwise(call, without=call.dims or (len(call.out) - 1,))


def _joined(call: _Call) -> tuple[Loop, ...]:
    return _elementwise(call, without=call.dims)


def _normalised(call: _Call) -> tuple[Loop, ...]:
    """Normalisation over the last dims: the others are loops, weight and bias lack them."""
    option = call.op.option("normalized")
    count = option[0] if isinstance(option, tuple) else 1
    rank = len(call.out)
    rest: Dims = (None,) * (len(call.inputs) - 1)
    return tuple(
        Loop(role="", inputs=(d, *rest), outputs=(d,))
        for d in range(rank - count)
        if call.out[d] > 1
    )


def _reduced(call: _Call) -> tuple[Loop, ...]:
    """A reduction: kept dims, and for sums the reduced ones, over which the output is partial."""
    shape, out = call.input_shape(0), call.out
    gone = call.dims or tuple(range(len(shape)))
    keeps = len(out) == len(shape)
    sums = call.op.name in ("sum", "mean")
    loops = []
    for d, n in enumerate(shape):
        if n == 1:
            continue
        if d not in gone:
            e = d if keeps else d - sum(g < d for g in gone)
            loops.append(Loop(role="", inputs=(d,), outputs=(e,) * len(call.outputs)))
        elif sums:
            loops.append(Loop(role="", inputs=(d,), outputs=(None,)))
    return tuple(loops)


# --- products ---------------------------------------------------------------------------------


def _linear_layer(call: _Call) -> tuple[Loop, ...]:
    """x [..., k], weight [n, k], bias [n]."""
    rank = len(call.input_shape(0))
    biased = len(call.inputs) > 2
    rows = [
        Loop(role="m", inputs=(d, None, None)[: 2 + biased], outputs=(d,)) for d in range(rank - 1)
    ]
    column = Loop(role="n", inputs=(None, 0, 0)[: 2 + biased], outputs=(rank - 1,))
    row = Loop(
        role="k", inputs=(rank - 1, 1, None)[: 2 + biased], outputs=(None,), whole=(2,)[:biased]
    )
    return (*rows, column, row)


def _biased_product(call: _Call) -> tuple[Loop, ...]:
    """addmm: bias [n], x [m, k], weight [k, n]."""
    if len(call.inputs) != 3 or len(call.input_shape(0)) != 1:
        return ()
    return (
        Loop(role="m", inputs=(None, 0, None), outputs=(0,)),
        Loop(role="n", inputs=(0, None, 1), outputs=(1,)),
        Loop(role="k", inputs=(None, 1, 0), outputs=(None,), whole=(0,)),
    )


def _product(call: _Call) -> tuple[Loop, ...]:
    """[..., m, k] x [..., k, n]: as einsum, batch dims aligned from the right."""
    a, b = call.input_shape(0), call.input_shape(1)
    if len(a) < 2 or len(b) < 2:
        return ()
    letters = "abcdefgh"[: len(call.out) - 2]
    first = letters[len(letters) - (len(a) - 2) :] + "mk"
    second = letters[len(letters) - (len(b) - 2) :] + "kn"
    return _einsum_loops(call, f"{first},{second}->{letters}mn")


def _einsum(call: _Call) -> tuple[Loop, ...]:
    equation = call.op.option("equation")
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        return ()
    return _einsum_loops(call, equation)


def _einsum_loops(call: _Call, equation: str) -> tuple[Loop, ...]:
    left, _, out = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(call.inputs) or any(len(set(t)) != len(t) for t in terms):
        return ()
    loops = []
    for letter in dict.fromkeys("".join(terms)):
        dims: list[int | None] = []
        for term, x in zip(terms, call.inputs, strict=True):
            at = term.find(letter)
            dims.append(at if at >= 0 and x.shape[at] > 1 else None)
        within = [term for term in terms if letter in term]
        if letter not in out:
            role = "k"
        elif len(within) > 1:
            role = "b"
        else:
            role = "m" if within[0] is terms[0] else "n"
        if any(d is not None for d in dims):
            at = out.find(letter)
            loops.append(Loop(role=role, inputs=tuple(dims), outputs=(at if at >= 0 else None,)))
    return tuple(loops)


def _convolution(call: _Call) -> tuple[Loop, ...]:
    """x [batch, in, ...], weight [out, in / groups, ...], bias [out]."""
    option = call.op.option("groups")
    groups = option[0] if isinstance(option, tuple) else 1
    count = 2 + (len(call.inputs) > 2)
    batch = Loop(role="m", inputs=(0, None, None)[:count], outputs=(0,))
    if groups == 1:
        column = Loop(role="n", inputs=(None, 0, 0)[:count], outputs=(1,))
        row = Loop(role="k", inputs=(1, 1, None)[:count], outputs=(None,), whole=(2,)[: count - 2])
        return (batch, column, row)
    if groups == call.input_shape(0)[1]:
        return (batch, Loop(role="n", inputs=(1, 0, 0)[:count], outputs=(1,)))
    return (batch,)


def _embedding(call: _Call) -> tuple[Loop, ...]:
    """tokens [...], table [vocabulary, hidden]: a split vocabulary looks up zeros elsewhere."""
    rank = len(call.input_shape(0))
    tokens = [Loop(role="", inputs=(d, None), outputs=(d,)) for d in range(rank)]
    hidden = Loop(role="", inputs=(None, 1), outputs=(rank,))
    vocabulary = Loop(role="", inputs=(None, 0), outputs=(None,))
    return (*tokens, hidden, vocabulary)


def _grouped(call: _Call) -> tuple[Loop, ...]:
    """x [rows by expert, k], weight [experts, k, n], offsets [experts].

    Cutting the experts cuts the rows with them: the experts' shares are taken to be equal, as they
    are traced (balanced routing).
    """
    if len(call.input_shape(0)) != 2 or len(call.input_shape(1)) != 3:
        return ()
    rest: Dims = (None,) * (len(call.inputs) - 2)
    return (
        Loop(role="b", inputs=(0, 0, *rest), outputs=(0,)),
        Loop(role="n", inputs=(None, 2, *rest), outputs=(1,)),
        Loop(role="k", inputs=(1, 1, *rest), outputs=(None,)),
    )


def _rows_taken(call: _Call) -> tuple[Loop, ...]:
    """x[index], rows in another order: index [rows], x [any, ...].

    Rows of the output are cut with x whole, or with x cut too: then each rank sends what it has to
    where it belongs, an all-to-all each way (the dispatch of experts, GShard, arXiv 2006.16668,
    section 3.3; equal shares again). For that every rank must know who wants what: index whole.
    """
    if len(call.inputs) != 2 or len(call.input_shape(1)) != 1:
        return ()
    x, rows = call.input_shape(0), call.input_shape(1)[0]
    if call.out != (rows, *x[1:]):
        return ()
    out = call.outputs[0]
    passes = ("forward", "backward") if out.needs_gradient else ("forward",)
    exchanged = tuple(
        Exchange(
            operation="all_to_all",
            elements=out.num_elements,
            dtype=out.dtype,
            phase=phase,
            without=tuple(range(1, len(x))),
        )
        for phase in passes
    )
    return (
        Loop(role="", inputs=(None, 0), outputs=(0,)),
        Loop(role="", inputs=(0, None), outputs=(0,), exchanged=exchanged),
        *(Loop(role="", inputs=(d, None), outputs=(d,)) for d in range(1, len(x))),
    )


# --- attention, loss, normalisation over the batch, windows -------------------------------------


def _attention(call: _Call) -> tuple[Loop, ...]:
    """q [batch, heads, rows, d], k and v [batch, kv heads, columns, d], then a mask.

    Heads are cut with their key-value heads, or, where there are fewer of those than ranks, with
    all of k and v on every rank. Rows of q may be cut alone (context parallelism by gathered keys
    and values, Llama 3, arXiv 2407.21783, section 3.3.2).
    """
    if len(call.inputs) < 3 or len(call.out) != 4:
        return ()
    mask = call.inputs[3].shape if len(call.inputs) > 3 else ()

    def at(dim: int) -> Dims:
        if not mask:
            return ()
        d = dim - (4 - len(mask))
        whole = d >= 0 and mask[d] == call.out[dim] and mask[d] > 1
        return (d if whole else None,)

    batch = Loop(role="batch", inputs=(0, 0, 0, *at(0)), outputs=(0,))
    heads = Loop(role="heads", inputs=(1, 1, 1, *at(1)), outputs=(1,))
    shared = Loop(role="heads", inputs=(1, None, None, *at(1)), outputs=(1,))
    rows = Loop(role="rows", inputs=(2, None, None, *at(2)), outputs=(2,))
    return (batch, heads, shared, rows)


def _cross_entropy(call: _Call) -> tuple[Loop, ...]:
    """Scalar loss of logits [rows, classes] and targets [rows].

    A split vocabulary exchanges the rows' maximum, sum of exponentials and target logit in fp32
    (Megatron-LM, arXiv 1909.08053, section 3; vocab_parallel_cross_entropy), nothing backward.
    """
    logits = call.input_shape(0)
    if len(logits) != 2 or call.out != () or len(call.inputs) != 2:
        return ()
    numbers = Exchange(
        operation="all_reduce",
        elements=logits[0],
        dtype="float32",
        phase="forward",
        without=(0,),
    )
    return (
        Loop(role="", inputs=(0, 0), outputs=(None,)),
        Loop(
            role="",
            inputs=(1, None),
            outputs=(None,),
            exchanged=(numbers,) * 3,
            is_sum=False,
        ),
    )


def _batch_norm(call: _Call) -> tuple[Loop, ...]:
    """Channels; or the batch, with means and variances summed over ranks each way (SyncBatchNorm,
    torch documentation)."""
    rest = len(call.inputs) - 1
    channels = call.input_shape(0)[1]
    exchanged = tuple(
        Exchange(
            operation="all_reduce",
            elements=2 * channels,
            dtype="float32",
            phase=phase,
            without=(1,),
        )
        for phase in ("forward", "backward")
    )
    return (
        Loop(role="", inputs=(1, *(0,) * rest), outputs=(1,)),
        Loop(role="", inputs=(0, *(None,) * rest), outputs=(0,), exchanged=exchanged),
    )


def _group_norm(call: _Call) -> tuple[Loop, ...]:
    return (Loop(role="", inputs=(0, *(None,) * (len(call.inputs) - 1)), outputs=(0,)),)


def _windows(call: _Call) -> tuple[Loop, ...]:
    """Pooling and interpolation: batch and channels."""
    return tuple(Loop(role="", inputs=(d,), outputs=(d,)) for d in (0, 1))


_ELEMENTWISE = (
    *("add", "sub", "mul", "div", "truediv", "rsub", "neg", "pow", "__pow__", "square", "sqrt"),
    *("rsqrt", "exp", "log", "tanh", "sigmoid", "relu", "gelu", "silu", "softplus", "abs", "cos"),
    *("sin", "to", "float", "bfloat16", "half", "clone", "contiguous", "type_as", "where", "erf"),
    *("masked_fill", "maximum", "minimum", "clamp", "dropout", "eq", "ne", "lt", "gt", "le", "ge"),
    *("__eq__", "__lt__", "__gt__", "__and__", "__or__", "leaky_relu", "elu", "hardswish", "relu6"),
    *(
        "reciprocal",
        "div_",
        "mul_",
        "add_",
        "__floordiv__",
        "__rpow__",
        "__rtruediv__",
        "logical_not",
        "long",
        "int",
        "bool",
        "mish",
    ),
)
_PRODUCTS: Mapping[str, Callable[[_Call], tuple[Loop, ...]]] = {
    "linear": _linear_layer,
    "addmm": _biased_product,
    "matmul": _product,
    "bmm": _product,
    "_grouped_mm": _grouped,
    "grouped_mm": _grouped,
    "__getitem__": _rows_taken,
    "mm": _product,
    "einsum": _einsum,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
    "embedding": _embedding,
    "scaled_dot_product_attention": _attention,
}
RULES: dict[str, Callable[[_Call], tuple[Loop, ...]]] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(("softmax", "log_softmax", "cumsum", "topk", "sort"), _along_dims),
    **dict.fromkeys(("cat", "concat"), _joined),
    **dict.fromkeys(("mean", "sum", "amax", "amin", "logsumexp"), _reduced),
    **dict.fromkeys(("layer_norm", "rms_norm"), _normalised),
    **dict.fromkeys(("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "interpolate"), _windows),
    **_PRODUCTS,
    "cross_entropy": _cross_entropy,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
}
"""The rule of each function by name; a new op is one line here."""
