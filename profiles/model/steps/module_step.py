"""The words of a table for a step's precision, and steps of modules, each traced once.

A step of a factory's module is a model graph of one block (profiles/model/graph.py): the kernels
of one batch as they run under autocast, in a layout, with attention written out. Torch is imported
only when a step is traced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiles.errors import ShardwrightError, UnknownNameError
from profiles.model.graph import ModelGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrecision:
    """What a precision's name means.

    weights   torch type of parameters and inputs
    autocast  torch type that autocast casts products to, or ""
    tf32      products of float32 run on the tensor cores
    """

    weights: str = "float32"
    autocast: str = ""
    tf32: bool = False


PRECISIONS = {
    "fp32": StepPrecision(),
    "tf32": StepPrecision(tf32=True),
    "fp16": StepPrecision(weights="float16"),
    "bf16": StepPrecision(weights="bfloat16"),
    "amp-fp16": StepPrecision(autocast="float16", tf32=True),
    "amp-bf16": StepPrecision(autocast="bfloat16", tf32=True),
}


def step_precision(name: str) -> StepPrecision:
    """The precision of a name; raises UnknownNameError."""
    if name not in PRECISIONS:
        raise UnknownNameError("precision", name, PRECISIONS)
    return PRECISIONS[name]


class TracedSteps:
    """Steps that were traced, and errors of those that failed."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], ModelGraph | ShardwrightError] = {}

    def step(
        self,
        factory: str,
        arguments: Mapping[str, Any],
        precision: StepPrecision,
        *,
        channels_last: bool,
        fused_attention: bool,
    ) -> ModelGraph:
        """The step; see `trace_module_step` and `build_step`, whose errors are raised each time."""
        key = (
            factory,
            json.dumps(arguments, sort_keys=True),
            precision,
            channels_last,
            fused_attention,
        )
        found = self._known.get(key)
        if found is None:
            from profiles.model.building.build_step import build_step
            from profiles.model.steps.trace_step import trace_module_step

            try:
                built = build_step(
                    factory, arguments, weights=precision.weights, channels_last=channels_last
                )
                found = trace_module_step(built, precision, fused_attention=fused_attention)
            except ShardwrightError as error:
                found = error
            self._known[key] = found
        if isinstance(found, ShardwrightError):
            raise found
        return found
