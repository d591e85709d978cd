"""The specification of a module object, as for models with a name.

The factory of this specification returns a copy of the module without weights, since a trace needs
only shapes. It exists only in this process; a run needs a name that its ranks can import.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from profiles.errors import ModelError
from profiles.model.building.build_feeds import assumed_loss
from profiles.model.loaders import GIVEN, ModelSpec

Module = nn.Module
Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
_FACTORIES: dict[str, Callable[[], tuple[Any, ...]]] = {}


def spec_of_module(
    module: nn.Module,
    inputs: Inputs | None,
    *,
    targets: Any = None,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    tokens_per_sample: int | None = None,
) -> ModelSpec:
    """The specification of a module with example inputs, dimension 0 of which is the batch.

    loss_fn  of (output, targets); None: `assumed_loss`
    Raises ModelError if `module` is no torch module.
    """
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"a torch module or the name of a model is needed, found {type(module).__name__}"
        )
    if inputs is None:
        raise ModelError(
            f"{type(module).__name__}: example inputs are needed: a tensor, a tuple of tensors or "
            "a dictionary of them, dimension 0 the batch"
        )
    name = f"{type(module).__name__}_{len(_FACTORIES)}"

    def factory() -> tuple[Any, ...]:
        shapes: dict[int, Tensor] = {
            id(x): nn.Parameter(x.detach().to("meta"), requires_grad=x.requires_grad)
            for x in module.parameters()
        }
        shapes |= {id(x): x.detach().to("meta") for x in module.buffers()}
        made = copy.deepcopy(module, shapes)
        if loss_fn is None and tokens_per_sample is None:
            return made, inputs
        return made, inputs, targets, loss_fn or assumed_loss, tokens_per_sample

    _FACTORIES[name] = factory
    return ModelSpec(
        name=type(module).__name__,
        source=type(module).__name__ + GIVEN,
        factory=f"{__name__}:{name}",
    )


def __getattr__(name: str) -> Callable[[], tuple[Any, ...]]:
    if name in _FACTORIES:
        return _FACTORIES[name]
    raise AttributeError(name)
