"""Loops of attention, losses, normalisation over the batch, and windows."""

from __future__ import annotations

from planner.op_sharding.loop import Dims, Exchange, Loop, OpCall


def attention(call: OpCall) -> tuple[Loop, ...]:
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


def cross_entropy(call: OpCall) -> tuple[Loop, ...]:
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


def batch_norm(call: OpCall) -> tuple[Loop, ...]:
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


def group_norm(call: OpCall) -> tuple[Loop, ...]:
    """The batch alone: a group's channels are normalised together."""
    return (Loop(role="", inputs=(0, *(None,) * (len(call.inputs) - 1)), outputs=(0,)),)


def windows(call: OpCall) -> tuple[Loop, ...]:
    """Pooling and interpolation: batch and channels."""
    return tuple(Loop(role="", inputs=(d,), outputs=(d,)) for d in (0, 1))
