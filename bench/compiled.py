"""Numba's compiler with the settings that all inner loops of the planner share.

Compiling is what a stranger waits for at the first use, so kernels are written to compile fast:
room to work in is allocated by the caller in numpy, arrays are copied by loops. A slice assignment
brings numba's text formatting along, for the message of a shape that does not fit: of 3.4 s that
a kernel of 160 lines took to compile, 3.0 s (numba 0.68.1, 2026-11-21).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import FunctionCache

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(kernel: Kernel) -> Kernel:
    """The kernel as machine code, compiled at its first call and kept beside its file.

    It releases the interpreter's lock, so that two threads search at once. Where the folder cannot
    be written, numba keeps its cache in the user's cache folder or where NUMBA_CACHE_DIR says;
    where it can be kept nowhere, or what is kept is damaged, the kernel is compiled once more.
    """
    dispatcher: Any = numba.njit(nogil=True)(kernel)
    # RuntimeError "cannot cache function: no locator available": no folder can be written.
    with contextlib.suppress(RuntimeError):
        # What njit(cache=True) sets, with a cache that may fail.
        dispatcher._cache = _Cache(kernel)  # type: ignore[no-untyped-call]  # numba has no types
    return cast(Kernel, dispatcher)


def is_at_hand(kernel: Callable[..., object]) -> bool:
    """Whether a kernel has been compiled, in this process or (by the look of its cache) before."""
    dispatcher: Any = kernel
    if dispatcher.signatures:
        return True
    return isinstance(dispatcher._cache, _Cache) and dispatcher._cache.is_filled()


class _Cache(FunctionCache):
    """Numba's cache of one kernel; what it cannot read or write costs time, never the answer."""

    def is_filled(self) -> bool:
        """Whether anything was kept."""
        return Path(self._cache_file._index_path).exists()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]  # numba has no types
        except Exception:  # a damaged file: unpickling it may raise anything
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]  # numba has no types
        except Exception:  # no room, or a damaged index, which is read before it is written
            return
