"""Find the first step, rank and module in which a loss or gradient is nan or infinite.

Runs the steps again from the same starting weights, inputs and random draws, with hooks on every
module that check each tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from executor.mesh import Mesh, gather_all, local
from executor.rank import Rank
from executor.recorder import Recorder
from executor.stages import StageModule
from profiles.model.loaders import ModelSpec
from simulator.values.plan import Plan


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place with a non-finite value; places are ordered by the order of computation.

    step, micro_batch  from 0
    backward           whether it is in the backward pass
    turn               position of the stage in the pass
    """

    step: int
    micro_batch: int
    backward: bool
    turn: int
    what: str
    rank: int

    @property
    def of_pass(self) -> tuple[int, int, bool]:
        """The pass in which the value was found."""
        return self.step, self.micro_batch, self.backward

    @property
    def words(self) -> str:
        """The place as text for users."""
        return f"step {self.step + 1}, rank {self.rank}: {self.what}"


def all_finite(tensors: Any) -> bool:
    """Whether the tensors contain neither nan nor infinity. The check is hidden from the replay of
    a stage, which counts every torch function between units as a call of the model."""
    with torch._C.DisableTorchFunction():
        leaves = [x for x in tree_leaves(tensors) if isinstance(x, Tensor)]
        return all(
            bool(torch.isfinite(local(x)).all())
            for x in leaves
            if x.is_floating_point() or x.is_complex()
        )


def first_not_finite(
    plan: Plan, spec: ModelSpec, mesh: Mesh, device: torch.device, *, steps: int, exact: str = ""
) -> Place | None:
    """The first place with a non-finite value within `steps` steps, or None; a collective with the
    same result on every rank."""
    with Rank(plan, spec, mesh, device, Recorder(), exact=exact) as rank:
        watches = [_Watch(stage, number, len(plan.stages)) for number, stage in rank.stages.items()]
        for step in range(steps):
            for watch in watches:
                watch.step = step
            loss = rank.forward_backward()
            found = [watch.found for watch in watches if watch.found is not None]
            bad = [n for n, p in rank.held() if p.grad is not None and not all_finite(p.grad)]
            if bad:
                what, last = f"the gradient of {bad[0]}", plan.num_microbatches
                found.append(Place(step, last, True, 0, what, dist.get_rank()))
            if not found and loss is not None and not math.isfinite(float(loss)):
                found = [Place(step, 0, False, len(plan.stages), "the loss", dist.get_rank())]
            places = [at for at in gather_all(min(found, default=None)) if at is not None]
            if places:
                return min(places)
            rank.update()
    return None


class _Watch:
    """Hooks on the modules of one stage; `found` is the first place of a step with a non-finite
    value."""

    def __init__(self, stage: StageModule, number: int, count: int) -> None:
        self.found: Place | None = None
        self.step = 0
        self._stage, self._number, self._count = stage, number, count
        for path, module in stage.model.named_modules():
            listed = isinstance(module, (nn.ModuleList, nn.ModuleDict))
            if not listed and path not in stage.absent:
                given, output = partial(self._given, path), f"the output of {path or 'the model'}"
                module.register_forward_pre_hook(given, with_kwargs=True)
                module.register_forward_hook(partial(self._gave, output))
        if stage.last == len(stage.flow.entries):
            stage.register_forward_hook(partial(self._gave, "the loss"))

    def _note(self, tensors: Any, what: str, at: int, *, backward: bool = False) -> None:
        if all_finite(tensors):
            return
        turn = self._count - self._number if backward else self._number
        place = Place(self.step, at, backward, turn, what, dist.get_rank())
        # The first value seen in a pass of a stage is where it began.
        if self.found is None or place.of_pass < self.found.of_pass:
            self.found = place

    def _given(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        inside, micro_batch = path.rpartition(".")[0], self._stage.micro_batch
        around = f"the code of {inside}" if inside else "the model's own code"
        self._note((args, kwargs), f"{around}, before {path or 'the model'}", micro_batch)
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, Tensor) and x.requires_grad:
                what = f"the backward of {path}"
                x.register_hook(partial(self._note, what=what, at=micro_batch, backward=True))

    def _gave(self, what: str, module: nn.Module, args: Any, output: Any) -> None:
        self._note(output, what, self._stage.micro_batch)
