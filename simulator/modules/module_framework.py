"""The words of a table about a module's step: the optimizer (what it keeps and runs) and the
framework (release, fused attention, gradients at zero).
"""

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


_RELEASE = re.compile(r"(?:torch|pytorch)\s*(?:ngc\s*[\d.]+\s*\()?v?(\d+)\.(\d+)", re.IGNORECASE)
_ANY_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.\d+)?a0")
_DEFAULT = (2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFramework:
    """A release of torch, as far as a step depends on it.

    release     (major, minor)
    compiled    ops are joined into graphs, so that the host starts few of them
    fused_attention   F.scaled_dot_product_attention is one kernel
    """

    release: tuple[int, int]
    compiled: bool
    fused_attention: bool

    @property
    def keeps_gradients(self) -> bool:
        """zero_grad fills gradients with zeros, and the backward adds to them: torch before 2.0
        (release notes of 2.0: `set_to_none=True` is the default)."""
        return self.release < (2, 0)

    @property
    def together(self) -> bool:
        """Optimizers update many parameters in one kernel (torch 2.0 release notes: `foreach` by
        default on CUDA)."""
        return self.release >= (2, 0)


def module_framework(text: str) -> tuple[ModuleFramework, str]:
    """The framework that the text names, and the default that was taken ("" for none).

    Attention is taken as fused only where the text says so (`sdpa`, `flash`, `fused attention`):
    published steps name torch and not the kernel, and those measured so far wrote the scores out.
    """
    words = text.lower()
    match = _RELEASE.search(words) or _ANY_RELEASE.search(words)
    said = []
    release = (int(match[1]), int(match[2])) if match else _DEFAULT
    compiled = any(word in words for word in ("compile", "inductor", "habana", "graph"))
    if not match and not compiled:
        what = f"framework {text!r} names no release" if words.strip() else "no framework is named"
        said.append(f"{what}: taken as torch {_DEFAULT[0]}.{_DEFAULT[1]} eager")
    fused = any(word in words for word in ("sdpa", "flash", "fused attention"))
    return ModuleFramework(release=release, compiled=compiled, fused_attention=fused), "; ".join(
        said
    )
