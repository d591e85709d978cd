"""Recomputation of a block's activations: torch's activation checkpointing on its modules."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from executor.split_backward import SplitBackward
from executor.stages import StageModule
from simulator.values.plan import Recompute


def apply_recompute(stage: StageModule, kinds: tuple[Recompute, ...]) -> None:
    """Checkpoint each block of the stage as its kind says.

    full       every unit of the block keeps its inputs only
    attention  the block's attention submodule keeps its inputs only; a block without one is left
    Code between the units of a block is not recomputed.
    """
    modules = dict(stage.model.named_modules())
    for offset, kind in enumerate(kinds):
        for path in stage.unit_paths(stage.first + offset):
            if kind is Recompute.FULL:
                _checkpoint(modules[path], stage.split)
            elif kind is Recompute.ATTENTION:
                attention = attention_of(modules[path])
                if attention is not None:
                    _checkpoint(attention, stage.split)


def attention_of(module: nn.Module) -> nn.Module | None:
    """The innermost-named attention submodule of a block: the one that holds no other."""
    found = [m for m in module.modules() if m is not module and "Attention" in type(m).__name__]
    inner = [m for m in found if not any(o is not m and o in set(m.modules()) for o in found)]
    return inner[0] if inner else None


def _checkpoint(module: nn.Module, split: SplitBackward | None) -> None:
    original = module.forward

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        # The forward is watched with the stage's; what runs again, runs in the backward.
        return nullcontext(), split.watching() if split else nullcontext()

    def forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(original, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    module.forward = forward
