"""Host delays of frameworks with blocking messages between pipeline stages.

A framework with `blocking_messages` (nanotron) sends shape and stride before every tensor, and the
receiving host waits for them. Its one published sweep (Ultra-Scale Playbook, 847 runs on 1 to 64
nodes of H100) has three effects:

- **Waits.** In some jobs a collective takes about 0.3 ms of host time per rank, independent of its
bytes (coefficient `wait_us`): collectives of tensor parallelism (`waiting_ranks`) and all-reduces
of gradient buckets (gradient_exchange.py). ZeRO 1's reduce-scatters take less than 1/10 of it.
- **Stalls.** In some pipeline-parallel jobs every message takes 0.28 s, independent of its bytes,
model and number of stages. In the others it takes almost no time (`stalls`, coefficient
`stall_ms`).
- **Lead.** In all other jobs the host runs ahead of its device, and freed tensors accumulate while
a collective still reads them (`is_host_ahead`; the framework's file lists these tensors).

Jobs with waits: with pipeline stages, all on several nodes. Without, one in ten on 2 to 32 nodes;
on 64 nodes, 16 of 20 with tensor-parallel groups of up to two nodes and 3 of 18 with groups of
four.

Without stages on 64 nodes, both kinds of collectives have the same delay: 0.37 ms per rank for
tensor parallelism and 0.35 ms per rank of a bucket, over four models, tp 2 to 16 and dp 32 to 256
(16 jobs, within 6 %). With stages and tp 1: 0.23 ms per rank of a bucket (37 jobs, 2026-11-24). The
cause of a wait per rank is unknown.

Stalls are random for a given layout: with stages, 0.1 of the jobs on up to 16 nodes, 0.4 on 32,
0.97 on 64, and 50 of 52 with tensor-parallel groups over four nodes. The more likely case is
predicted. Weighting both cases by probability was less accurate: with coefficients fitted on this
sweep and one other source, the mean error on held-out rows was 0.24 (mean of the logarithms) to
0.36 (mean), compared with 0.19 (2026-11-22).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.training_run.run.training_run import TrainingRun

if TYPE_CHECKING:  # framework.py imports this file indirectly
    from simulator.training_run.framework.framework import Framework

# Number of nodes: geometric mean of 32 (a minority of jobs stalls) and 64 (most stall).
_STALLING_NODES = 45.0
# Minimum number of nodes for waits without stages: 16 of 20 jobs on 64 nodes, one in ten on 2 to 32
# (ultra rows, 2026-11-24). Sizes in between were not measured.
_WAITING_NODES = 64
# Maximum number of nodes of a tensor-parallel group without more stalls than on one node; the next
# measured size is four.
_CALM_TENSOR_NODES = 2.0


def waiting_ranks(run: TrainingRun, stack: Framework) -> float:
    """Sum over a layer's forward collectives of their ranks, if they wait for the host; otherwise
    0."""
    if not collectives_wait(run, stack) or run.degrees.tp == 1:
        return 0.0
    return (4.0 if run.sequence_parallel else 2.0) * run.degrees.tp


def collectives_wait(run: TrainingRun, stack: Framework) -> bool:
    """Whether collectives have a host delay per rank in most jobs of this layout."""
    if not stack.blocking_messages or run.num_nodes == 1:
        return False
    return run.degrees.pp > 1 or (run.num_nodes >= _WAITING_NODES and not _is_wide(run))


def stalls(run: TrainingRun, stack: Framework) -> bool:
    """Whether messages stall in most jobs of this layout with enough memory."""
    return stack.blocking_messages and run.degrees.pp > 1 and (_is_large(run) or _is_wide(run))


def is_host_ahead(run: TrainingRun, stack: Framework) -> bool:
    """Whether the host runs ahead of its device in most jobs of this layout.

    False if messages stall. With two stages, the first one has a pending received gradient from its
    second micro-batch on. So its host waits in each collective, and is ahead only with groups
    smaller than a node.
    """
    degrees = run.degrees
    if not stack.blocking_messages or stalls(run, stack):
        return False
    if degrees.pp == 1:
        return not _is_large(run) or _is_wide(run)
    return degrees.pp > 2 or degrees.tp < run.node_devices


def _is_large(run: TrainingRun) -> bool:
    return run.num_nodes > _STALLING_NODES


def _is_wide(run: TrainingRun) -> bool:
    return run.degrees.tp > _CALM_TENSOR_NODES * run.node_devices
