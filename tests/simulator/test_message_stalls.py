"""Hosts that wait for messages: counts by hand, both cases, the risk, and how often it was."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats

from profiles.hardware.catalogue.catalog import get_device
from simulator.schedules.action import ActionKind
from simulator.schedules.schedule import build_schedule
from simulator.training_run.fit.fit import fit_coefficients
from simulator.training_run.fit.stall_odds import HAZARDS, fit_hazards
from simulator.training_run.memory.footprint import footprint
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_kinds import KINDS
from simulator.training_run.step.coefficients import assign
from simulator.training_run.step.features import features
from simulator.training_run.step.message_stalls import risk_s, stall_chance, stalled_messages
from simulator.training_run.step.step_time import step_parts
from tests.simulator.described_runs import GPT_RUN, LLAMA_8B, of_each, plain, training_runs

# 8B on 16 nodes of H100 with four stages, 16 micro-batches.
RUN = replace(
    GPT_RUN,
    id="staged",
    model=LLAMA_8B,
    device="h100-sxm-80gb",
    stack="nanotron",
    precision="bf16",
    seq_len=4096,
    num_devices=128,
    tp=4,
    pp=4,
    dp=8,
    zero_stage=1,
    global_batch=128,
)
YES, NO = np.ones(1, dtype=np.bool_), np.zeros(1, dtype=np.bool_)
# No hazard but what a test asks for.
CALM = plain(**{kind.name: 0.0 for kind in HAZARDS})


def total(run: TrainingRun, **changes: float) -> float:
    return float(step_parts(features([run]), of_each(CALM | changes)).total_s[0])


@pytest.mark.parametrize(
    ("pp", "microbatches", "messages"),
    [
        # There and back again for one micro-batch: 2 (pp - 1).
        (2, 1, 2),
        (8, 1, 14),
        # Every further one: forward and backward of the one neighbour, or of both.
        (2, 16, 2 + 15 * 2),
        (4, 16, 6 + 15 * 4),
        (16, 64, 30 + 63 * 4),
        (1, 16, 0),
    ],
)
def test_messages_on_the_critical_path(pp: int, microbatches: int, messages: int) -> None:
    run = replace(RUN, pp=pp, dp=32 // pp, global_batch=microbatches * (32 // pp))
    assert run.num_microbatches == microbatches
    assert stalled_messages(features([run]), YES)[0] == messages
    assert stalled_messages(features([run]), NO)[0] == 0


@pytest.mark.parametrize(("pp", "microbatches"), [(2, 6), (4, 8), (8, 12)])
def test_no_rank_sends_and_receives_more_than_the_path_has(pp: int, microbatches: int) -> None:
    """1F1B's own actions: a message between neighbours each way and micro-batch, and the host of
    the busiest rank is held by all of its own."""
    schedule = build_schedule("1f1b", num_ranks=pp, num_microbatches=microbatches)
    own = []
    for rank, actions in enumerate(schedule.ranks):
        neighbours = (rank > 0) + (rank < pp - 1)
        passes = [a for a in actions if a.kind in (ActionKind.FORWARD, ActionKind.BACKWARD)]
        own.append(len(passes) * neighbours)
    run = replace(RUN, pp=pp, dp=32 // pp, global_batch=microbatches * (32 // pp))
    path = stalled_messages(features([run]), YES)[0]
    assert max(own) <= path + 4
    assert path <= max(own) + 2 * (pp - 1)


def test_a_stalled_job_pays_for_every_message() -> None:
    """stall_any = 700 makes it certain: 6 + 15 x 4 = 66 messages of 270 ms."""
    extra = total(RUN, stall_ms=270.0, stall_any=700.0) - total(RUN, stall_ms=270.0)
    assert extra == pytest.approx(66 * 0.27)


def test_the_risk_is_what_trouble_adds_on_average() -> None:
    """Half of the jobs stall where ln 2 troubles are expected. 66 messages of 1 ms are less than
    two calm steps and count by half; of 270 ms they are more, so half of two steps is added."""
    calm, half = total(RUN), math.log(2.0)
    assert 0.066 < 2 * calm < 66 * 0.27
    assert total(RUN, stall_ms=1.0, stall_any=half) == pytest.approx(calm + 0.033)
    assert total(RUN, stall_ms=270.0, stall_any=half) == pytest.approx(2 * calm)
    parts = step_parts(features([RUN]), of_each(CALM | {"stall_ms": 270.0, "stall_any": 0.1}))
    assert parts.total_s[0] - parts.stall_s[0] == pytest.approx(calm)


def test_nearly_all_in_trouble_is_trouble() -> None:
    """Above four of five (ln 5 troubles) the case with stalls is the prediction, at and below not;
    between, a time never falls where either case rises."""
    calm, troubled = np.asarray([1.0, 1.0, 1.0]), np.asarray([9.0, 9.0, 9.0])
    chance = np.asarray([0.81, 0.8, 0.0])
    assert risk_s(calm, troubled, chance).tolist() == pytest.approx([8.0, 1.6, 0.0])


@settings(deadline=None, max_examples=200)
@given(floats(0.01, 1e3), floats(1.0, 50.0), floats(0.0, 1.0), floats(0.0, 10.0), floats(0.0, 10.0))
def test_risk_never_falls_where_a_time_rises(
    calm: float, times: float, chance: float, first: float, second: float
) -> None:
    before, after = calm, calm + first
    with_it = before * times
    worse = max(with_it, after) + second
    p = np.asarray([chance])
    one = before + risk_s(np.asarray([before]), np.asarray([with_it]), p)
    other = after + risk_s(np.asarray([after]), np.asarray([worse]), p)
    assert one[0] <= other[0] * (1 + 1e-12)
    assert other[0] <= worse * (1 + 1e-12)


def test_who_may_be_in_trouble() -> None:
    """By hand: 0.05 + (0.02 x 16)^3 = 0.0828 with a group in a node, one more for each node beyond
    two, 0.7 for whole gradients; without stages, with groups over two nodes, 2 x 0.05 and 0.3 x
    (0.0328 / 2)^2."""
    c = of_each(
        CALM
        | {
            "stall_any": 0.05,
            "stall_node": 0.02,
            "stall_tensor_node": 1.0,
            "stall_whole": 0.7,
            "stall_alone": 0.3,
        }
    )

    def expected(**changes: object) -> float:
        chance = stall_chance(features([replace(RUN, **changes)]), c)
        return -math.log1p(-float(chance[0]))

    staged = 0.05 + 0.32**3
    assert expected() == pytest.approx(staged)
    assert expected(tp=32, dp=1) == pytest.approx(staged + 2.0)
    assert expected(zero_stage=0) == pytest.approx(staged + 0.7)
    assert expected(tp=16, pp=1, dp=8) == pytest.approx(0.1 + 0.3 * (0.32**3 / 2) ** 2)
    assert expected(num_devices=8, tp=2, pp=4, dp=1) == 0.0
    assert expected(stack="megatron-core") == 0.0


def test_too_little_memory_is_certain_to_stall() -> None:
    """Micro-batches of eight sequences with four in flight do not fit; the run is on one node, so
    nothing else stalls it."""
    run = replace(RUN, num_devices=8, tp=1, pp=4, dp=2, micro_batch=8, global_batch=64)
    assert footprint(run).needed_bytes > get_device(run.device).usable_bytes
    assert stall_chance(features([run]), of_each(CALM))[0] == 1.0
    assert features([run], all_fit=True).over_memory[0] == 0.0
    light = replace(run, micro_batch=1, tp=2, dp=1)
    assert footprint(light).needed_bytes < get_device(run.device).usable_bytes
    assert stall_chance(features([light]), of_each(CALM))[0] == 0.0


def test_layers_wait_with_their_ranks() -> None:
    """Four collectives of four ranks at 600 us each are 9.6 ms per layer, on a host that does
    nothing else; 16 micro-batches of the fullest stage, which has nine of the 32 layers (nanotron
    cuts by cost, and the head counts), and the others' eight once each."""
    slow = {"wait_us": 1e6}
    again = total(RUN, **slow)
    assert again == pytest.approx((16 * 9 + 3 * 8) * 16 * 1.0, rel=0.01)
    for other in (
        replace(RUN, tp=1, dp=32),
        replace(RUN, num_devices=8, dp=1, tp=2),
        replace(RUN, pp=1, dp=32),
        replace(RUN, stack="megatron-core"),
    ):
        assert total(other, **slow) == pytest.approx(total(other)), other


