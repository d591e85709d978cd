"""Receives are posted early, in an order that still matches the sends; losses are not rounded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from executor.torch_pipeline import _share_of_loss, received_early
from simulator.schedules.schedule import build_schedule


def lowered(name: str, vpp: int, ranks: int, micro: int) -> dict[int, list[object]]:
    """Every rank's actions with messages, as torch's runtime orders them."""
    from torch.distributed.pipelining.schedules import _Action, _add_send_recv

    schedule = build_schedule(name, num_ranks=ranks, num_microbatches=micro, stages_per_rank=vpp)
    actions = {
        rank: [_Action.from_str(str(action)) for action in row]
        for rank, row in enumerate(schedule.ranks)
    }
    place = schedule.stage_to_rank
    return _add_send_recv(actions, lambda s: place[s], schedule.num_stages)


@pytest.mark.parametrize(("name", "vpp"), [("1f1b", 1), ("gpipe", 1), ("interleaved", 2)])
@pytest.mark.parametrize(("ranks", "micro"), [(2, 4), (4, 8)])
def test_only_receives_move_and_keep_their_order(
    name: str, vpp: int, ranks: int, micro: int
) -> None:
    for row in lowered(name, vpp, ranks, micro).values():
        moved = received_early(row)
        before, after = ([str(a) for a in r] for r in (row, moved))
        assert [a for a in before if "RECV" in a] == [a for a in after if "RECV" in a]
        assert [a for a in before if "RECV" not in a] == [a for a in after if "RECV" not in a]
        for name_ in before:
            if "RECV" in name_:
                computed = sum("_" not in a for a in before[: before.index(name_)])
                earlier = sum("_" not in a for a in after[: after.index(name_)])
                assert max(0, computed - 1) <= earlier <= computed


def test_the_gradient_that_torch_waits_for_is_posted_a_computation_before() -> None:
    row = received_early(lowered("1f1b", 1, 2, 4)[0])
    names = [str(a) for a in row]
    assert names[:6] == ["0F0", "0SEND_F0", "0RECV_B0", "0F1", "0SEND_F1", "0B0"]


def test_the_loss_that_is_reported_is_not_rounded_by_the_count() -> None:
    losses: list[Tensor] = []
    loss = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
    for _ in range(3):
        _share_of_loss(loss, None, count=3, losses=losses).backward()
    assert float(torch.stack(losses).mean()) == 1.0  # thirds of bf16 add up to 1.002
    assert loss.grad is not None
    assert not losses[0].requires_grad
