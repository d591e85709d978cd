"""Numba's compiler with the settings that the engine's inner loops share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(kernel: Kernel) -> Kernel:
    """The kernel as machine code, compiled at its first call and kept beside its file.

    It releases the interpreter's lock, so that two threads search at once. Where the folder cannot
    be written, numba keeps its cache in the user's cache folder.
    """
    return cast(Kernel, numba.njit(cache=True, nogil=True)(kernel))
