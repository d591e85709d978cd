"""The terms of a step that count per layer: kernels, messages, and what waits for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simulator.formula_symbol import named
from simulator.soft_maximum import larger
from simulator.training_run.step.features import Features
from simulator.training_run.step.step_term import (
    BESIDE,
    LAYER,
    US,
    Array,
    Coefficients,
    Earlier,
    Formula,
    Term,
    moved,
    passes,
)

_WAYS = ("forward", "backward")


def _kernels(name: str, seconds: Formula) -> Term:
    return Term(name, "compute_s", seconds, per=LAYER)


def _recomputed(name: str, share: Callable[[Features], Array]) -> Term:
    """The share of a forward's kernels that the backward does again."""
    return _kernels(f"{name}, recomputed", lambda x, c, e: share(x) * e.of[f"{name}, forward"])


def _tensor(x: Features, c: Coefficients, e: Earlier) -> Array:
    messages = moved(x, "tensor", c)
    messages = messages + US * x.tensor_inner_steps * c["inner_step_us"]
    messages = messages + US * x.tensor_outer_steps * c["outer_step_us"]
    return messages * passes(x) * c["tensor_exposed"]


def _experts(x: Features, c: Coefficients, e: Earlier) -> Array:
    """Under what two micro-batches compute at a time, where the schedule pairs their passes."""
    messages = moved(x, "expert", c) * passes(x)
    messages = messages * c["expert_exposed"]
    if not np.any(x.overlaps_experts > 0):
        return messages
    messages = named("messages", messages)
    return np.where(x.overlaps_experts > 0, larger(e.layer, messages) - e.layer, messages)


def _context(x: Features, c: Coefficients, e: Earlier) -> Array:
    """A ring's next keys and values arrive while the last ones are worked on (Liu et al., arXiv
    2310.01889, section 3): what the attention is too short for shows, and of the rest a share."""
    messages = named("messages", 3.0 * moved(x, "context", c))
    core = [f"{name}, {way}" for name in ("attention", "softmax and dropout") for way in _WAYS]
    attention = named("attention", sum((e.of[name] for name in core), np.zeros(1)))
    shown = c["context_exposed"] * np.minimum(messages, attention)
    return np.maximum(messages - attention, 0.0) + shown


def _host(x: Features, c: Coefficients, e: Earlier) -> Array:
    kernels = x.kernels_forward + x.kernels_backward + x.recomputed_matmul * x.kernels_forward
    waits = passes(x) * x.waiting_ranks
    host = named("host", US * (kernels * c["launch_us"] + waits * c["wait_us"]))
    return larger(e.layer, host) - e.layer


def _gathered(x: Features, c: Coefficients, e: Earlier) -> Array:
    messages = moved(x, "gather", c)
    messages = named("messages", messages + US * x.gather_steps * c["outer_step_us"])
    shown = c["gather_exposed"] * np.minimum(messages, e.layer)
    return larger(e.layer, messages) - e.layer + shown


def _host_memory(x: Features, c: Coefficients, e: Earlier) -> Array:
    beside = np.maximum(x.host_layer_s - e.layer, 0.0)
    return np.where(x.overlaps_host > 0, beside, x.host_layer_s)


_FORWARD = (
    _kernels(
        "matmuls, forward",
        lambda x, c, e: larger(c["matmul"] * x.matmul_forward, c["power"] * x.peak_forward),
    ),
    _kernels("attention, forward", lambda x, c, e: c["attention"] * x.attention_forward),
    _kernels("recurrence of states, forward", lambda x, c, e: c["state"] * x.state_forward),
    _kernels(
        "experts' matmuls, forward",
        lambda x, c, e: c["grouped"] * c["matmul"] * x.grouped_forward,
    ),
    _kernels("elementwise work, forward", lambda x, c, e: c["passes"] * x.pass_forward),
    _kernels("casts to fewer bits, forward", lambda x, c, e: c["casts"] * x.cast_forward),
    _kernels("softmax and dropout, forward", lambda x, c, e: c["scores"] * x.score_forward),
)
_BACKWARD = (
    _kernels(
        "matmuls, backward",
        lambda x, c, e: larger(c["matmul"] * x.matmul_backward, c["power"] * x.peak_backward),
    ),
    _kernels("attention, backward", lambda x, c, e: c["attention"] * x.attention_backward),
    _kernels("recurrence of states, backward", lambda x, c, e: c["state"] * x.state_backward),
    _kernels(
        "experts' matmuls, backward",
        lambda x, c, e: c["grouped"] * c["matmul"] * x.grouped_backward,
    ),
    _kernels("elementwise work, backward", lambda x, c, e: c["passes"] * x.pass_backward),
    _kernels("casts to fewer bits, backward", lambda x, c, e: c["casts"] * x.cast_backward),
    _kernels("softmax and dropout, backward", lambda x, c, e: 1.5 * c["scores"] * x.score_forward),
    _kernels("adding gradients to their sums", lambda x, c, e: c["optimizer"] * x.accumulation_s),
)
_RECOMPUTED = (
    _recomputed("matmuls", lambda x: x.recomputed_matmul),
    _recomputed("experts' matmuls", lambda x: x.recomputed_matmul),
    _recomputed("casts to fewer bits", lambda x: x.recomputed_matmul),
    _recomputed("attention", lambda x: x.recomputed_attention),
    _recomputed("softmax and dropout", lambda x: x.recomputed_attention),
    _recomputed("recurrence of states", lambda x: x.recomputed_matmul),
    _recomputed("elementwise work", lambda x: x.recomputed_pass),
)
LAYER_TERMS = (
    *_FORWARD,
    *_BACKWARD,
    *_RECOMPUTED,
    Term("tensor parallelism's collectives", "tensor_s", _tensor, per=LAYER),
    Term("context parallelism's collectives", "context_s", _context, per=LAYER),
    Term("experts' all-to-alls", "expert_s", _experts, per=LAYER),
    _kernels("waiting for the host", _host),
    _kernels(
        "hops of tensor parallelism between nodes",
        lambda x, c, e: US * c["hop_us"] * x.tensor_host_hops * passes(x),
    ),
    Term("gathering sharded weights (ZeRO-3)", "gather_s", _gathered, per=BESIDE),
    Term("activations to host memory and back", "host_s", _host_memory, per=BESIDE),
)
