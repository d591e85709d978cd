"""Recomputation of a block's activations: torch's activation checkpointing on its modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.nn.utils.stateless import _reparametrize_module  # torch 2.11 to 2.13
from torch.utils.checkpoint import checkpoint

from executor.split_backward import SplitBackward
from executor.stages import StageModule
from profiles.model.fake_tensors.trace_generators import Generators
from simulator.values.plan import Recompute


def apply_recompute(stage: StageModule, kinds: tuple[Recompute, ...]) -> None:
    """Apply activation checkpointing to the blocks of a stage, by their recompute kind.

    full       every unit of the block saves its inputs only
    attention  the block's attention submodule saves its inputs only; no effect without one

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
    """The first innermost attention module of a block, by class name; None without any."""
    found = [m for m in module.modules() if m is not module and "Attention" in type(m).__name__]
    inner = [m for m in found if not any(o is not m and o in set(m.modules()) for o in found)]
    return inner[0] if inner else None


def _checkpoint(module: nn.Module, split: SplitBackward | None) -> None:
    original = module.forward
    changing: set[str] | None = None  # its buffers that a call changes; known after the first call
    generators = Generators(module)  # torch restores only its own state
    draws = True  # whether it draws from them; known after the first call

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal changing, draws
        begun = generators.states() if draws else None
        held = dict(module.named_buffers())
        versions = {name: (id(b), b._version) for name, b in held.items()}
        before = {n: b.clone() for n, b in held.items() if changing is None or n in changing}

        @contextmanager
        def again() -> Iterator[None]:
            # The second call starts with the buffers and random numbers of the first, and leaves no
            # trace in them.
            as_before = _reparametrize_module(module, {n: b.clone() for n, b in before.items()})
            products = split.watching() if split else nullcontext()
            with as_before, generators.at(begun), products:
                yield

        def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
            # The stage's forward is already watched; recomputation runs in the backward.
            return split.under_these_hooks() if split else nullcontext(), again()

        made = checkpoint(original, *args, use_reentrant=False, context_fn=contexts, **kwargs)
        if changing is None:
            after = {name: (id(b), b._version) for name, b in module.named_buffers()}
            changing = {name for name in held if versions[name] != after.get(name)}
            for name in set(before) - changing:
                del before[name]
            draws = begun is not None and generators.changed(begun)
        return made

    module.forward = forward
