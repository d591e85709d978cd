"""The loops of an op: the ways in which its work can be cut.

A loop is an index that the op's work runs over, with the dim of each input and output that it
indexes (None: the tensor lacks it). Cutting it over the ranks of an axis splits the tensors that
have it; an input that lacks it is needed whole and gets a partial gradient; an output that lacks it
is a sum over it and comes out partial. Every placement rule of this package is such a list. As in
Alpa (Zheng et al., OSDI 2022, section 4.1, table 3: the loops of a batched matmul) and in DTensor's
einsum rules; ops that are not listed are only run replicated.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.op_sharding import dim_loops, layer_loops, product_loops
from planner.op_sharding.loop import Loop, OpCall
from profiles.model.op_graphs.op_graph import GraphOp, GraphTensor


def loops_of(op: GraphOp, tensors: tuple[GraphTensor, ...]) -> tuple[Loop, ...]:
    """Every way to cut the op; () where it is not known."""
    call = OpCall(
        op=op,
        inputs=tuple(tensors[t] for t in op.inputs),
        outputs=tuple(tensors[t] for t in op.outputs),
    )
    if op.strides:
        return dim_loops.view(call)
    rule = RULES.get(op.name)
    return rule(call) if rule is not None and call.inputs else ()


def passes_partial(op: GraphOp) -> bool:
    """Whether summands in give summands out: the op is linear in all its tensor inputs at once."""
    if op.strides or op.name in _LINEAR:
        return True
    count = len(op.inputs)
    if op.name in ("add", "sub", "add_"):
        return count == 2
    return op.name in ("mul", "div", "truediv") and count == 1


_LINEAR = frozenset(("neg", "to", "float", "bfloat16", "half", "clone", "contiguous", "reshape"))
_LINEAR |= {"cat", "concat", "stack", "sum", "mean", "permute", "transpose", "type_as"}


_ELEMENTWISE = (
    *("add", "sub", "mul", "div", "truediv", "rsub", "neg", "pow", "__pow__", "square", "sqrt"),
    *("rsqrt", "exp", "log", "tanh", "sigmoid", "relu", "gelu", "silu", "softplus", "abs", "cos"),
    *("sin", "to", "float", "bfloat16", "half", "clone", "contiguous", "type_as", "where", "erf"),
    *("masked_fill", "maximum", "minimum", "clamp", "dropout", "eq", "ne", "lt", "gt", "le", "ge"),
    *("__eq__", "__lt__", "__gt__", "__and__", "__or__", "leaky_relu", "elu", "hardswish", "relu6"),
    *("reciprocal", "div_", "mul_", "add_", "__floordiv__", "__rpow__", "__rtruediv__", "mish"),
    *("logical_not", "long", "int", "bool"),
)
RULES: dict[str, Callable[[OpCall], tuple[Loop, ...]]] = {
    **dict.fromkeys(_ELEMENTWISE, dim_loops.elementwise),
    **dict.fromkeys(("softmax", "log_softmax", "cumsum", "topk", "sort"), dim_loops.along_dims),
    **dict.fromkeys(("cat", "concat"), dim_loops.joined),
    **dict.fromkeys(("mean", "sum", "amax", "amin", "logsumexp"), dim_loops.reduced),
    **dict.fromkeys(("layer_norm", "rms_norm"), dim_loops.normalised),
    **dict.fromkeys(
        ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "interpolate"), layer_loops.windows
    ),
    "linear": product_loops.linear_layer,
    "addmm": product_loops.biased_product,
    "matmul": product_loops.product,
    "bmm": product_loops.product,
    "_grouped_mm": product_loops.grouped,
    "grouped_mm": product_loops.grouped,
    "__getitem__": product_loops.rows_taken,
    "mm": product_loops.product,
    "einsum": product_loops.einsum,
    "conv1d": product_loops.convolution,
    "conv2d": product_loops.convolution,
    "conv3d": product_loops.convolution,
    "embedding": product_loops.embedding,
    "scaled_dot_product_attention": layer_loops.attention,
    "cross_entropy": layer_loops.cross_entropy,
    "batch_norm": layer_loops.batch_norm,
    "group_norm": layer_loops.group_norm,
}
"""The rule of each function by name; a new op is one line here."""
