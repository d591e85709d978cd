"""A sized run by hand: its totals, limits, neighbors and gains from its step time alone."""

import math
from dataclasses import replace

import pytest

from planner.layout.layout_question import LayoutSolver
from planner.sizing.run_outlook import outlook_of
from planner.sizing.size_limits import binding_limit, relaxations_of
from planner.sizing.size_question import TOKENS
from planner.sizing.sizing_answer import answer_of, at_nodes, gains_of, runs_to_compare
from planner.sizing.sizing_answer import search_here as search_with
from planner.sizing.sizing_search import question_of_run
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.prices.storage_price import StoragePrice
from profiles.units import format_time, format_usd
from simulator.energy import carbon, run_energy
from simulator.goodput.reliability_inputs import DEFAULT
from simulator.mfu import model_flop_per_token
from simulator.money import RunStorage
from tests.planner.sizing.sized_questions import PUE, choice, size_question, sized

# A run in which nothing fails, is saved, waits or varies.
NEVER = dict.fromkeys(("device_hours_per_failure", "maintenance_device_hours"), 1e15)
NOTHING = dict.fromkeys(("slow_devices", "evaluation_share", "checkpoint_blocking_share"), 0.0)
SURE = replace(DEFAULT.sure(), spare_nodes=1, **NEVER, **NOTHING)
QUESTION = replace(size_question(), reliability=SURE)
SOLVER = LayoutSolver(clock=lambda: 0.0)
SEARCH = search_with(SOLVER)
USD = replace(PUE, value=1.0, low=1.0, high=1.0)
STORAGE = RunStorage(
    price=StoragePrice(usd_per_gib_month=USD, egress_usd_per_gib=USD, words=""),
    dataset_bytes=100 * 2.0**30,
    checkpoint_bytes=10 * 2.0**30,
    checkpoints=3.0,
    sent_bytes=40 * 2.0**30,
)


@pytest.fixture(scope="module")
def run():
    """The cheapest on one to six nodes: one, at $3 per device-hour and as much for the spare."""
    return sized(QUESTION).best


def outlook(run, runs=400, **changes):
    asked = replace(QUESTION, **changes)
    return outlook_of(asked, run, seed=0, runs=runs)


def mfu_of(run):
    """64 sequences of 1,024 tokens over the 16-bit peak of eight devices."""
    peak = 8 * get_device("h100-sxm").peak("bfloat16").value * run.layout.step_time_s
    return 64 * 1024 * model_flop_per_token(QUESTION.model, 1024) / peak


def test_totals_by_hand(run):
    steps = math.ceil(1e11 / (64 * 1024))
    assert run.hours == pytest.approx(steps * run.layout.step_time_s / 3600, rel=0.02)
    assert (run.nodes, run.steps, run.tokens) == (1, steps, 1e11)
    assert run.value == run.usd == pytest.approx(run.hours * 2 * 8 * 3.0)
    # 130 GiB at $1 a month of 730 hours, and 40 GiB at $1.
    stored = sized(replace(QUESTION, storage=STORAGE)).best
    assert stored.usd == pytest.approx(run.usd + run.hours * 130 / 730 + 40)
    done = answer_of(QUESTION, SEARCH(QUESTION), search=SEARCH, solver=SOLVER, runs=50)
    assert (done.minimised, done.status, done.gap) == ("cost", "optimal", 0.0)
    assert done.bound == done.best.run.value == run.value
    assert done.flop == 1e11 * QUESTION.flop_per_token


def test_an_outlook_by_hand(run):
    found = outlook(run, storage=STORAGE, deadline_s=86400.0, budget_usd=1000.0)
    twice = outlook(run, stretch=2.0)
    for end in ("value", "low", "high"):
        hours = 24 * getattr(found.days, end)
        for interval, expected in (
            (twice.days, hours / 12),
            (found.device_hours, 8 * hours),
            (found.rent_usd, 3.0 * 8 * hours),
            (found.spare_usd, 3.0 * 8 * hours),
            (found.storage_usd, hours * 130 / 730),
            (found.egress_usd, 40.0),
            (found.productive_time, 1.0),
            (found.lost_usd, 0.0),
            (found.interruptions, 0.0),
        ):
            assert getattr(interval, end) == pytest.approx(expected)
    hours = 24 * found.days.value
    assert found.usd.value == pytest.approx(2 * 3.0 * 8 * hours + hours * 130 / 730 + 40)
    assert found.spare_nodes == 1
    assert replace(found, rent_usd=None).lost_usd is None
    assert found.probability_of_deadline == pytest.approx(0.8, abs=0.15)
    assert found.probability_of_budget == pytest.approx(0.6, abs=0.15)
    power = run_energy(run.choice.device, 8, hours, mfu_of(run), PUE)
    assert found.kwh.value == pytest.approx(power.value)
    assert power.low / power.value > found.kwh.low / found.kwh.value
    assert found.tco2e.value == pytest.approx(carbon(found.kwh, "USA").value / 1e3)


