"""What every stage is given of a batch: the model's inputs and the loss's targets, by name."""

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
    """Inputs as arg0, arg1, ..., and the targets' tensors as target0, target1, ..., in the order in
    which they stand in their tuple or dictionary; without constants of the loss, by their number,
    which every stage has itself."""
    given = {f"arg{i}": x for i, x in enumerate(args)}
    leaves = enumerate(tree_leaves(targets))
    return given | {
        f"target{i}": x for i, x in leaves if isinstance(x, Tensor) and i not in constants
    }


def constants_of(build: Callable[..., BuiltModel], of: BuiltModel) -> frozenset[int]:
    """Numbers of the targets' tensors that are no part of the batch (weights of classes): the same
    where the model is built for a sample more."""
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
    """Shapes of the targets of so many samples, None for what is no tensor: every rank that a run
    makes of a plan, and its check, ask for them, and a whole model is built to find them."""
    targets = tree_leaves(build(micro_batch=samples).targets)
    return tuple(tuple(x.shape) if isinstance(x, Tensor) else None for x in targets)


def given_again(given: Mapping[str, Tensor], built: BuiltModel) -> tuple[list[Tensor], Any]:
    """The inputs among `model_arguments`, and the model's targets with those of theirs."""
    leaves, spec = tree_flatten(built.targets)
    targets = [given.get(f"target{i}", x) for i, x in enumerate(leaves)]
    return [given[f"arg{i}"] for i in range(len(built.args))], tree_unflatten(targets, spec)