def test_buckets_of_whole_gradients() -> None:
    x = features([RUN, replace(RUN, zero_stage=0), replace(RUN, zero_stage=0, dp=1)])
    held = x.reduce_buckets[1] * 25 * 2**20 / 4
    model = LLAMA_8B
    layer = model.attention_parameters + model.dense_parameters + model.small_parameters
    table = model.vocab_size * model.hidden_size
    assert held == pytest.approx((9 * layer + table) / 4, rel=1e-3)
    assert x.reduce_buckets[0] == x.reduce_buckets[2] == 0.0


@settings(deadline=None, max_examples=30)
@given(training_runs())
def test_trouble_never_makes_a_run_faster(run: TrainingRun) -> None:
    x = features([run])
    c = assign([run])
    values = c.of(c.starts())
    calm, troubled, risk = (
        float(step_parts(x, values, case).total_s[0]) for case in (NO, YES, None)
    )
    assert calm <= risk * (1 + 1e-12)
    assert risk <= troubled * (1 + 1e-12)


def jobs(count: int) -> list[TrainingRun]:
    """Jobs of 2, 16 and 64 nodes, told apart by their sequence length alone."""
    return [
        replace(RUN, id=f"{nodes}-{i}", num_devices=8 * nodes, dp=nodes // 2, global_batch=64 * i)
        for nodes in (2, 16, 64)
        for i in range(1, count + 1)
    ]


def test_hazards_of_known_jobs_come_back() -> None:
    """Of 40 jobs each 2, 6 and 38 in trouble: shares that the likeliest hazards must be near."""
    runs = jobs(40)
    x, assigned = features(runs), assign(runs)
    troubled = np.concatenate([np.arange(40) < some for some in (2, 6, 38)])
    found = fit_hazards(x, assigned, assigned.starts(), troubled, np.ones(120, dtype=np.bool_))
    chance = stall_chance(x, assigned.of(found))
    assert chance[0] == pytest.approx(2 / 40, abs=0.05)
    assert chance[40] == pytest.approx(6 / 40, abs=0.05)
    assert chance[80] == pytest.approx(38 / 40, abs=0.05)
    others = [i for i, k in enumerate(assigned.kinds) if not KINDS[k].hazard]
    assert found[others].tolist() == assigned.starts()[others].tolist()


def test_a_fit_tells_stalled_jobs_from_others() -> None:
    """Every fourth job stalls, 30 times as slow as the rest: the others' coefficients and the time
    of a message come back all the same."""
    runs = jobs(8)
    x, assigned = features(runs), assign(runs)
    truth = assigned.starts()
    truth[assigned.names.index("stall_ms.nanotron")] = 200.0
    happened = np.arange(len(runs)) % 4 == 0
    times = step_parts(x, assigned.of(truth), happened).total_s
    fitted = fit_coefficients(x, assigned, times, weights=np.ones(len(runs)))
    named = dict(zip(assigned.names, fitted.values.tolist(), strict=True))
    assert named["stall_ms.nanotron"] == pytest.approx(200.0, rel=0.05)
    assert fitted.residual < 0.02
    again = step_parts(x, assigned.of(fitted.values), happened).total_s
    assert np.abs(again / times - 1).max() < 0.05
