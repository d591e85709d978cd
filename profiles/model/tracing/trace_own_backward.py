"""Where a model applies autograd functions written in Python, `torch.utils.checkpoint` among them.

Such a function's backward is known to autograd alone, and what its forward calls is not in the
graph: it may run whole blocks, now and again in its backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


@contextmanager
def watched_functions(on_apply: Callable[[str], None]) -> Iterator[None]:
    """Inside it `on_apply` is called with the name of every such function that is given a tensor
    with a gradient, as it is applied; those that stand for kernels in a trace are left out."""
    original: Any = vars(Function)["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        trained = any(isinstance(x, Tensor) and x.requires_grad for x in args)
        if trained and torch.is_grad_enabled() and not cls.__module__.startswith("profiles."):
            on_apply(f"{cls.__module__}.{cls.__qualname__}")
        return original.__func__(cls, *args, **kwargs)

    Function.apply = classmethod(apply)  # type: ignore[method-assign,assignment] # as it was after
    try:
        yield
    finally:
        Function.apply = original  # type: ignore[method-assign] # what it was
