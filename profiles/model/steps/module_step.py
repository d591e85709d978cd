"""Precisions of a step by name, and traced steps of modules, with a cache.

A step of a factory's module is a model graph of one block (profiles/model/graph.py). It has the
kernels of one batch with a given autocast type, memory format and attention. Torch is imported only
when a step is traced.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiles.errors import UnknownNameError
from profiles.extras import need_package
from profiles.model.graph import ModelGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrecision:
    """A precision of a step.

    weights   torch type of parameters and inputs
    autocast  torch type of products under autocast, or ""
    tf32      float32 products run on the tensor cores
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
    """The precision with this name; raises UnknownNameError."""
    if name not in PRECISIONS:
        raise UnknownNameError("precision", name, PRECISIONS)
    return PRECISIONS[name]


def traced_step(
    factory: str,
    arguments: Mapping[str, Any],
    precision: StepPrecision,
    *,
    channels_last: bool,
    fused_attention: bool,
) -> ModelGraph:
    """The step of a factory's module, cached; raises the errors of `build_step` and
    `trace_module_step`."""
    text = json.dumps(arguments, sort_keys=True)
    return _traced(factory, text, precision, channels_last, fused_attention)


@functools.cache
def _traced(
    factory: str, arguments: str, precision: StepPrecision, channels_last: bool, fused: bool
) -> ModelGraph:
    need_package("torch", f"tracing {factory}")
    from profiles.model.building.build_step import build_step
    from profiles.model.steps.trace_step import trace_module_step

    weights, given = precision.weights, json.loads(arguments)
    built = build_step(factory, given, weights=weights, channels_last=channels_last)
    return trace_module_step(built, precision, fused_attention=fused)
