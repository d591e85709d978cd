"""Runs of torch.utils.checkpoint: whether one is active, and function modes in its second run.

A checkpointed layer runs again in the backward, and torch compares the tensors saved by both runs.
But autograd runs a backward without function modes (torch 2.13): attention, for example, was one
fused op in the first run and several ops in the second.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils import checkpoint


def in_checkpoint() -> bool:
    """Whether code of a forward pass runs under `torch.utils.checkpoint` (not `use_reentrant`): it
    runs again in the backward."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and hooks[0].__module__ == checkpoint.__name__


class _Modes:
    """Context with the given modes active again."""

    def __init__(self, modes: list[Any]) -> None:
        self._modes = modes

    def __enter__(self) -> None:
        for mode in self._modes:
            _push_mode(mode)

    def __exit__(self, *error: object) -> None:
        for _ in self._modes:
            _pop_mode()


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _Modes(_get_current_function_mode_stack())


@contextmanager
def modes_in_checkpoints() -> Iterator[None]:
    """Within the context, checkpoints keep the function modes of their first run in the second.

    Checkpoints with a `context_fn`, and those with `use_reentrant`, which compare nothing, do not.
    """
    usual = checkpoint.noop_context_fn
    defaults = inspect.unwrap(checkpoint.checkpoint).__kwdefaults__
    # torch compares the argument with the function of this name.
    checkpoint.noop_context_fn = defaults["context_fn"] = _contexts
    try:
        yield
    finally:
        checkpoint.noop_context_fn = defaults["context_fn"] = usual
