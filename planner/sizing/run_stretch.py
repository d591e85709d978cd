"""Wall-clock over steady steps of a long run by nodes, in closed form: for ranking only.

The median over clusters of what expected_time.py says, at numbers of devices a third of an octave
apart and straight between them, so that equal questions get equal answers whatever their limits. The
answer that is shown, and its runners-up, are simulated (time_to_train.py).
"""

from __future__ import annotations

import numpy as np

from planner.layout.layout_goal import Array
from simulator.goodput.clusters import draw_clusters
from simulator.goodput.expected_time import expected
from simulator.goodput.reliability_inputs import ReliabilityInputs

_PER_OCTAVE = 3
_DRAWS = 400
_SEED = 0


def run_stretch(
    parameters: float,
    device: str,
    node_devices: int,
    most_nodes: int,
    inputs: ReliabilityInputs,
) -> Array:
    """[nodes] from 0 to `most_nodes`; 1 where nothing ever failed."""
    octaves = np.log2(max(2, most_nodes))
    counts = np.unique(np.geomspace(1, most_nodes, 1 + int(_PER_OCTAVE * octaves)).round())
    found = []
    for nodes in counts.astype(int).tolist():
        clusters = draw_clusters(
            parameters,
            nodes * node_devices,
            device,
            inputs,
            draws=_DRAWS,
            rng=np.random.default_rng(_SEED),
        )
        found.append(float(np.median(expected(clusters).wall_s * clusters.contingency)))
    each = np.interp(np.log(np.arange(1, most_nodes + 1)), np.log(counts), found)
    return np.concatenate([np.ones(1), each])
