"""What a framework pays whose host waits for every message between stages.

Such a framework (`RunStack.blocking_messages`; nanotron) sends shape and stride ahead of every
tensor, and the receiving host reads them before it goes on. Three things follow on published runs
(the sweep of the Ultra-Scale Playbook, 525 runs with stages on 2 to 64 nodes):

- **Waits.** While messages between nodes are outstanding, a collective of tensor parallelism takes
  the host a time that grows with its ranks, whatever its bytes: layers of 1B to 80B models take
  the same 10, 15, 25 ms with 2, 4, 8 ranks, where they take 4.5 ms without stages. So does the
  exchange of gradients, bucket by bucket, where the optimizer is not sharded.
- **Stalls.** In some jobs every message takes 0.28 s, whatever its bytes, model and number of
  stages (5 % apart); in the others it takes next to nothing. Nothing lies between.
- **Which jobs.** All that need more memory than the device has and run nevertheless: the allocator
  gives cached blocks back and takes new ones, which waits for the device (CUDA, `cudaFree`). All
  whose tensor-parallel groups span four nodes. Of the others a share that grows with the nodes:
  equal layouts are on both sides, so the rest is chance as far as a layout tells.

A prediction is that of the likelier case; the interval's band holds the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from simulator.training_run.features import Features

Array = NDArray[np.float64]
Claims = NDArray[np.bool_]

# Tensor-parallel groups on two nodes stall no more often than those in one.
_NEAR_NODES = 2.0
_POWER = 3.0


def crosses_nodes(x: Features) -> Claims:
    """[runs] whether a framework that waits for its messages has any between nodes."""
    return np.asarray((x.blocking > 0) & (x.nodes > 1))


def hazard(x: Features, c: Mapping[str, Array]) -> Array:
    """[runs] expected troubles of a job's network; one is enough to stall it.

    stall_any whatever the size, and (stall_node x nodes)^3. The power is the best of 1, 2, 3 and 4
    on 501 jobs with stages (log-likelihoods -248, -233, -227 and -227; 2026-11-21).
    """
    return np.asarray(c["stall_any"] + (c["stall_node"] * x.nodes) ** _POWER)


def wide_hazard(x: Features, c: Mapping[str, Array]) -> Array:
    """[runs] what tensor-parallel groups over more than two nodes add, where there are stages."""
    beyond = np.maximum(0.0, x.tensor_nodes - _NEAR_NODES)
    return np.asarray(np.where(x.pp > 1, c["stall_tensor_node"] * beyond, 0.0))


def stall_chance(x: Features, c: Mapping[str, Array]) -> Array:
    """[runs] share of such jobs whose network is in trouble: 1 - exp(-hazard) (Poisson)."""
    chance = 1.0 - np.exp(-hazard(x, c) - wide_hazard(x, c))
    return np.where(crosses_nodes(x), chance, 0.0)


def in_trouble(x: Features, c: Mapping[str, Array]) -> Claims:
    """[runs] whether trouble of the network is likelier than none.

    Without stages, groups of tensor parallelism over more than two nodes rarely show it: 3 of 18
    jobs on 64 nodes, where 17 of 20 with narrower groups do.
    """
    narrow = (x.pp > 1) | (x.tensor_nodes <= _NEAR_NODES)
    return np.asarray((stall_chance(x, c) > 0.5) & narrow)


def stalled(x: Features, trouble: Claims) -> Claims:
    """[runs] whether messages between stages stall."""
    short = x.over_memory > 0
    return np.asarray((x.blocking > 0) & (x.pp > 1) & ((trouble & crosses_nodes(x)) | short))


def stalled_messages(x: Features) -> Array:
    """[runs] messages on the critical path, each of which the host waits for.

    The first micro-batch goes through all stages and back, 2 (pp - 1). Every further one costs
    what the busiest rank sends and receives of it: 2 with two stages, 4 with more.
    """
    through = 2.0 * (x.pp - 1.0)
    further = x.microbatches * x.vpp - 1.0
    return np.asarray(through + further * np.minimum(through, 4.0))


def waiting_ranks(x: Features, trouble: Claims) -> Array:
    """[runs] ranks of the collectives of a layer's forward that wait for the host."""
    return np.where(_waits(x, trouble), x.tensor_waits, 0.0)


def waiting_buckets(x: Features, trouble: Claims) -> Array:
    """[runs] buckets of gradients whose exchange waits likewise."""
    return np.where(_waits(x, trouble), x.reduce_buckets, 0.0)


def _waits(x: Features, trouble: Claims) -> Claims:
    """With stages always, without them where the network is in trouble."""
    return np.asarray(crosses_nodes(x) & ((x.pp > 1) | trouble))
