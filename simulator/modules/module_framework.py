"""What a framework's words say of a module's step: release, fused attention, gradients at zero."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
