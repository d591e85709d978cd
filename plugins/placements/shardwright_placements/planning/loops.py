"""The loops of an op: the dimensions along which its work can be split.

A loop is an index of the op's work, with the dim of each input and output that it indexes (None:
the tensor does not have this index). Cutting a loop over the ranks of an axis splits the tensors
that have its index. Inputs without it are needed whole and get a partial gradient; outputs without
it are partial sums. This follows Alpa (Zheng et al., OSDI 2022, section 4.1, table 3: the loops of
a batched matmul) and DTensor's einsum rules; ops that are not listed are always replicated. Ops
whose tensors have fixed dims are rows of data (`_ROWS`), others functions of their shapes
(`_RULES`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import EllipsisType

from profiles.model.graph import DTYPE_BYTES
from shardwright_placements.op_graph.op_graph import GraphOp, GraphTensor

Dims = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A collective inside an op.

    elements, dtype   of the full buffer
    phase             `forward` or `backward`
    without           dims of the first input: if another axis of the mesh cuts one, the buffer is
                      divided by the ranks of that axis
    """

    operation: str
    elements: int
    dtype: str
    phase: str
    without: tuple[int, ...] = ()

    @property
    def memory_bytes(self) -> float:
        """Bytes of the full buffer."""
        return float(self.elements * DTYPE_BYTES[self.dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """An index of an op's work.

    role       in the kernel: `b`, `m`, `n` or `k` of a matmul or convolution, `batch`, `heads` or
               `rows` of attention, otherwise ``
    inputs, outputs   the dim of each tensor that has this index
    exchanged  collectives inside the op, needed if the loop is cut
    whole      inputs without this index whose gradient is nevertheless whole on every rank, because
               they are added once to a sum over ranks (a bias)
    """

    role: str = ""
    inputs: Dims
    outputs: Dims
    exchanged: tuple[Exchange, ...] = ()
    is_sum: bool = True
    whole: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCall:
    """An op with its tensors."""

    op: GraphOp
    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]

    @property
    def out(self) -> tuple[int, ...]:
        """Shape of the first output."""
        return self.outputs[0].shape

    def option(self, name: str) -> tuple[int, ...]:
        """A numeric option, () if the call does not have it."""
        found = self.op.option(name)
        return found if isinstance(found, tuple) else ()


def loops_of(op: GraphOp, tensors: tuple[GraphTensor, ...]) -> tuple[Loop, ...]:
    """The loops of the op; () for unknown ops."""
    call = OpCall(
        op=op,
        inputs=tuple(tensors[t] for t in op.inputs),
        outputs=tuple(tensors[t] for t in op.outputs),
    )
    if op.strides:
        return _view(call)
    if not call.inputs:
        return ()
    if op.name in _ROWS:
        return _from_rows(call, *_ROWS[op.name])
    rule = _RULES.get(op.name)
    return () if rule is None else rule(call)


def passes_partial(op: GraphOp) -> bool:
    """Whether the op maps partial sums to partial sums: it is linear in all its tensors
    together."""
    if op.strides or op.name in _LINEAR:
        return True
    count = len(op.inputs)
    if op.name in ("add", "sub", "add_"):
        return count == 2
    return op.name in ("mul", "div", "truediv") and count == 1


_LINEAR = frozenset(("neg", "to", "float", "bfloat16", "half", "clone", "contiguous", "reshape"))
_LINEAR |= {"cat", "concat", "stack", "sum", "mean", "permute", "transpose", "type_as"}

# --- ops whose tensors have fixed dims ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    """A loop of an op as text: the dim of each input and of the output that it runs over.

    dims   `. 0 0 -> -1`: -1 is the last dim; `.`: no dim, so its gradient is a partial
           sum; `+`: no dim, but every rank has the whole gradient; `*`: every dim of the output
           except its last (one loop each); `~-4`: a dim that may be broadcast. The last input's
           entry applies to all inputs after it
    sums   all-reduces inside the op: (phase, fp32 numbers per element of dim `along` of the first
           input)
    """

    role: str
    dims: str
    sums: tuple[tuple[str, int], ...] = ()
    along: int = 0
    is_sum: bool = True


_Ranks = tuple[int | EllipsisType | None, ...]
_BATCH_AND_CHANNELS = ((None, ...), (_Row("", "0 -> 0"), _Row("", "1 -> 1")))
_CONVOLUTION = (
    _Row("m", "0 . . -> 0"),
    _Row("n", ". 0 0 -> 1"),
    _Row("k", "1 1 + -> ."),
)
_DEPTHWISE = _Row("n", "1 0 0 -> 1")
_GROUPED = (
    (2, 3, ...),
    (_Row("b", "0 0 . -> 0"), _Row("n", ". 2 . -> 1"), _Row("k", "1 1 . -> .")),
)
_ROWS: dict[str, tuple[_Ranks, tuple[_Row, ...]]] = {
    # x [..., k], weight [n, k], bias [n]
    "linear": (
        (None, ...),
        (_Row("m", "* . . -> *"), _Row("n", ". 0 0 -> -1"), _Row("k", "-1 1 + -> .")),
    ),
    # bias [n], x [m, k], weight [k, n]
    "addmm": (
        (1, None, None),
        (_Row("m", ". 0 . -> 0"), _Row("n", "0 . 1 -> 1"), _Row("k", "+ 1 0 -> .")),
    ),
    # x [rows by expert, k], weight [experts, k, n], offsets [experts]. Cutting the experts cuts the
    # rows too: shares are assumed to be equal, as in the trace (balanced routing).
    "_grouped_mm": _GROUPED,
    "grouped_mm": _GROUPED,
    # tokens [...], table [vocabulary, hidden]: a split vocabulary looks up zeros elsewhere
    "embedding": (
        (None, ...),
        (_Row("", "* . -> *"), _Row("", ". 1 -> -1"), _Row("", ". 0 -> .")),
    ),
    # q [batch, heads, rows, d], k and v [batch, kv heads, columns, d], then a mask. Heads are cut
    # with their key-value heads; if there are fewer of those than ranks, every rank has all of k
    # and v. Rows of q may be cut without k and v (context parallelism with gathered keys and
    # values, Llama 3, arXiv 2407.21783, section 3.3.2).
    "scaled_dot_product_attention": (
        (4, None, None, ...),
        (
            _Row("batch", "0 0 0 ~-4 -> 0"),
            _Row("heads", "1 1 1 ~-3 -> 1"),
            _Row("heads", "1 . . ~-3 -> 1"),
            _Row("rows", "2 . . ~-2 -> 2"),
        ),
    ),
    # Scalar loss of logits [rows, classes] and targets [rows]. A split vocabulary exchanges the
    # rows' maximum, sum of exponentials and target logit in fp32 (Megatron-LM, arXiv 1909.08053,
    # section 3; vocab_parallel_cross_entropy), nothing backward.
    "cross_entropy": (
        (2, None),
        (_Row("", "0 0 -> ."), _Row("", "1 . -> .", (("forward", 1),) * 3, 0, False)),
    ),
    # Channels; or the batch, with means and variances summed over ranks each way (SyncBatchNorm,
    # torch documentation).
    "batch_norm": (
        (None, ...),
        (_Row("", "1 0 -> 1"), _Row("", "0 . -> 0", (("forward", 2), ("backward", 2)), 1)),
    ),
    # Only the batch: the channels of a group are normalized together.
    "group_norm": ((None, ...), (_Row("", "0 . -> 0"),)),
    **dict.fromkeys(
        ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "interpolate"), _BATCH_AND_CHANNELS
    ),
}
"""Function -> required ranks of its inputs, and the rows."""


def _from_rows(call: OpCall, ranks: _Ranks, rows: tuple[_Row, ...]) -> tuple[Loop, ...]:
    """The loops of the rows; () if the inputs have other numbers of dims."""
    shapes = [x.shape for x in call.inputs]
    listed = [rank for rank in ranks if not isinstance(rank, EllipsisType)]
    if len(shapes) < len(listed) or (len(shapes) > len(listed) and ranks[-1] is not ...):
        return ()
    if any(rank not in (None, len(x)) for rank, x in zip(listed, shapes, strict=False)):
        return ()
    loops = []
    for row in rows:
        left, _, out = row.dims.partition(" -> ")
        entries = left.split()
        entries += entries[-1:] * (len(shapes) - len(entries))
        exchanged = tuple(
            Exchange(
                operation="all_reduce",
                elements=factor * shapes[0][row.along],
                dtype="float32",
                phase=phase,
                without=(row.along,),
            )
            for phase, factor in row.sums
        )
        for each in range(len(call.out) - 1) if out == "*" else (0,):
            loops.append(
                Loop(
                    role=row.role,
                    inputs=tuple(
                        _dim(entry, x, each) for entry, x in zip(entries, shapes, strict=False)
                    ),
                    outputs=(_dim(out, call.out, each),),
                    exchanged=exchanged,
                    is_sum=row.is_sum,
                    whole=tuple(i for i in range(len(shapes)) if entries[i] == "+"),
                )
            )
    return tuple(loops)


def _dim(entry: str, shape: tuple[int, ...], each: int) -> int | None:
    if entry in (".", "+"):
        return None
    if entry == "*":
        return each
    dim = int(entry.removeprefix("~"))
    dim += len(shape) if dim < 0 else 0
    broadcast = entry.startswith("~") and (dim < 0 or shape[dim] == 1)
    return None if broadcast else dim


def _convolution(call: OpCall) -> tuple[Loop, ...]:
    """Loops of a convolution of x [batch, in, ...], weight [out, in / groups, ...], bias [out]."""
    groups = (call.option("groups") or (1,))[0]
    rows: tuple[_Row, ...] = _CONVOLUTION
    if groups > 1:
        depthwise = groups == call.inputs[0].shape[1]
        rows = (_CONVOLUTION[0], _DEPTHWISE) if depthwise else _CONVOLUTION[:1]
    return _from_rows(call, (None, ...), rows)


# --- ops that run over the dims of their tensors --------------------------------------------------


def _view(call: OpCall) -> tuple[Loop, ...]:
    """Loops of a view: output dims whose outermost part is that of an input dim.

    In a contiguous input, a dim of n elements with stride s spans n s elements. Cutting an output
    dim cuts the input dim with an equal span (the outermost part if dims are merged or divided).
    """
    shape = call.inputs[0].shape
    spans = {n * math.prod(shape[d + 1 :]): d for d, n in enumerate(shape) if n > 1}
    found: dict[int, list[int | None]] = {}
    for number, strides in enumerate(call.op.strides):
        out = call.outputs[number].shape
        for e, (n, stride) in enumerate(zip(out, strides, strict=True)):
            source = spans.get(n * stride)
            if source is not None and n > 1:
                found.setdefault(source, [None] * len(call.outputs))[number] = e
    rest: Dims = (None,) * (len(call.inputs) - 1)
    return tuple(
        Loop(inputs=(d, *rest), outputs=tuple(outs))
        for d, outs in sorted(found.items())
        if None not in outs
    )


def _elementwise(call: OpCall) -> tuple[Loop, ...]:
    """One loop per dim of the (broadcast) output, except for dims along which the op works: the
    last ones of a normalization, `dim` of a concatenation, `dim` or the last of a softmax."""
    out, name = call.out, call.op.name
    without = call.option("dim")
    if name in _NORMS:
        without = tuple(range(len(out) - (call.option("normalized") or (1,))[0], len(out)))
    elif name in _ALONG and not without:
        without = (len(out) - 1,)
    loops = []
    for e, n in enumerate(out):
        if n == 1 or e in without:
            continue
        if any(len(x.shape) != len(out) or x.shape[e] != n for x in call.outputs):
            continue
        dims = [e - len(out) + len(x.shape) for x in call.inputs]
        inputs = tuple(
            d if d >= 0 and x.shape[d] == n else None
            for d, x in zip(dims, call.inputs, strict=True)
        )
        loops.append(Loop(inputs=inputs, outputs=(e,) * len(call.outputs)))
    return tuple(loops)


def _reduced(call: OpCall) -> tuple[Loop, ...]:
    """Loops of a reduction: kept dims; for sums also the reduced dims, for which outputs are
    partial."""
    shape, out = call.inputs[0].shape, call.out
    gone = call.option("dim") or tuple(range(len(shape)))
    keeps = len(out) == len(shape)
    sums = call.op.name in ("sum", "mean")
    loops = []
    for d, n in enumerate(shape):
        if n > 1 and d not in gone:
            e = d if keeps else d - sum(g < d for g in gone)
            loops.append(Loop(inputs=(d,), outputs=(e,) * len(call.outputs)))
        elif n > 1 and sums:
            loops.append(Loop(inputs=(d,), outputs=(None,)))
    return tuple(loops)


# --- products by letters, rows in another order ---------------------------------------------------


def _product(call: OpCall) -> tuple[Loop, ...]:
    """Loops of [..., m, k] x [..., k, n]: as in einsum, with batch dims aligned from the right."""
    a, b = call.inputs[0].shape, call.inputs[1].shape
    if len(a) < 2 or len(b) < 2:
        return ()
    letters = "abcdefgh"[: len(call.out) - 2]
    first = letters[len(letters) - (len(a) - 2) :] + "mk"
    second = letters[len(letters) - (len(b) - 2) :] + "kn"
    return _einsum_loops(call, f"{first},{second}->{letters}mn")


def _einsum(call: OpCall) -> tuple[Loop, ...]:
    """One loop per letter; () without an explicit output or with an ellipsis."""
    equation = call.op.option("equation")
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        return ()
    return _einsum_loops(call, equation)


def _einsum_loops(call: OpCall, equation: str) -> tuple[Loop, ...]:
    left, _, out = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(call.inputs) or any(len(set(t)) != len(t) for t in terms):
        return ()
    loops = []
    for letter in dict.fromkeys("".join(terms)):
        places = [term.find(letter) for term in terms]
        dims = tuple(
            at if at >= 0 and x.shape[at] > 1 else None
            for at, x in zip(places, call.inputs, strict=True)
        )
        if letter not in out:
            role = "k"
        elif sum(at >= 0 for at in places) > 1:
            role = "b"
        else:
            role = "m" if letter in terms[0] else "n"
        if dims != (None,) * len(dims):
            at = out.find(letter)
            loops.append(Loop(role=role, inputs=dims, outputs=(at if at >= 0 else None,)))
    return tuple(loops)


def _rows_taken(call: OpCall) -> tuple[Loop, ...]:
    """Loops of x[index], which reorders rows: index [rows], x [any, ...].

    The output's rows may be cut while x is whole, or together with those of x. In the second case,
    ranks exchange rows by an all-to-all each way (the dispatch of experts, GShard, arXiv
    2006.16668, section 3.3; equal shares assumed), and every rank needs the whole index.
    """
    shapes = [x.shape for x in call.inputs]
    if len(shapes) != 2 or len(shapes[1]) != 1 or call.out != (*shapes[1], *shapes[0][1:]):
        return ()
    out, rest = call.outputs[0], tuple(range(1, len(shapes[0])))
    exchanged = tuple(
        Exchange(
            operation="all_to_all",
            elements=out.num_elements,
            dtype=out.dtype,
            phase=phase,
            without=rest,
        )
        for phase in ("forward", "backward")[: 1 + out.needs_gradient]
    )
    return (
        Loop(inputs=(None, 0), outputs=(0,)),
        Loop(inputs=(0, None), outputs=(0,), exchanged=exchanged),
        *(Loop(inputs=(d, None), outputs=(d,)) for d in rest),
    )


_ELEMENTWISE = (
    *("add", "sub", "mul", "div", "truediv", "rsub", "neg", "pow", "__pow__", "square", "sqrt"),
    *("rsqrt", "exp", "log", "tanh", "sigmoid", "relu", "gelu", "silu", "softplus", "abs", "cos"),
    *("sin", "to", "float", "bfloat16", "half", "clone", "contiguous", "type_as", "where", "erf"),
    *("masked_fill", "maximum", "minimum", "clamp", "dropout", "eq", "ne", "lt", "gt", "le", "ge"),
    *("__eq__", "__lt__", "__gt__", "__and__", "__or__", "leaky_relu", "elu", "hardswish", "relu6"),
    *("reciprocal", "div_", "mul_", "add_", "__floordiv__", "__rpow__", "__rtruediv__", "mish"),
    *("logical_not", "long", "int", "bool", "cat", "concat"),
)
_ALONG = ("softmax", "log_softmax", "cumsum", "topk", "sort")
_NORMS = ("layer_norm", "rms_norm")
_RULES: dict[str, Callable[[OpCall], tuple[Loop, ...]]] = {
    **dict.fromkeys((*_ELEMENTWISE, *_ALONG, *_NORMS), _elementwise),
    **dict.fromkeys(("mean", "sum", "amax", "amin", "logsumexp"), _reduced),
    **dict.fromkeys(("matmul", "bmm", "mm"), _product),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    "einsum": _einsum,
    "__getitem__": _rows_taken,
}
"""The rule of each function by name; a new op is one line here or in `_ROWS`."""
