"""Whether the fit has enough measured steps with a kind of kernel for a reliable price."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from profiles.model.kernels import DeviceKernel, Kernel

MUCH = 0.05
"""Share of its kernels' time from which on a step is one of a kind of kernel."""
_IMAGES = 2  # dimensions
_JOINED = frozenset(
    (
        Kernel.BATCH_NORM,
        Kernel.ROW_NORM,
        Kernel.SOFTMAX,
        Kernel.REDUCTION,
        Kernel.COPY,
        Kernel.TRANSPOSE,
        Kernel.GATHER,
        Kernel.FILL,
        Kernel.ELEMENTWISE,
    )
)
# Steps are 9 % off in the mean when their family is left out, 20 of them together 2 %: that is 40 %
# of a kernel of a twentieth of their time. Fewer say little of it.
_ENOUGH_STEPS = 20


def kernel_kind(kernel: DeviceKernel) -> str:
    """What a kernel's constants stand for: its kind, and how a convolution differs from those of
    images, which libraries run by other algorithms.

    >>> volumes = DeviceKernel(kernel=Kernel.CONV, dtype="float32", spatial=3, taps=27)
    >>> kernel_kind(volumes)
    'conv 3-d'
    >>> from dataclasses import replace
    >>> kernel_kind(replace(volumes, dilation=2))
    'dilated conv 3-d'
    """
    words = [kernel.kernel.value]
    if kernel.spatial not in (0, _IMAGES):
        words.append(f"{kernel.spatial}-d")
    if kernel.dilation > 1 and kernel.taps > 1:
        words.insert(0, "dilated")
    return " ".join(words)


def seconds_by_kind(kernels: Iterable[tuple[DeviceKernel, float]]) -> dict[str, float]:
    """Seconds of kernels by kind, all runs of a kernel together."""
    found: dict[str, float] = {}
    for kernel, taken in kernels:
        kind = kernel_kind(kernel)
        found[kind] = found.get(kind, 0.0) + taken
    return found


def is_unmeasured(kernel: DeviceKernel, measured: Mapping[str, int], *, compiled: bool) -> bool:
    """Whether too few steps of the fit have such a kernel.

    measured  kind -> steps of it;  compiled  kernels that only move bytes are joined with others,
              as in no step of the fit
    """
    if compiled and kernel.kernel in _JOINED:
        return True
    return measured.get(kernel_kind(kernel), 0) < _ENOUGH_STEPS
