"""What an optimizer keeps and runs, from the words in which a table names it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerKind:
    """An optimizer's update of float32 weights.

    states    numbers that it keeps per weight
    moved     numbers read and written per weight and update
    kernels   that it starts per parameter; 0 where one kernel updates many parameters
    """

    name: str
    states: int
    moved: int
    kernels: int


# Read off torch 1.12 (torch/optim/*.py, the single-tensor functions): every line of the update is a
# kernel. SGD with momentum: buf *= m; buf += g; p -= lr buf; Nesterov's adds g + m buf. Fused ones
# read gradient, weight and states and write weight and states once (apex, csrc/multi_tensor_*.cu).
_NONE = OptimizerKind(name="none", states=0, moved=0, kernels=0)
# Made for batches of tens of thousands (You et al., arXiv 1904.00962): published steps are of one
# micro-batch, which carries next to nothing of the update.
_LAMB = OptimizerKind(name="lamb", states=2, moved=0, kernels=0)
_LAMB_SAID = "LAMB's update is shared by many micro-batches: not counted in the step"
_PLAIN = {
    "sgd": OptimizerKind(name="sgd", states=0, moved=3, kernels=1),
    "momentum": OptimizerKind(name="sgd with momentum", states=1, moved=8, kernels=3),
    "nesterov": OptimizerKind(name="sgd with Nesterov momentum", states=1, moved=11, kernels=4),
    "adam": OptimizerKind(name="adam", states=2, moved=19, kernels=8),
    "rmsprop": OptimizerKind(name="rmsprop", states=2, moved=17, kernels=6),
    "adagrad": OptimizerKind(name="adagrad", states=1, moved=12, kernels=5),
}
_FUSED_MOVED = {"sgd": 3, "momentum": 5, "nesterov": 5, "adam": 7, "rmsprop": 7}


def optimizer_kind(text: str, *, together: bool) -> tuple[OptimizerKind, str]:
    """The optimizer that the text names, and the default that was taken for it ("" for none).

    together  the framework updates many parameters in one kernel where it is not told otherwise
              (torch from 2.0 on: `foreach`)
    """
    words = text.lower()
    if re.match(r"\s*(none|no optimizer)\b", words):
        return _NONE, ""
    if "lamb" in words:
        return _LAMB, _LAMB_SAID
    said = ""
    name = next((name for name in ("rmsprop", "adagrad", "adam") if name in words), "")
    if not name and "sgd" in words:
        name = "nesterov" if "nesterov" in words else "momentum" if "momentum" in words else "sgd"
        if re.search(r"momentum\s*=?\s*0(\.0*)?(\s|$)", words):
            name = "sgd"
    if not name:
        what = f"optimizer {text!r} is not known" if words.strip() else "no optimizer is named"
        name, said = "adam", f"{what}: taken as Adam"
    found = _PLAIN[name]
    if "fused" in words or "apex" in words or (together and "foreach=false" not in words):
        moved = _FUSED_MOVED.get(name, found.moved) if "fused" in words else found.moved
        found = OptimizerKind(name=found.name, states=found.states, moved=moved, kernels=0)
    return found, said
