"""What a host loses that waits for every message between stages, as facts of a run.

A framework whose file says `blocking_messages` (nanotron) sends shape and stride ahead of every
tensor, and the receiving host reads them before it goes on. In its one published sweep (Ultra-Scale
Playbook, 847 runs on 1 to 64 nodes of H100) that shows in three ways:

- **Waits.** In some jobs a collective takes the host about 0.3 ms per rank, whatever its bytes
  (coefficient `wait_us`): those of tensor parallelism (`waiting_ranks`) and the all-reduces of
  gradient buckets (gradient_buckets.py). ZeRO 1's reduce-scatters take less than a tenth of it.
- **Stalls.** In some jobs with stages every message takes 0.28 s, whatever its bytes, model and
  number of stages, in the others next to nothing (`stalls`, coefficient `stall_ms`).
- **Lead.** Elsewhere the host runs ahead of its device, and freed tensors that a collective still
  reads pile up (`is_host_ahead`; what lingers is in the framework's file).

Which jobs wait: with stages, all on several nodes. Without stages, one in ten on 2 to 32 nodes; on
64 nodes 16 of 20 with tensor-parallel groups of up to two nodes, 3 of 18 with groups of four.

Without stages on 64 nodes both kinds of collective show the same time: 0.37 ms per rank of tensor
parallelism's and 0.35 ms per rank of a bucket, over four models, tp 2 to 16 and dp 32 to 256
(16 jobs, 6 % apart). With stages and tp 1, 0.23 ms per rank of a bucket (37 jobs, 2026-11-24). What
makes a host wait per rank is not known.

Which jobs stall is chance as far as a layout tells: 0.1 of those with stages do on up to 16 nodes,
0.4 on 32, 0.97 on 64, and 50 of 52 with tensor-parallel groups over four nodes. Predicted is the
likelier case alone. Weighing the other case in by its chance was less accurate: with rows left out
0.24 (the mean of the logarithms) to 0.36 (the mean) on average instead of 0.19, coefficients fitted
on this sweep and one other source (2026-11-22).
"""

from __future__ import annotations

from simulator.training_run.framework.framework import Framework
from simulator.training_run.run.training_run import TrainingRun

# Halfway, in the logarithm, between 32 nodes, where the fewer jobs stall, and 64, where most do.
_STALLING_NODES = 45.0
# Without stages collectives wait from here on: 16 of 20 jobs on 64 nodes, one in ten on 2 to 32
# nodes (ultra rows, 2026-11-24); sizes between were not measured.
_WAITING_NODES = 64
# Groups over two nodes stall no more often than those in one; the sweep's next size is four.
_CALM_TENSOR_NODES = 2.0


def waiting_ranks(run: TrainingRun, stack: Framework) -> float:
    """Ranks of the collectives of a layer's forward that wait for the host."""
    if not collectives_wait(run, stack) or run.degrees.tp == 1:
        return 0.0
    return (4.0 if run.sequence_parallel else 2.0) * run.degrees.tp


def collectives_wait(run: TrainingRun, stack: Framework) -> bool:
    """Whether collectives take the host a time per rank in most jobs of this layout."""
    if not stack.blocking_messages or run.num_nodes == 1:
        return False
    return run.degrees.pp > 1 or (run.num_nodes >= _WAITING_NODES and not _is_wide(run))


def stalls(run: TrainingRun, stack: Framework) -> bool:
    """Whether messages stall in most jobs of this layout that have the memory they need."""
    return stack.blocking_messages and run.degrees.pp > 1 and (_is_large(run) or _is_wide(run))


def is_host_ahead(run: TrainingRun, stack: Framework) -> bool:
    """Whether the host runs ahead of its device in most jobs of this layout.

    Not where they stall. With two stages the first has a received gradient outstanding from its
    second micro-batch on, so that its host waits in each collective, and is ahead only where groups
    are smaller than a node.
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
