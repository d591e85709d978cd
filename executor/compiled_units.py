"""torch.compile for the units of a stage, one by one.

Replay, draws, FSDP2 and recomputation are hooks or functions around a unit and stay eager: only its
own forward is compiled, as one graph. If torch cannot compile a unit to one graph (a graph break,
no C++ compiler), the unit runs eagerly from then on, and the run reports it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from executor.stages import StageModule


class CompiledUnit:
    """A unit's forward. `why_eager` is empty as long as it runs compiled."""

    def __init__(self, unit: nn.Module, backend: str) -> None:
        self.why_eager = ""
        self._eager = unit.forward
        self._compiled = torch.compile(unit.forward, fullgraph=True, dynamic=False, backend=backend)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.why_eager:
            try:
                return self._compiled(*args, **kwargs)
            except torch._dynamo.exc.TorchDynamoException as error:
                self.why_eager = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        return self._eager(*args, **kwargs)


def compile_units(stage: StageModule, backend: str) -> dict[str, CompiledUnit]:
    """Compile the units of a stage; returns them by their paths."""
    torch._dynamo.config.recompile_limit = 64  # units of one class share their code and its limit
    torch._inductor.config.fallback_random = True  # dropout as in an eager unit (replay/draws.py)
    called = (path for b in range(stage.first, stage.last) for path in stage.unit_paths(b))
    modules, units = dict(stage.model.named_modules()), dict[str, CompiledUnit]()
    for path in dict.fromkeys(filter(None, called)):
        units[path] = modules[path].forward = CompiledUnit(modules[path], backend)
    return units
