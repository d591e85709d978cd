"""What of a run makes a host wait that waits for every message between stages.

Facts for `message_stalls.py`, which says what they cost; all 0 of other frameworks.
"""

from __future__ import annotations

from profiles.hardware.catalogue.catalog import get_device
from simulator.training_run.framework.framework import Framework
from simulator.training_run.memory.footprint import footprint
from simulator.training_run.run.training_run import TrainingRun

# torch's DistributedDataParallel sums gradients in buckets of so many bytes: `bucket_cap_mb` is 25
# unless set (https://pytorch.org/docs/stable/generated/
# torch.nn.parallel.DistributedDataParallel.html, read 2026-11-21).
_BUCKET_BYTES = 25 * 2**20


def blocked_host(
    run: TrainingRun, stack: Framework, *, rank_parameters: float, fits: bool
) -> dict[str, float]:
    """The features of a run that `Features` keeps for such frameworks, by name.

    rank_parameters  weights of the pipeline rank that holds most
    fits             it is known to fit, or refused if it does not: its memory is not asked for
    """
    blocks = stack.blocking_messages
    replicas = run.dp * run.cp
    whole = blocks and run.zero_stage == 0 and replicas > 1 and not run.lora
    return {
        "blocking": float(blocks),
        "tensor_waits": 2.0 * run.tp if blocks and run.tp > 1 else 0.0,
        "tensor_nodes": float(-(-run.tp // run.node_devices)),
        "reduce_buckets": rank_parameters * stack.summed_gradient_bytes / _BUCKET_BYTES
        if whole
        else 0.0,
        "over_memory": float(blocks and run.pp > 1 and not fits and _is_over_memory(run)),
    }


def _is_over_memory(run: TrainingRun) -> bool:
    return footprint(run).needed_bytes > get_device(run.device).usable_bytes
