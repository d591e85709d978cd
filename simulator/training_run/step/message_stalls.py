"""Cost of a host that blocks on every pipeline message (nanotron).

Such a framework (`Framework.blocking_messages`; nanotron) sends shape and stride ahead of every
tensor, and the receiving host reads them before it goes on. On published runs (the sweep of the
Ultra-Scale Playbook, 847 runs on 1 to 64 nodes) that shows in three ways:

- **Waits.** While messages between nodes are outstanding, a collective of tensor parallelism takes
  the host a time that grows with its ranks, whatever its bytes: layers of 1B to 80B models take
  the same 10, 15, 25 ms with 2, 4, 8 ranks, where they take 4.5 ms without stages. So does the
  exchange of gradients, bucket by bucket, where the optimizer is not sharded.
- **Stalls.** In some jobs every message takes 0.27 s, whatever its bytes, model and number of
  stages (5 % apart); in the others it takes next to nothing. Nothing lies between. Jobs without
  pipelining wait instead of stalling.
- **Which jobs.** All but one of those that need more memory than the device has and run
  nevertheless: the allocator gives cached blocks back and takes new ones, which waits for the
  device (CUDA, `cudaFree`). Of the others a share that grows with the nodes: equal layouts are on
  both sides, so the rest is chance as far as a layout tells.

A prediction is the likelier case, and where that is the calm one it carries a risk (`risk_s`), so
that layouts that may stall are ranked behind those that do not. No choice among layouts can do
better than the chances allow: where stalls are drawn from the fitted ones (400 times, times 12 %
apart), the layouts that are best on average are 23.4 % slower than what turned out best in their
groups, those chosen by these predictions 24.6 %, by the likelier case alone 60 %, and by one who
knew which jobs stall 5.1 % (24 groups of measured layouts; 2026-11-21).

The same trouble shows in what the allocator reserves (`host_lead.py`): of 148 jobs without stages
whose time and peak tell the case, 141 are calm with a host that is ahead of its device, or in
trouble with one that never is.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from simulator.training_run.step.features import Features

Array = NDArray[np.float64]
Claims = NDArray[np.bool_]

# Tensor-parallel groups on two nodes stall no more often than those in one.
_NEAR_NODES = 2.0
_POWER = 3.0
# `risk_s` says why.
_NEARLY_ALL = 0.8
_MOST_CALM_STEPS = 2.0


def crosses_nodes(x: Features) -> Claims:
    """[runs] whether a framework that waits for its messages has any between nodes."""
    return np.asarray((x.blocking > 0) & (x.nodes > 1))


def may_stall(x: Features) -> Claims:
    """[runs] whether trouble would slow them down."""
    return np.asarray(crosses_nodes(x) | _short_of_memory(x))


def hazard(x: Features, c: Mapping[str, Array]) -> Array:
    """[runs] expected troubles of a job between nodes; one is enough to stall it.

    With stages: stall_any whatever the size, (stall_node x nodes)^3, stall_tensor_node for every
    node beyond two of a tensor-parallel group, stall_whole where whole gradients are exchanged.
    The power is the best of 1, 2, 3 and 4 on 501 jobs (log-likelihoods -248, -233, -227 and -227;
    2026-11-21).

    Without stages: stall_any for every node of a tensor-parallel group, and stall_alone x
    ((stall_node x nodes)^3 / those nodes)^2. On 64 nodes 8 of 9 such jobs with groups in a node are
    in trouble, 7 of 10 with groups over two, 3 of 18 with groups over four; on 2 to 32 nodes 17 of
    176, of groups in a node 5 of 111 (log-likelihood of 213 jobs left out in fifths, each with a
    term of its own: -204 without the first term, -77 with it alike for all groups, -73 so;
    2026-11-21).
    """
    of_nodes = (c["stall_node"] * x.nodes) ** _POWER
    beyond = np.maximum(0.0, x.tensor_nodes - _NEAR_NODES)
    staged = c["stall_any"] + of_nodes + c["stall_tensor_node"] * beyond
    staged = staged + c["stall_whole"] * (x.reduce_buckets > 0)
    alone = c["stall_any"] * x.tensor_nodes + c["stall_alone"] * (of_nodes / x.tensor_nodes) ** 2
    return np.asarray(np.where(x.pp > 1, staged, alone))


def stall_chance(x: Features, c: Mapping[str, Array]) -> Array:
    """[runs] share of such jobs that are in trouble: 1 - exp(-hazard) (Poisson), 1 where a run with
    stages needs more memory than there is."""
    chance = np.where(crosses_nodes(x), -np.expm1(-hazard(x, c)), 0.0)
    return np.where(_short_of_memory(x), 1.0, chance)


def risk_s(calm_s: Array, troubled_s: Array, chance: Array) -> Array:
    """[runs] seconds that trouble adds to a prediction, from the times without and with it.

    All of the difference where more than four of five jobs are in trouble: the two times are 1 :
    4.2 at the median (ultra rows), and up to a chance of 4.2 / 5.2 the smaller has the lesser
    expected relative error. Else what trouble adds on average, counted as two calm steps at most:
    the mean in full puts the 154 jobs that ran well 85 % off on average, this does so by 19 % (rows
    left out), and the layouts chosen are 24.6 % instead of 23.5 % slower than the best (module).
    Never falls where a time rises, so bounds on both times bound it.
    """
    slower = troubled_s - calm_s
    expected = chance * np.minimum(slower, _MOST_CALM_STEPS * calm_s)
    return np.asarray(np.where(chance > _NEARLY_ALL, slower, expected))


def stalled_messages(x: Features, trouble: Claims) -> Array:
    """[runs] messages on the critical path that stall.

    The first micro-batch goes through all stages and back, 2 (pp - 1). Every further one costs
    what the busiest rank sends and receives of it: 2 with two stages, 4 with more.
    """
    through = 2.0 * (x.pp - 1.0)
    further = x.microbatches * x.vpp - 1.0
    stalls = trouble & (x.pp > 1) & (crosses_nodes(x) | _short_of_memory(x))
    return np.where(stalls, through + further * np.minimum(through, 4.0), 0.0)


def waiting_ranks(x: Features, trouble: Claims) -> Array:
    """[runs] ranks of the collectives of a layer's forward that wait for the host."""
    return np.where(_waits(x, trouble), x.tensor_waits, 0.0)


def waiting_buckets(x: Features, trouble: Claims) -> Array:
    """[runs] buckets of gradients whose exchange waits likewise."""
    return np.where(_waits(x, trouble) & ~trouble, x.reduce_buckets, 0.0)


def stalled_buckets(x: Features, trouble: Claims) -> Array:
    """[runs] buckets of gradients whose exchange stalls."""
    return np.where(crosses_nodes(x) & trouble, x.reduce_buckets, 0.0)


def _waits(x: Features, trouble: Claims) -> Claims:
    """With stages always, without them where the job is in trouble."""
    return np.asarray(crosses_nodes(x) & ((x.pp > 1) | trouble))


def _short_of_memory(x: Features) -> Claims:
    return np.asarray((x.blocking > 0) & (x.pp > 1) & (x.over_memory > 0))
