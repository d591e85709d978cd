"""The parts of a step's time that each layer adds: kernels, messages, and waits for the host."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simulator.formula_symbol import named
from simulator.soft_maximum import exposed, larger
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
from simulator.values.prediction import Part

_WAYS = ("forward", "backward")
# Share of the multiprocessors that all-to-alls hold while they run: 20 of an H800's 132
# (DeepSeek-V3, arXiv 2412.19437, section 3.2.2; also the default of moe_deepep_num_sms in
# Megatron-Core core_v0.14.0, core/transformer/transformer_config.py).
SENDING_SHARE = 20 / 132
_Kernel = Callable[[Features, Coefficients, str], Array]
_KERNELS: tuple[tuple[str, _Kernel], ...] = (
    ("matmuls", lambda x, c, way: larger(*_matmuls(x, c, way))),
    ("attention", lambda x, c, way: c["attention"] * getattr(x, f"attention_{way}")),
    ("recurrence of states", lambda x, c, way: c["state"] * getattr(x, f"state_{way}")),
    (
        "experts' matmuls",
        lambda x, c, way: c["grouped"] * c["matmul"] * getattr(x, f"grouped_{way}"),
    ),
    ("elementwise work", lambda x, c, way: c["passes"] * getattr(x, f"pass_{way}")),
    ("casts to fewer bits", lambda x, c, way: c["casts"] * getattr(x, f"cast_{way}")),
    (
        "softmax and dropout",
        lambda x, c, way: (1.5 if way == "backward" else 1.0) * c["scores"] * x.score_forward,
    ),
)
# Kernels of the forward that the backward runs again, and the share of them.
_RECOMPUTED = (
    *(("matmuls", "matmul"), ("experts' matmuls", "routed"), ("casts to fewer bits", "matmul")),
    *(("attention", "attention"), ("softmax and dropout", "attention")),
    *(("recurrence of states", "matmul"), ("elementwise work", "pass")),
)


def _matmuls(x: Features, c: Coefficients, way: str) -> tuple[Array, Array]:
    return c["matmul"] * getattr(x, f"matmul_{way}"), c["power"] * getattr(x, f"peak_{way}")


def _kernels(name: str, seconds: Formula, way: str = "") -> Term:
    return Term(name, Part.COMPUTE, seconds, per=LAYER, way=way)


def _of_pass(name: str, seconds: _Kernel, way: str) -> Term:
    return _kernels(f"{name}, {way}", lambda x, c, e: seconds(x, c, way), way)


def _recomputed(name: str, share: str) -> Term:
    return _kernels(
        f"{name}, recomputed",
        lambda x, c, e: getattr(x, f"recomputed_{share}") * e.of[f"{name}, forward"],
        "backward",
    )


def _tensor(x: Features, c: Coefficients, e: Earlier) -> Array:
    messages = moved(x, "tensor", c)
    messages = messages + US * x.tensor_inner_steps * c["inner_step_us"]
    messages = messages + US * x.tensor_outer_steps * c["outer_step_us"]
    return messages * passes(x) * c["tensor_exposed"]


def _experts(x: Features, c: Coefficients, e: Earlier) -> Array:
    """Exposed messages of experts. In passes paired by the schedule, they overlap with the compute
    of the other micro-batch, which has fewer multiprocessors meanwhile, because the messages use
    some."""
    messages = moved(x, "expert", c) * passes(x)
    messages = messages * c["expert_exposed"]
    if not np.any(x.overlaps_experts > 0):
        return messages
    messages = named("messages", messages)
    paired = larger(e.layer + SENDING_SHARE * messages, messages) - e.layer
    return messages + x.overlaps_experts * (paired - messages)


def _context(x: Features, c: Coefficients, e: Earlier) -> Array:
    """Exposed messages of context parallelism. A ring sends the next keys and values during
    attention on the current ones (Liu et al., arXiv 2310.01889, section 3). Exposed are the time
    beyond that of the attention, and a share of the rest."""
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
    messages = moved(x, "gather", c) + x.gather_host_s
    messages = named("messages", messages + US * x.gather_steps * c["outer_step_us"])
    return exposed(e.layer, messages, c["gather_exposed"])


def _host_memory(x: Features, c: Coefficients, e: Earlier) -> Array:
    beside = np.maximum(x.host_layer_s - e.layer, 0.0)
    return np.where(x.overlaps_host > 0, beside, x.host_layer_s)


LAYER_TERMS = (
    *(_of_pass(name, seconds, way) for way in _WAYS for name, seconds in _KERNELS),
    _kernels(
        "adding gradients to their sums",
        lambda x, c, e: c["optimizer"] * x.accumulation_s,
        "backward",
    ),
    *(_recomputed(name, share) for name, share in _RECOMPUTED),
    Term("tensor parallelism's collectives", Part.TENSOR, _tensor, per=LAYER),
    Term("context parallelism's collectives", Part.CONTEXT, _context, per=LAYER),
    Term("experts' all-to-alls", Part.EXPERT, _experts, per=LAYER),
    _kernels("waiting for the host", _host),
    _kernels(
        "hops of tensor parallelism between nodes",
        lambda x, c, e: US * c["hop_us"] * x.tensor_host_hops * passes(x),
    ),
    Term("gathering sharded weights (ZeRO-3)", Part.GATHER, _gathered, per=BESIDE),
    Term("activations to host memory and back", Part.HOST, _host_memory, per=BESIDE),
)
