"""`TracedSteps`: the step of any factory and arguments, each traced once. Imports torch only when a
step is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from profiles.errors import ShardwrightError
from profiles.model.steps.module_step import ModuleStep, StepPrecision


class TracedSteps:
    """Steps that were traced, and errors of those that failed."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], ModuleStep | ShardwrightError] = {}

    def step(
        self,
        factory: str,
        arguments: Mapping[str, Any],
        precision: StepPrecision,
        *,
        channels_last: bool,
        fused_attention: bool,
    ) -> ModuleStep:
        """The step; see `trace_module_step` and `build_step`, whose errors are raised each time."""
        key = (
            factory,
            json.dumps(arguments, sort_keys=True),
            precision.weights,
            precision.autocast,
            channels_last,
            fused_attention,
        )
        found = self._known.get(key)
        if found is None:
            from profiles.model.building.build_step import build_step
            from profiles.model.steps.trace_step import trace_module_step

            try:
                given = build_step(
                    factory, arguments, weights=precision.weights, channels_last=channels_last
                )
                found = trace_module_step(given, precision, fused_attention=fused_attention)
            except ShardwrightError as error:
                found = error
            self._known[key] = found
        if isinstance(found, ShardwrightError):
            raise found
        return found
