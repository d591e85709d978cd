"""Messages of Muon: gathers of the matrices that are split between ranks.

Newton-Schulz needs whole matrices. Momenta are sent in bf16 (Liu et al., arXiv 2502.16982, section
2.3, "DP Gather"; Megatron-LM, `--muon-tp-mode duplicated`):

- tensor parallelism: each matrix is gathered from the ranks that split it;
- states shared by replicas (ZeRO 1 and 2): a matrix that is cut between two ranks is gathered;
- weights split over all replicas (ZeRO 3): each matrix goes to one rank and its update back.
"""

from __future__ import annotations

from simulator.collectives import NOTHING, CollectiveTime
from simulator.training_run.messages.rank_group import data_group, expert_replicas, tensor_group
from simulator.training_run.messages.run_links import Links, moved
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.muon_work import rank_matrices

_MOMENTUM_BYTES = 2.0


def muon_messages(run: TrainingRun, links: Links) -> CollectiveTime:
    """Time per step of the gathers; nothing unless the optimizer is Muon."""
    time = NOTHING
    groups = (data_group(run), expert_replicas(run))
    for matrices, group in zip(rank_matrices(run), groups, strict=False):  # models without experts
        size = _MOMENTUM_BYTES * matrices.elements
        if matrices.splits > 1:
            whole = _MOMENTUM_BYTES * matrices.whole_elements * matrices.handled
            time += moved("all_gather", whole, tensor_group(run), links)
        if matrices.shards > 1:
            if run.zero_stage == 3:
                time += moved("all_to_all", size / matrices.shards, group, links) * 2.0
            else:
                time += moved("all_gather", size * matrices.cut, group, links)
    return time
