"""DualPipe and DualPipeV: the formula of the report, and one as half of the other."""

from __future__ import annotations

import pytest

from simulator.schedules.durations import Durations
from simulator.schedules.schedule import build_schedule
from simulator.schedules.timeline import simulate


def in_pairs(schedule):
    """Rows of blocks: a forward and the full backward that it stands before make one.

    Not on the turning rank for its first backward, as step 4 of DeepSeek's code has it.
    """
    half = schedule.num_ranks if schedule.copies == 1 else schedule.num_ranks // 2
    rows = []
    for rank, row in enumerate(schedule.ranks):
        turns = rank == half - 1 or (schedule.copies == 2 and rank == half)
        blocks, at, backwards = [], 0, 0
        # Before the main step every backward is split, so that its forwards stand alone.
        while at < len(row):
            here, after = row[at], row[at + 1] if at + 1 < len(row) else None
            backwards += here.kind.value == "B"
            pair = here.kind.value == "F" and after is not None and after.kind.value == "B"
            if pair and not (turns and backwards == 0):
                blocks.append((here, after))
                backwards += 1
                at += 2
            else:
                blocks.append((here,))
                at += 1
        rows.append(blocks)
    return rows


def makespan_of_pairs(schedule, f, i, w, pair):
    """Longest path where a pair takes `pair` and both its results are there at its end."""
    length = {"F": f, "B": i + w, "I": i, "W": w}
    rows, ends, clock = in_pairs(schedule), {}, [0.0] * schedule.num_ranks
    at = [0] * schedule.num_ranks
    per_copy = schedule.stages_per_copy
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row):
                block = row[at[rank]]
                needs = []
                for action in block:
                    place = action.stage % per_copy
                    if action.kind.value == "F" and place:
                        needs.append((action.stage - 1, "F", action.microbatch))
                    if action.kind.value in "BI" and place < per_copy - 1:
                        needs.append((action.stage + 1, "B", action.microbatch))
                if any(need not in ends for need in needs):
                    break
                begin = max([clock[rank], *(ends[need] for need in needs)])
                took = pair if len(block) == 2 else length[block[0].kind.value]
                clock[rank] = begin + took
                for action in block:
                    letter = "B" if action.kind.value == "I" else action.kind.value
                    ends[action.stage, letter, action.microbatch] = clock[rank]
                at[rank] += 1
                moved = True
    assert at == [len(row) for row in rows]
    return max(clock), [sum(len(block) == 2 for block in row) for row in rows]


@pytest.mark.parametrize("name", ["dualpipe", "dualpipev"])
@pytest.mark.parametrize(("parts", "m"), [(4, 8), (4, 12), (8, 20), (16, 32)])
@pytest.mark.parametrize("gain", [1.0, 0.8])
@pytest.mark.parametrize("w", [0.5, 0.8, 1.0])
def test_bubble_of_the_report_on_whole_pairs(name, parts, m, gain, w):
    # Table 2 of arXiv 2412.19437: (PP/2 - 1) (F&B + B - 3 W), m micro-batches in both directions.
    # It holds where I takes as long as F and W no longer (with F, I, W = 1, 1.25, 0.75 and 16 parts
    # the bubble is 5 % less), and, ranks having different numbers of pairs, on the turning rank.
    f = i = 1.0
    pair = gain * (f + i + w)
    half = parts // 2
    if name == "dualpipe":
        schedule = build_schedule(name, num_ranks=parts, num_microbatches=m)
    else:
        schedule = build_schedule(name, num_ranks=half, num_microbatches=m // 2, stages_per_rank=2)
    makespan, pairs = makespan_of_pairs(schedule, f, i, w, pair)
    work = m * (f + i + w) - pairs[half - 1] * (f + i + w - pair)
    assert makespan - work == pytest.approx((half - 1) * (pair + (i + w) - 3 * w))


def test_a_rank_of_dualpipe_does_what_its_mirror_does():
    schedule = build_schedule("dualpipe", num_ranks=6, num_microbatches=14)
    for rank, row in enumerate(schedule.ranks):
        mirrored = schedule.ranks[5 - rank]
        for ours, theirs in zip(row, mirrored, strict=True):
            assert ours.kind == theirs.kind
            assert abs(ours.stage - theirs.stage) == 6
            assert abs(ours.microbatch - theirs.microbatch) == 7


def test_dualpipe_v_is_half_of_dualpipe():
    whole = build_schedule("dualpipe", num_ranks=8, num_microbatches=24)
    half = build_schedule("dualpipev", num_ranks=4, num_microbatches=12, stages_per_rank=2)
    # Rank r of the V is rank r of the pair; its way back is the other copy's second half.
    for rank in range(4):
        for ours, theirs in zip(half.ranks[rank], whole.ranks[rank], strict=True):
            assert ours.kind == theirs.kind
            assert theirs.stage in (ours.stage, ours.stage + 8)
            assert theirs.microbatch % 12 == ours.microbatch
    times = {"forward_s": 1.0, "backward_input_s": 1.25, "backward_weight_s": 0.75}
    assert max(simulate(whole, Durations.even(16, **times)).end_s) == pytest.approx(
        max(simulate(half, Durations.even(8, **times)).end_s)
    )
