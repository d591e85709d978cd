"""What torch's pipeline schedules ask of a stage while they plan."""

from __future__ import annotations


class TorchStage:
    """One stage of `num_stages`, dealt to ranks in turn."""

    def __init__(self, index, num_stages, num_ranks):
        self.stage_index, self.num_stages = index, num_stages
        self.group_size, self.group_rank = num_ranks, index % num_ranks
        self.is_first, self.is_last = index == 0, index == num_stages - 1
        self.group = self.submod = self.device = None
        self.has_backward = True