def test_spare_nodes_cost_less_than_waiting(run):
    """One of four nodes breaks every 25 hours, and a repair takes as long: on average one is
    broken. Without a spare, four nodes wait half of the time, with one a fifth (Erlang's B), with
    two a sixteenth: 2, 1.8 and 2.25 nodes."""
    four = at_nodes(QUESTION, run, 4, SOLVER)
    often = replace(SURE, spare_nodes=None, device_hours_per_failure=800.0)
    found = outlook(four, reliability=replace(often, repair_s=25 * 3600.0 / often.hardware_share))
    assert found.spare_nodes == 1
    assert found.spare_usd.value == pytest.approx(found.rent_usd.value / 4)


def test_lost_time_is_rented_too(run):
    often = replace(SURE, device_hours_per_failure=20.0, manual_share=0.0, repair_s=1.0)
    found = outlook(run, reliability=often)
    kept, rent, lost = found.productive_time, found.rent_usd.value, found.lost_usd
    assert 0.5 < kept.low < kept.high < 0.99
    expected = [rent * (1 - share) for share in (kept.value, kept.high, kept.low)]
    assert [lost.value, lost.low, lost.high] == pytest.approx(expected)
    # A failure every 2.5 hours; causes of lost time from the largest on.
    assert found.interruptions.value == pytest.approx(found.days.value * 24 / 2.5, rel=0.2)
    assert found.lost == tuple(sorted(found.lost, key=lambda part: -part[1]))


def test_without_a_price_nothing_is_paid_and_all_else_is_known():
    fastest = replace(QUESTION, minimise="time")
    unpriced = replace(fastest, choices=(replace(QUESTION.choices[0], usd_per_hour=None),))
    run, priced = sized(unpriced).best, sized(fastest).best
    assert (run.nodes, run.hours, run.kwh) == (priced.nodes, priced.hours, priced.kwh)
    found = outlook_of(unpriced, run, seed=0, runs=50)
    assert {run.usd, found.usd, found.rent_usd, found.spare_usd, found.lost_usd} == {None}
    assert found.days == outlook_of(fastest, priced, seed=0, runs=50).days
    gains, dear = gains_of(unpriced, run, SOLVER), gains_of(fastest, priced, SOLVER)
    assert {gain.usd for gain in gains} == {None}
    assert {(gain.change, gain.days) for gain in gains} <= {(g.change, g.days) for g in dear}


def with_tenth_more_network(base):
    return replace(base, network=base.node_network.faster(1.1))


def gained_days(question, run, **more):
    step_s = SOLVER.best(question_of_run(question, run), **more).step_time_s
    return pytest.approx(run.hours / 24 * (step_s / run.layout.step_time_s - 1))


def test_other_numbers_of_nodes_and_gains(run):
    two, four = (at_nodes(QUESTION, run, nodes, SOLVER) for nodes in (2, 4))
    steps = four.layout.step_time_s / run.layout.step_time_s
    assert (four.nodes, four.hours) == (4, pytest.approx(run.hours * steps, rel=1e-3))
    assert four.usd == pytest.approx(four.hours * (4 + 1) * 8 * 3.0)
    best = replace(four, choice=replace(four.choice, fewest=1, most=6))
    # A quarter, a half, three quarters (which 64 sequences do not fill), one and a half as many.
    assert [each.nodes for each in runs_to_compare(QUESTION, [best], SOLVER)] == [4, 1, 2, 2, 4]
    gains = {gain.change: gain for gain in gains_of(QUESTION, run, SOLVER)}
    assert not any("between nodes" in words or "speed" in words for words in gains)
    more = gains["one more node"]
    expected = ((two.hours - run.hours) / 24, two.usd - run.usd)
    assert (more.days, more.usd) == pytest.approx(expected)
    (point,) = (gain for words, gain in gains.items() if words.startswith("one point more of MFU"))
    less = mfu_of(run) / (mfu_of(run) + 0.01) - 1
    assert (point.days, point.usd) == pytest.approx((run.hours / 24 * less, run.usd * less))
    changes = {gain.change: gain for gain in gains_of(QUESTION, four, SOLVER)}
    (wider,) = (gain for words, gain in changes.items() if "between nodes" in words)
    assert wider.days < 0
    assert wider.days == gained_days(QUESTION, four, altered=with_tenth_more_network)


def test_more_memory_gains_what_a_larger_device_would():
    devices = (choice("a100-sxm-40gb", most=1),)
    tight = replace(size_question("llama-3.1-8b", seq=4096, choices=devices), reliability=SURE)
    run, usable = sized(tight).best, get_device("a100-sxm-40gb").usable_bytes
    gains = {gain.change: gain for gain in gains_of(tight, run, SOLVER)}
    days = [gained_days(tight, run, capacity=1 + gib * 2**30 / usable) for gib in (8, 16)]
    found = gains["8 GiB more memory per device"].days
    assert found == days[0]
    assert found != days[1]


