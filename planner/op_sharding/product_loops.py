"""Loops of matmuls, convolutions, look-ups and attention."""

from __future__ import annotations

from planner.op_sharding.loop import Dims, Exchange, Loop, OpCall


def linear_layer(call: OpCall) -> tuple[Loop, ...]:
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


def biased_product(call: OpCall) -> tuple[Loop, ...]:
    """addmm: bias [n], x [m, k], weight [k, n]."""
    if len(call.inputs) != 3 or len(call.input_shape(0)) != 1:
        return ()
    return (
        Loop(role="m", inputs=(None, 0, None), outputs=(0,)),
        Loop(role="n", inputs=(0, None, 1), outputs=(1,)),
        Loop(role="k", inputs=(None, 1, 0), outputs=(None,), whole=(0,)),
    )


def product(call: OpCall) -> tuple[Loop, ...]:
    """[..., m, k] x [..., k, n]: as einsum, batch dims aligned from the right."""
    a, b = call.input_shape(0), call.input_shape(1)
    if len(a) < 2 or len(b) < 2:
        return ()
    letters = "abcdefgh"[: len(call.out) - 2]
    first = letters[len(letters) - (len(a) - 2) :] + "mk"
    second = letters[len(letters) - (len(b) - 2) :] + "kn"
    return _einsum_loops(call, f"{first},{second}->{letters}mn")


def einsum(call: OpCall) -> tuple[Loop, ...]:
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


def convolution(call: OpCall) -> tuple[Loop, ...]:
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


def embedding(call: OpCall) -> tuple[Loop, ...]:
    """tokens [...], table [vocabulary, hidden]: a split vocabulary looks up zeros elsewhere."""
    rank = len(call.input_shape(0))
    tokens = [Loop(role="", inputs=(d, None), outputs=(d,)) for d in range(rank)]
    hidden = Loop(role="", inputs=(None, 1), outputs=(rank,))
    vocabulary = Loop(role="", inputs=(None, 0), outputs=(None,))
    return (*tokens, hidden, vocabulary)


def grouped(call: OpCall) -> tuple[Loop, ...]:
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


def rows_taken(call: OpCall) -> tuple[Loop, ...]:
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
