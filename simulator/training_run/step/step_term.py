"""`Term`: one cost of a step: its name, its formula, and how often it counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.training_run.step.features import Features
from simulator.values.prediction import Part

Array = NDArray[np.float64]
Coefficients = Mapping[str, Array]

# Coefficients with these suffixes are in microseconds and milliseconds.
US, MS = 1e-6, 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Per:
    """How often a term counts in one micro-batch of a stage.

    first, last  count of the first and of the last stage; other stages have the count of the
                 first, or 0 with `ends_only`
    """

    first: Callable[[Features], Array]
    last: Callable[[Features], Array]
    ends_only: bool = False


# LAYER terms add up to `Earlier.layer`, with which messages and transfers may overlap; BESIDE terms
# are the exposed parts of those.
LAYER = Per(first=lambda x: x.layers, last=lambda x: x.last_layers)
BESIDE = Per(first=lambda x: x.layers, last=lambda x: x.last_layers)
CHUNK = Per(first=lambda x: x.vpp, last=lambda x: x.vpp)
LOGITS = Per(first=lambda x: np.where(x.pp > 1, 0.0, 1.0), last=lambda x: np.ones(1))
WIDE_LAYER = Per(first=lambda x: x.wide_first, last=lambda x: x.wide_last, ends_only=True)
PER_MICROBATCH = (LAYER, BESIDE, CHUNK, LOGITS, WIDE_LAYER)


@dataclass(slots=True, kw_only=True)
class Earlier:
    """Sums of earlier terms, for use in later ones: [runs] seconds.

    of           each term of a layer so far, by name
    layer        their sum per layer and micro-batch, forward and backward
    busiest      the busiest stage's time per micro-batch
    stages       the sum of this time over all stages
    step         the step so far. The last three are for terms that count once per step
    """

    layer: Array
    of: dict[str, Array] = field(default_factory=dict)
    busiest: Array = field(default_factory=lambda: np.zeros(1))
    stages: Array = field(default_factory=lambda: np.zeros(1))
    step: Array = field(default_factory=lambda: np.zeros(1))


Formula = Callable[[Features, Coefficients, Earlier], Array]


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One cost of a training step.

    name     as printed
    part     of the step
    seconds  its formula, run on arrays for predictions and on symbols for explanations
             (formula_symbol.py). It must not decrease with `Features.idle_share`, because searches
             bound the step by a lower bound of the idle share
    per      its count in each micro-batch; None: once per step
    way      its pass: `forward`, `backward`, or "" for both
    words    the formula in words, if its symbols alone are unclear
    """

    name: str
    part: Part
    seconds: Formula
    per: Per | None = field(default=None, kw_only=True)
    way: str = field(default="", kw_only=True)
    words: str = field(default="", kw_only=True)


# Number of nodes that the messages of a kind cross; other kinds cross all nodes of the run.
_NODES = {
    "tensor": "tensor_nodes",
    "expert": "expert_nodes",
    "context": "context_nodes",
    "gather": "data_nodes",
    "reduce": "data_nodes",
}


def between_nodes(nodes: Array, c: Coefficients) -> Array:
    """Factor on the time of bytes between nodes due to other traffic: flows collide on shared
    switches, and a group over more nodes crosses more switches.
    """
    return c["outer"] * (1.0 + c["congestion"] * np.log2(nodes))


def moved(x: Features, kind: str, c: Coefficients) -> Array:
    """Seconds of the messages of a kind (`tensor`, `reduce`, ...). The levels inside nodes, between
    nodes and beyond work at the same time, so the slowest counts (simulator/collectives.py).
    """
    inner, outer, far = (getattr(x, f"{kind}_{level}") for level in ("inner", "outer", "far"))
    network = outer * between_nodes(getattr(x, _NODES.get(kind, "nodes")), c)
    seconds: Array = np.maximum(np.maximum(inner * c["inner"], network), far)
    return seconds


def passes(x: Features) -> Array:
    """Number of passes of a layer's messages: forward, backward, and the recomputed share."""
    return 2.0 + x.recomputed_routed