def test_more_dollars_buy_the_fastest_run_that_they_pay_for():
    question = size_question("llama-3.1-8b", batches=(256,), choices=(choice(most=4),))
    question = replace(question, reliability=replace(SURE, spare_nodes=0))
    best = sized(question).best
    runs = [at_nodes(question, best, nodes, SOLVER) for nodes in range(1, 5)]
    fastest = min((run for run in runs if run.usd <= 1.05 * best.usd), key=lambda run: run.hours)
    assert fastest.usd > best.usd
    gains = {gain.change: gain for gain in gains_of(question, best, SOLVER)}
    found = gains[f"up to {format_usd(0.05 * best.usd)} more, spent on speed"]
    expected = ((fastest.hours - best.hours) / 24, fastest.usd - best.usd)
    assert (found.days, found.usd) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("deadline_s", "budget_usd", "fastest", "cheapest"),
    [
        (60.0, None, "", None),
        (None, 1.0, None, ""),
        (60.0, 1e6, " within the budget", ", and {time}"),
        (1e9, 1.0, ", and a budget of {usd}", " in time"),
        (60.0, 1.0, ", and a budget of {usd}", ", and {time}"),
    ],
)
def test_limits_that_could_be_kept(run, deadline_s, budget_usd, fastest, cheapest):
    """A minute, or a dollar, is too little: the fastest run, or the cheapest."""
    asked = replace(QUESTION, deadline_s=deadline_s, budget_usd=budget_usd)
    found = {each.flag: each for each in relaxations_of(asked, SEARCH)}
    quick = sized(replace(QUESTION, minimise="time")).best
    flags = {"--deadline": (fastest, quick), "--budget": (cheapest, run)}
    assert set(found) == {flag for flag, (words, _) in flags.items() if words is not None}
    for flag, each in found.items():
        words, best = flags[flag]
        says = {"usd": format_usd(best.usd), "time": format_time(best.hours * 3600)}
        least = {"--deadline": "a deadline of {time}, the fastest there is"}
        text = least.get(flag, "a budget of {usd}, the cheapest there is") + words
        assert each.change == text.format(**says)
        assert (each.days, each.usd, each.devices) == (best.hours / 24, best.usd, best.devices)


# Runs of 48 hours and $900 that were chosen; a faster, a cheaper, and a worse one.
FASTER, CHEAPER, WORSE = (24.0, 1200.0), (72.0, 800.0), (72.0, 1200.0)
LATE = "the deadline: 16 h100-sxm would take 3 d and $800.00"
DEAR = "the budget: 16 h100-sxm would take 1 d and $1.20 k"
BATCH = "the batch: more nodes leave too little work for each"
NO_LIMIT = "no limit: fewer nodes lack memory or lose speed, more scale worse"


@pytest.mark.parametrize(
    ("goal", "limits", "nodes", "others", "expected"),
    [
        (TOKENS, (1000.0, 60.0), (1, 2, 9), (), "the budget of $1.00 k"),
        (TOKENS, (1000.0, 50.0), (1, 2, 9), (), "the deadline of 2.08 d"),
        (TOKENS, (1000.0, None), (2, 2, 2), (), "the budget of $1.00 k and the nodes given, 2"),
        (TOKENS, (1000.0, None), (1, 2, 9), (FASTER, CHEAPER), "the budget of $1.00 k"),
        ("cost", (None, 72.0), (1, 2, 9), (CHEAPER,), NO_LIMIT),
        ("cost", (None, 71.0), (1, 2, 9), (WORSE, CHEAPER), LATE),
        ("time", (1200.0, None), (1, 2, 9), (FASTER,), BATCH),
        ("time", (1100.0, None), (1, 2, 9), (WORSE, FASTER), DEAR),
        ("time", (None, None), (1, 9, 9), (WORSE,), "the most nodes allowed, 9"),
        ("cost", (None, None), (2, 2, 9), (), "the fewest nodes allowed, 2"),
        ("cost", (None, None), (1, 1, 9), (), NO_LIMIT),
        ("devices", (None, None), (1, 1, 9), (), "no limit: one node is the fewest there is"),
        ("devices", (None, None), (1, 2, 9), (), "memory: fewer nodes do not hold the model"),
    ],
)
def test_the_binding_limit_by_hand(run, goal, limits, nodes, others, expected):
    usd, hours = limits
    keeps = {"budget_usd": usd, "deadline_s": hours and hours * 3600}
    asked = replace(QUESTION, minimise=goal, tokens=None if goal == TOKENS else 1e11, **keeps)
    fewest, number, most = nodes
    base = replace(run, choice=replace(run.choice, fewest=fewest, most=most), nodes=number)
    runs = [replace(base, hours=hours, usd=usd, nodes=2) for hours, usd in others]
    assert binding_limit(asked, replace(base, hours=48.0, usd=900.0), runs) == expected
