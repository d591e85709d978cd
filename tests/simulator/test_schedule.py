"""Schedules against torch's own order of actions, and the checks that guard a schedule."""

from __future__ import annotations

import itertools

import pytest

from profiles.errors import InputError, UnknownNameError
from simulator.schedules.schedule import (
    Schedule,
    build_schedule,
    schedule_names,
)
from tests.oracles.schedule_csv import parse_action, schedule_from_csv, to_csv
from tests.simulator.torch_stage import TorchStage

torch_schedules = pytest.importorskip(
    "torch.distributed.pipelining.schedules", reason="this torch has no pipeline schedules"
)


class RecordingStage(TorchStage):
    """Notes the actions instead of running them."""

    def __init__(self, index, num_stages, num_ranks):
        super().__init__(index, num_stages, num_ranks)
        self.ran = []

    def forward_one_chunk(self, chunk, *args, **kwargs):
        self.ran.append(f"{self.stage_index}F{chunk}")

    def backward_one_chunk(self, chunk, **kwargs):
        self.ran.append(f"{self.stage_index}B{chunk}")

    def no_messages(self, chunk):
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = no_messages

    def perform_reduce_grad(self, factor):
        pass


def order_run_by_torch(name, p, m):
    """The actions that torch's single-stage schedules really run, rank by rank."""
    cls = {"gpipe": torch_schedules.ScheduleGPipe, "1f1b": torch_schedules.Schedule1F1B}[name]
    rows = []
    for rank in range(p):
        stage = RecordingStage(rank, p, p)
        schedule = cls(stage, m)
        schedule._initialize_stage = lambda *args: None
        schedule._step_microbatches([()] * m, [{}] * m)
        rows.append(stage.ran)
    return rows


def interleaved_order_of_torch(p, m, v):
    """Rows of torch's pipeline_order as text; None where torch refuses the counts."""
    try:
        stages = [RecordingStage(i * p, p * v, p) for i in range(v)]
        order = torch_schedules.ScheduleInterleaved1F1B(stages, m).pipeline_order
    except ValueError:
        return None
    return [[str(action) for action in order[r] if action is not None] for r in range(p)]


def texts(schedule):
    return [[str(action) for action in row] for row in schedule.ranks]


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_order_is_what_torch_runs(name):
    for p in range(2, 9):
        for m in range(p, 18):  # torch's 1F1B wants as many micro-batches as stages
            ours = build_schedule(name, num_ranks=p, num_microbatches=m)
            assert texts(ours) == order_run_by_torch(name, p, m), (p, m)


def test_interleaved_order_is_torchs():
    compared = 0
    for p, m, v in itertools.product((2, 3, 4, 8), range(1, 33), (2, 3, 4)):
        theirs = interleaved_order_of_torch(p, m, v)
        if theirs is None:
            with pytest.raises(InputError):
                build_schedule("interleaved", num_ranks=p, num_microbatches=m, stages_per_rank=v)
            continue
        ours = build_schedule("interleaved", num_ranks=p, num_microbatches=m, stages_per_rank=v)
        assert texts(ours) == theirs, (p, m, v)
        assert ours.stage_to_rank == tuple(s % p for s in range(p * v))
        compared += 1
    assert compared > 150


def test_none_runs_one_micro_batch_after_the_other():
    schedule = build_schedule("none", num_ranks=1, num_microbatches=3)
    assert to_csv(schedule) == "0F0,0B0,0F1,0B1,0F2,0B2\n"


@pytest.mark.parametrize(
    ("name", "p", "m", "v"), [("gpipe", 3, 5, 1), ("1f1b", 4, 9, 1), ("interleaved", 2, 6, 3)]
)
def test_csv_round_trip_and_torch_reads_it(name, p, m, v):
    schedule = build_schedule(name, num_ranks=p, num_microbatches=m, stages_per_rank=v)
    text = to_csv(schedule)
    again = schedule_from_csv(text, name)
    assert again == schedule
    for row, line in zip(schedule.ranks, text.splitlines(), strict=True):
        parsed = [torch_schedules._Action.from_str(cell) for cell in line.split(",")]
        assert [str(action) for action in parsed] == [str(action) for action in row]


def test_csv_as_torch_writes_it_has_idle_cells():
    schedule = schedule_from_csv("0F0,,,0B0\n,1F0,1B0,\n")
    assert texts(schedule) == [["0F0", "0B0"], ["1F0", "1B0"]]


def rows(*texts):
    return tuple(tuple(parse_action(cell) for cell in text.split()) for text in texts)


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        (("0F0 0B0 0F0", "1F0 1B0"), "twice"),
        (("0F0 0B0 1F0", "1B0"), "is on rank 0, its stage is on rank 1"),
        (("0F0", "1F0 1B0"), "1 B actions, 2 are needed"),
        (("0B0 0F0", "1F0 1B0"), "wait for each other"),
        (("0F0 0B0", "1B0 1F0"), "never ends"),
        (("0F0 0B0", "1F0 1B0 2F0"), "unknown stage"),
        (("0F0 0B0", "1F0 1B0 1F1"), "1F1: its stage does not run this micro-batch"),
        (("0F0 0I0", "1F0 1B0"), "0 W actions for 1 I actions"),
        (("0F0 0W0 0I0", "1F0 1B0"), "0W0 wait for each other"),
        # A W after a B, and an I without one.
        (("0F0 0B0 0W0", "1F0 1I0"), "0W0 wait for each other"),
    ],
)
def test_a_wrong_schedule_is_refused(ranks, says):
    with pytest.raises(InputError, match=says):
        Schedule(name="mine", num_microbatches=1, stage_to_rank=(0, 1), ranks=rows(*ranks))


@pytest.mark.parametrize(("stages", "micro"), [(3, 2), (2, 3)])
def test_copies_of_the_model_share_stages_and_micro_batches_equally(stages, micro):
    with pytest.raises(InputError, match=f"must divide {stages} stages and {micro} micro-batches"):
        Schedule(
            name="mine",
            num_microbatches=micro,
            stage_to_rank=tuple(range(stages)),
            ranks=((),) * stages,
            copies=2,
        )


@pytest.mark.parametrize(
    ("name", "counts", "says"),
    [
        ("1f1b", {"num_ranks": 0, "num_microbatches": 1}, "at least one rank"),
        ("1f1b", {"num_ranks": 2, "num_microbatches": 2, "stages_per_rank": 2}, "interleaved"),
        ("none", {"num_ranks": 2, "num_microbatches": 2}, "one pipeline rank"),
        ("interleaved", {"num_ranks": 2, "num_microbatches": 2}, "two or more stages"),
        (
            "interleaved",
            {"num_ranks": 4, "num_microbatches": 9, "stages_per_rank": 2},
            "multiple of 4",
        ),
    ],
)
def test_counts_that_a_schedule_cannot_take(name, counts, says):
    with pytest.raises(InputError, match=says):
        build_schedule(name, **counts)


def test_unknown_schedule_offers_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean '1f1b'"):
        build_schedule("1f1", num_ranks=2, num_microbatches=2)
    assert {"none", "gpipe", "1f1b", "interleaved"} <= set(schedule_names())
