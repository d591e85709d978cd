"""Schedules with a split backward against torch's own lists of actions."""

from __future__ import annotations

import pytest

from profiles.errors import InputError
from simulator.schedules.schedule import build_schedule
from tests.simulator.torch_stage import TorchStage

torch_schedules = pytest.importorskip(
    "torch.distributed.pipelining.schedules", reason="this torch has no pipeline schedules"
)

# Ours, torch's, stages per rank.
SAME = [
    ("zb-h1", "ScheduleInterleavedZeroBubble", 1),
    ("zbv", "ScheduleZBVZeroBubble", 2),
    ("dualpipev", "ScheduleDualPipeV", 2),
]


def torchs(name, p, m, v, *, v_shaped):
    """Rows of torch's pipeline_order as text; None where torch refuses the counts.

    A forward and a backward that torch runs as one stand one after the other.
    """
    held = (0, 2 * p - 1) if v_shaped else range(0, p * v, p)
    try:
        made = getattr(torch_schedules, name)([TorchStage(i, p * v, p) for i in held], m)
    except ValueError:
        return None
    order = [[a for a in made.pipeline_order[rank] if a is not None] for rank in range(p)]
    return [[str(part) for a in row for part in (a.sub_actions or (a,))] for row in order]


@pytest.mark.parametrize(("ours", "theirs", "v"), SAME)
def test_order_is_torchs(ours, theirs, v):
    if not hasattr(torch_schedules, theirs):
        pytest.skip(f"this torch has no {theirs}")
    compared = 0
    for p in (2, 3, 4, 5, 8):
        for m in range(1, 25):
            rows = torchs(theirs, p, m, v, v_shaped=ours in ("zbv", "dualpipev"))
            if rows is None:
                if v > 1:
                    with pytest.raises(InputError):
                        build_schedule(ours, num_ranks=p, num_microbatches=m, stages_per_rank=v)
                continue
            made = build_schedule(ours, num_ranks=p, num_microbatches=m, stages_per_rank=v)
            assert [[str(action) for action in row] for row in made.ranks] == rows, (p, m)
            compared += 1
    assert compared > 60


@pytest.mark.parametrize("name", ["zb-h2", "zb-1p", "zb-2p", "zbv", "v-half", "v-min"])
def test_torch_can_run_it(name):
    # torch's own check of a schedule, and its lowering to sends and receives.
    v = 2 if name[:2] in ("zb", "v-") and name in ("zbv", "v-half", "v-min") else 1
    schedule = build_schedule(name, num_ranks=4, num_microbatches=9, stages_per_rank=v)
    actions = {
        rank: [torch_schedules._Action.from_str(str(action)) for action in row]
        for rank, row in enumerate(schedule.ranks)
    }
    torch_schedules._validate_schedule(actions, 4, schedule.num_stages, 9)
    owner = list(schedule.stage_to_rank)
    lowered = torch_schedules._add_send_recv(
        actions, stage_to_rank=lambda stage: owner[stage], num_stages=schedule.num_stages
    )
    computed = [[a for a in lowered[r] if a.computation_type.value in "FBIW"] for r in range(4)]
    assert [[str(a) for a in row] for row in computed] == [
        [str(action) for action in row] for row in schedule.ranks
    ]
