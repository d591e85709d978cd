"""The lines of a step for far levels, rare exchanges and what is kept in host memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from profiles.units import format_time
from simulator.training_run.features import Features
from simulator.training_run.step_line import StepLine
from simulator.training_run.step_time import far_cuts, host_shown, moved, not_hidden


def as_arrays(c: Mapping[str, float]) -> dict[str, NDArray[np.float64]]:
    """The coefficients of one run as `step_parts` takes them."""
    return {kind: np.asarray([value]) for kind, value in c.items()}


def host_line(x: Features, layer_s: float) -> StepLine:
    """Of one layer and micro-batch of one run."""
    shown = float(host_shown(x, np.asarray([layer_s]))[0])
    return StepLine(
        part="host_s",
        name="activations to host memory and back",
        time_s=shown,
        formula="transfers - layer, above 0, where the framework overlaps them; else transfers",
        numbers=f"(transfers {format_time(float(x.host_layer_s[0]))}, layer "
        f"{format_time(layer_s)})",
    )


def far_lines(
    x: Features, c: Mapping[str, float], busiest_s: float, layers_s: float
) -> list[StepLine]:
    """Of one run; busiest_s and layers_s are per micro-batch, of the busiest stage and of the
    layers of the fullest one."""
    arrays = as_arrays(c)
    crossings, way = float(x.cut_crossings[0]), float(x.cut_far[0] + x.cut_far_latency[0])
    excess = not_hidden(x, arrays, np.asarray([layers_s]))
    sync = moved(x.sync_inner, x.sync_outer, x.sync_far, arrays)
    return [
        StepLine(
            part="cut_s",
            name="sends between far parts of the machine",
            time_s=float(far_cuts(x, arrays, np.asarray([busiest_s]))[0]),
            formula="the largest of: a send per micro-batch, and two per crossing to fill and "
            "drain (interleaved: what half a chunk does not hide); cut_exposed x 2 sends per "
            "micro-batch; what the line falls behind the stages",
            numbers=f"a send {format_time(way)}, {crossings:g} crossings, {x.microbatches[0]:g} "
            f"micro-batches of {format_time(busiest_s)}",
        ),
        StepLine(
            part="reduce_s",
            name="exchange over a slow level that nothing hides",
            time_s=float(excess[0]),
            formula="(1 - reduce_exposed) x (slow level - network) - one micro-batch's layers, "
            "above 0",
            numbers=f"slow level {format_time(float(x.reduce_far[0]))}, layers "
            f"{format_time(layers_s)}",
        ),
        StepLine(
            part="reduce_s",
            name="averaging the workers of local steps",
            time_s=float(sync[0]),
            formula="slowest of (inner x seconds in the node, outer x seconds between nodes, "
            "slowest level beyond), over the local steps",
            numbers=f"{format_time(float(sync[0]))} per step",
        ),
    ]
