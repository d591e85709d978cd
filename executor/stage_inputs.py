"""Inputs of every stage: the model's inputs and the loss's targets of a batch, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from profiles.model.building.build import BuiltModel


def model_arguments(
    args: Sequence[Tensor], targets: Any, constants: frozenset[int] = frozenset()
) -> dict[str, Tensor]:
    """Inputs as arg0, arg1, ..., and tensors of the targets as target0, target1, ..., in the order
    of their tuple or dictionary; without constants of the loss (by number), which every stage has.
    """
    given = {f"arg{i}": x for i, x in enumerate(args)}
    leaves = enumerate(tree_leaves(targets))
    return given | {
        f"target{i}": x for i, x in leaves if isinstance(x, Tensor) and i not in constants
    }


def constants_of(build: Callable[..., BuiltModel], of: BuiltModel) -> frozenset[int]:
    """Numbers of the target tensors that are not part of the batch (class weights): their shapes do
    not change with the number of samples."""
    leaves = tree_leaves(of.targets)
    if not any(isinstance(x, Tensor) for x in leaves):
        return frozenset()
    larger = _target_shapes(build, of.args[0].shape[0] + 1)
    pairs = enumerate(zip(leaves, larger, strict=True))
    return frozenset(i for i, (a, b) in pairs if isinstance(a, Tensor) and a.shape == b)


@lru_cache(maxsize=16)
def _target_shapes(
    build: Callable[..., BuiltModel], samples: int
) -> tuple[tuple[int, ...] | None, ...]:
    """Shapes of the targets for a number of samples, None for non-tensors. Cached, because it
    builds a whole model, and every rank of a run and its check need the shapes."""
    targets = tree_leaves(build(micro_batch=samples).targets)
    return tuple(tuple(x.shape) if isinstance(x, Tensor) else None for x in targets)


def given_again(given: Mapping[str, Tensor], built: BuiltModel) -> tuple[list[Tensor], Any]:
    """The inverse of `model_arguments`: the inputs, and the targets with their tensors put back."""
    leaves, spec = tree_flatten(built.targets)
    targets = [given.get(f"target{i}", x) for i, x in enumerate(leaves)]
    return [given[f"arg{i}"] for i in range(len(built.args))], tree_unflatten(targets, spec)
