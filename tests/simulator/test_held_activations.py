"""What ranks keep: by hand, the formulas of the zero-bubble paper, and against `in_flight`."""

from __future__ import annotations

import pytest

from profiles.errors import InputError
from simulator.durations import Durations
from simulator.held_activations import HeldSample, Kept, held_over_time, most_held
from simulator.schedule import build_schedule, in_flight, schedule_from_csv
from simulator.timeline import simulate


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


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "zb-2p"])
def test_with_one_stage_per_rank_it_is_what_is_in_flight(name):
    schedule = build_schedule(name, num_ranks=4, num_microbatches=9)
    assert most_held(schedule) == tuple(float(count) for count in in_flight(schedule))


def test_stages_of_a_rank_reach_their_most_at_different_times():
    # v-min keeps (p + 4) // 3 micro-batches, that is 2 x 4 halves with p = 8, on every rank alike.
    schedule = build_schedule("v-min", num_ranks=8, num_microbatches=32, stages_per_rank=2)
    held = most_held(schedule)
    assert max(held) == 8.0
    assert min(held) >= 6.0
    alone = in_flight(schedule)
    assert alone[0] + alone[15] >= held[0]
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
