"""What ranks keep: by hand, by the zero-bubble paper, and by simulator/schedules/in_flight.py."""

from __future__ import annotations

import pytest

from profiles.errors import InputError
from simulator.schedules.durations import Durations
from simulator.schedules.in_flight import in_flight, most_in_flight
from simulator.schedules.schedule import build_schedule, pipeline_names, schedule_kind
from simulator.schedules.timeline import simulate
from tests.oracles.held_activations import HeldSample, Kept, held_over_time, most_held
from tests.oracles.schedule_csv import schedule_from_csv


def test_by_hand():
    # m_b = 10, m_w = 4: F +10, I -6, W -4, B -10.
    schedule = schedule_from_csv("0F0,0F1,0I0,0F2,0W0,0B1,0I2,0W2\n")
    assert most_held(schedule, Kept(m_b=(10.0,), m_w=(4.0,))) == (24.0,)
    durations = Durations.even(1, forward_s=1.0, backward_input_s=2.0, backward_weight_s=3.0)
    (samples,) = held_over_time(simulate(schedule, durations), Kept(m_b=(10.0,), m_w=(4.0,)))
    assert samples == (
        HeldSample(0.0, 0.0),
        HeldSample(0.0, 10.0),  # 0F0 starts
        HeldSample(1.0, 20.0),  # 0F1 starts
        HeldSample(4.0, 14.0),  # 0I0 ends
        HeldSample(4.0, 24.0),  # 0F2 starts
        HeldSample(8.0, 20.0),  # 0W0 ends
        HeldSample(13.0, 10.0),  # 0B1 ends, after 5
        HeldSample(15.0, 4.0),
        HeldSample(18.0, 0.0),
    )


@pytest.mark.parametrize("kept", [0.0, 0.366, 1.0])
def test_formulas_of_table_2(kept):
    # Qi et al., arXiv 2401.10241, below table 2, for worker i = rank + 1.
    p, m = 6, 24
    h1 = build_schedule("zb-h1", num_ranks=p, num_microbatches=m)
    h2 = build_schedule("zb-h2", num_ranks=p, num_microbatches=m)
    units = Kept.units(p, kept)
    workers = range(1, p + 1)
    assert most_held(h1, units) == pytest.approx([(p - i + 1) + (i - 1) * kept for i in workers])
    assert most_held(h2, units) == pytest.approx(
        [(2 * p - 2 * i + 1) + (2 * i - 2) * kept for i in workers]
    )


def test_in_flight_is_the_known_count():
    # 1f1b: stage s keeps p - s micro-batches (Narayanan et al., SC'21, section 2.2.1); gpipe all m.
    assert in_flight("1f1b", 4, 8) == ((4,), (3,), (2,), (1,))
    assert in_flight("1f1b", 4, 2) == ((2,), (2,), (2,), (1,))
    assert in_flight("gpipe", 4, 8) == ((8,),) * 4
    # rank 0: 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 ..., rank 1: 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0
    assert in_flight("interleaved", 2, 4, 2) == ((3, 2), (2, 1))
    # zb-h1 frees at W what 1f1b frees at B; before I each rank keeps what 1f1b does.
    assert in_flight("zb-h1", 4, 9) == ((4,),) * 4
    assert in_flight("zb-h1", 4, 9, until_input=True) == in_flight("1f1b", 4, 9)
    # Without a pipeline, each micro-batch ends before the next begins.
    assert {most_in_flight(name, 1, 8) for name in ("none", *pipeline_names())} == {(1.0,)}


@pytest.mark.parametrize("name", [n for n in pipeline_names() if n not in ("zb-1p", "zb-2p")])
def test_in_flight_is_what_the_actions_keep(name):
    kind = schedule_kind(name)
    v = kind.stages_per_rank or 3
    for p, m in ((2, 4), (4, 8), (4, 40), (5, 10), (4, 2), (6, 4)):
        if kind.why_not(p, m):
            continue
        schedule = build_schedule(name, num_ranks=p, num_microbatches=m, stages_per_rank=v)
        assert most_in_flight(name, p, m, v) == most_held(schedule)
        before = Kept.units(schedule.num_stages, 0.0 if kind.splits_backward else 1.0)
        until_input = in_flight(name, p, m, v, until_input=True)
        assert tuple(float(sum(stages)) for stages in until_input) == most_held(schedule, before)


def test_stages_of_a_rank_reach_their_most_at_different_times():
    # v-min keeps (p + 4) // 3 micro-batches, that is 2 x 4 halves with p = 8, on every rank alike.
    schedule = build_schedule("v-min", num_ranks=8, num_microbatches=32, stages_per_rank=2)
    held = most_held(schedule)
    assert max(held) == 8.0
    assert min(held) >= 6.0
    assert most_in_flight("v-min", 8, 32, 2) == held
    # A first stage twice as large, in bytes.
    weighted = Kept(m_b=(2e9, *(1e9,) * 15), m_w=(1e9, *(5e8,) * 15))
    assert 8e9 <= max(most_held(schedule, weighted)) <= 16e9


def test_over_time_it_peaks_at_the_most_and_ends_empty():
    for name, v in (("zb-2p", 1), ("zbv", 2), ("interleaved", 2)):
        schedule = build_schedule(name, num_ranks=4, num_microbatches=12, stages_per_rank=v)
        timeline = simulate(schedule, Durations.even(4 * v, backward_weight_s=0.5, send_s=0.1))
        units = Kept.units(4 * v, 0.5)
        held = held_over_time(timeline, units)
        assert tuple(max(s.held for s in samples) for samples in held) == most_held(schedule, units)
        for samples in held:
            assert samples[-1].held == pytest.approx(0.0)
            times = [sample.time_s for sample in samples]
            assert times == sorted(times)


def test_errors():
    schedule = build_schedule("1f1b", num_ranks=2, num_microbatches=2)
    with pytest.raises(InputError, match="2 virtual stages, activations are given for 3"):
        most_held(schedule, Kept.units(3))
    with pytest.raises(InputError, match="stage 1 keeps m_w=2 of m_b=1"):
        Kept(m_b=(1.0, 1.0), m_w=(0.0, 2.0))
    with pytest.raises(InputError, match="m_b is given for 2 stages and m_w for 1"):
        Kept(m_b=(1.0, 1.0), m_w=(0.0,))
