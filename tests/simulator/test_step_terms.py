"""The table of step terms: sums by hand, printed numbers that compute, a new cost in one place."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.axes import Axes
from planner.layout.layout_question import layout_context
from planner.layout.prices import LayoutPrices, legal_layouts
from shardwright.runs.predict_runs import predict_runs
from shardwright.runs.run import FIGURES
from shardwright.runs.run_table import read_runs
from simulator.formula_symbol import Symbol
from simulator.training_run.explain.explain_run import StepLine, explain_run, step_lines
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.step import step_terms
from simulator.training_run.step.coefficients import assign, shipped_coefficients
from simulator.training_run.step.features import Features, features
from simulator.training_run.step.step_term import LAYER, Term
from simulator.training_run.step.step_terms import TERMS
from simulator.training_run.step.step_time import PARTS, step_parts
from simulator.values.prediction import Part
from tests.simulator.described_runs import (
    GPT_RUN,
    LLAMA_RUN,
    changed,
    of_each,
    plain,
    training_runs,
)


def made(**values: float) -> Features:
    """Features of one run, 0 where not given; all groups of ranks in one node."""
    names = [f.name for f in fields(Features)]
    assert set(values) <= set(names)
    values = {name: 1.0 for name in names if name.endswith("_nodes")} | values
    return Features(**{name: np.asarray([float(values.get(name, 0.0))]) for name in names})


# Four stages of five layers on two nodes, eight micro-batches.
FOUR_STAGES = made(
    microbatches=8, pp=4, vpp=1, nodes=2, layers=5, last_layers=5, all_layers=20,
    matmul_forward=2e-3, matmul_backward=4e-3, tensor_inner=0.5e-3, head_matmul=1e-3,
    cut_outer=0.1e-3, optimizer_s=3e-3,
)  # fmt: skip
COEFFICIENTS = plain(matmul=1.1, inner=2.0, cut_exposed=0.5, optimizer=2.0, congestion=0.1)


def by_name(x: Features, changes: dict[str, float]) -> dict[str, StepLine]:
    return {line.name: line for line in step_lines(x, of_each(changes))}


def test_lines_by_hand() -> None:
    """A layer: matmuls 1.1 x (2 + 4) ms, collectives 2 x 0.5 ms in each of 2 passes: 8.6 ms. A
    stage: 43 ms, the last 1.1 ms more, which sets the pace: 8 x 44.1 = 352.8 ms. The others idle
    4 x 43 + 1.1 - 44.1 = 129 ms. A send takes 0.1 ms and, two nodes being one
    doubling, 10 % more: 2 x 0.11 x (8 x 0.5 + 3) = 1.54 ms. The optimizer 2 x 3 ms."""
    found = by_name(FOUR_STAGES, COEFFICIENTS)
    expected = {
        "matmuls, forward": 5 * 8 * 2.2,
        "matmuls, backward": 5 * 8 * 4.4,
        "tensor parallelism's collectives": 5 * 8 * 2.0,
        "logits and loss": 8 * 1.1,
        "idle stages": 129.0,
        "sends between stages": 1.54,
        "optimizer": 6.0,
    }
    assert {name: line.time_s * 1e3 for name, line in found.items()} == pytest.approx(expected)
    parts = step_parts(FOUR_STAGES, of_each(COEFFICIENTS))
    assert float(parts.total_s[0]) == pytest.approx(489.34e-3)
    assert found["matmuls, forward"].formula == (
        "level x matmul x kernels alone x layers x micro-batches"
    )
    assert found["matmuls, forward"].numbers == "1 x 1.1 x 2 ms x 5 layers x 8 micro-batches"
    words = "level x other stages / chunks; other stages = all stages - busiest stage"
    assert found["idle stages"].formula == words
    assert found["idle stages"].numbers == "1 x 129 ms / 1; other stages = 173 ms - 44.1 ms"


def test_exposed_messages_and_a_slow_host_by_hand() -> None:
    """One device, one layer of 2 ms, 1 micro-batch; 100 kernels at 40 us are 4 ms of host: the
    6-norm of 2 and 4 is (64 + 4096)^(1/6) = 4.0104 ms. Gathers of 1 ms under 4.0104 ms show 10 %
    and (1 + 4160)^(1/6) - 4.0104 = 0.0002 ms."""
    x = made(
        microbatches=1, pp=1, vpp=1, nodes=1, layers=1, last_layers=1,
        attention_forward=2e-3, kernels_forward=100, gather_inner=1e-3,
    )  # fmt: skip
    found = by_name(x, plain(launch_us=40.0, gather_exposed=0.1))
    assert found["waiting for the host"].time_s == pytest.approx(2.0104e-3, rel=1e-4)
    assert "host = kernels forward x launch_us" in found["waiting for the host"].formula
    shown = found["gathering sharded weights (ZeRO-3)"].time_s
    assert shown == pytest.approx(0.1002e-3, rel=1e-3)


def test_a_host_launches_what_is_recomputed_by_hand() -> None:
    """100 kernels forward, 300 backward and half of the 100 again, 10 us each, beside nothing."""
    x = made(
        microbatches=1, pp=1, vpp=1, nodes=1, layers=1, last_layers=1,
        kernels_forward=100, kernels_backward=300, recomputed_matmul=0.5,
    )  # fmt: skip
    found = by_name(x, plain(launch_us=10.0))
    assert found["waiting for the host"].time_s == pytest.approx(4.5e-3)


def test_messages_of_a_layer_by_hand() -> None:
    """Attention of 2 ms forward and 4 ms backward. Tensor parallelism: 1 ms and steps of 14 x 2 us
    and 3 x 5 us, of which half shows, in two passes. A ring of keys and values: once forward, twice
    backward, 2.4 ms in all, of which a tenth shows; of 9 ms also what exceeds the attention.
    Experts: 2 x 5 ms; where micro-batches overlap, what exceeds a layer that lasts 20 / 132 of the
    messages longer."""
    x = made(
        microbatches=1, pp=1, vpp=1, nodes=1, layers=1, last_layers=1,
        attention_forward=2e-3, attention_backward=4e-3, context_inner=0.8e-3, tensor_inner=1e-3,
        tensor_inner_steps=14, tensor_outer_steps=3, expert_inner=5e-3,
    )  # fmt: skip
    c = plain(inner_step_us=2.0, outer_step_us=5.0, tensor_exposed=0.5, context_exposed=0.1)
    parts = step_parts(x, of_each(c))
    ms = {part: 1e3 * float(parts[part][0]) for part in (Part.TENSOR, Part.CONTEXT, Part.EXPERT)}
    assert ms == pytest.approx({Part.TENSOR: 1.043, Part.CONTEXT: 0.24, Part.EXPERT: 10.0})
    longer = step_parts(replace(x, context_inner=np.asarray([3e-3])), of_each(c))
    assert 1e3 * float(longer[Part.CONTEXT][0]) == pytest.approx(3.0 + 0.6)
    paired = step_parts(replace(x, overlaps_experts=np.ones(1)), of_each(c))
    layer_ms = 6.0 + ms[Part.TENSOR] + ms[Part.CONTEXT]
    expected = six_norm(layer_ms + 10.0 * 20 / 132, 10.0) - layer_ms
    assert 1e3 * float(paired[Part.EXPERT][0]) == pytest.approx(expected)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_runs_are_priced_alike_in_any_company(seed: int) -> None:
    """Three runs, each with about half of the features."""
    rng = np.random.default_rng(seed)
    counts = ("pp", "vpp", "nodes", "layers", "last_layers", "all_layers")
    drawn = {f.name: rng.random(3) * rng.integers(0, 2, 3) for f in fields(Features)}
    drawn |= {n: 1.0 + rng.integers(0, 4, 3) for n in drawn if n in counts or n.endswith("_nodes")}
    x = Features(**{**drawn, "microbatches": 4 * drawn["pp"]})
    c = of_each(plain(inner=2.0, congestion=0.1, cut_exposed=0.5, launch_us=10.0))
    together = step_parts(x, c)
    for run in range(3):
        alone = step_parts(Features(**{n: getattr(x, n)[[run]] for n in drawn}), c)
        for part, seconds in alone.items():
            assert float(together[part][run]) == pytest.approx(float(seconds[0])), part


def test_sends_by_hand() -> None:
    """2 ms inside nodes, 2 x 1.3 ms between 8 of them, 3 steps of 10 us: 4.63 ms, there and back,
    for half of 8 x 2 micro-batches and chunks and for the ramp of 3."""
    x = made(microbatches=8, pp=4, vpp=2, nodes=8, cut_inner=1e-3, cut_outer=2e-3, cut_steps=3)
    found = by_name(x, plain(inner=2.0, congestion=0.1, cut_step_us=10.0, cut_exposed=0.5))
    assert found["sends between stages"].time_s == pytest.approx(2 * 4.63e-3 * (8 + 3))


EXCHANGE = "exchange of gradients and weights"


def test_an_exchange_that_nothing_hides_by_hand() -> None:
    """4 ms between two nodes, 10 % longer for one doubling, of which a quarter goes on beside
    layers of 20 ms and shows 10 %; the rest takes 1.5 times as long."""
    x = made(
        microbatches=2, pp=1, vpp=1, nodes=8, layers=2, last_layers=2,
        attention_forward=10e-3, reduce_outer=4e-3, data_nodes=2, overlapped_exchange=0.25,
    )  # fmt: skip
    c = plain(congestion=0.1, reduce_exposed=1.5, gather_exposed=0.1)
    found = by_name(x, c)[EXCHANGE].time_s
    assert found == pytest.approx(1.1e-3 * 0.1 + 3.3e-3 * 1.5)


@pytest.mark.parametrize(
    ("vpp", "microbatches", "room"),
    [
        (1, 8, 2.0),  # the passes of one micro-batch, whatever the stages
        (2, 8, 2.0 * (4 + 1) / 2),  # and of four through the other chunk
        (4, 8, 2.0 * (4 * 3 + 1) / 4),
        (4, 2, 2.0 * (2 * 3 + 1) / 4),  # there are only two
    ],
)
def test_an_exchange_beside_layers_by_hand(vpp: int, microbatches: int, room: float) -> None:
    """Four stages of two layers of 1 ms; messages of 4 ms, half of what fits shows. The last
    chunk's share of the messages has its own pass alone."""
    x = made(
        microbatches=microbatches, pp=4, vpp=vpp, nodes=8, layers=2,
        last_layers=2, attention_forward=1e-3, reduce_inner=4e-3, overlapped_exchange=1.0,
    )  # fmt: skip
    beyond = max(six_norm(room, 4.0) - room, (six_norm(2.0, 4.0) - 2.0) / vpp)
    found = by_name(x, plain(gather_exposed=0.5))[EXCHANGE].time_s
    assert found == pytest.approx(1e-3 * (beyond + 0.5 * min(4.0, room)))


def test_recomputation_by_hand() -> None:
    """Half of the layers: 0.5 x 3 ms more forward, and 2.5 passes of messages instead of 2."""
    x = made(
        microbatches=1, pp=1, vpp=1, nodes=1, layers=1, last_layers=1,
        matmul_forward=3e-3, recomputed_matmul=0.5, recomputed_routed=0.5, tensor_inner=2e-3,
    )  # fmt: skip
    found = by_name(x, plain())
    assert found["matmuls, recomputed"].time_s == pytest.approx(1.5e-3)
    assert found["matmuls, recomputed"].numbers == "1 x 0.5 x 3 ms x 1 layers x 1 micro-batches"
    assert found["tensor parallelism's collectives"].time_s == pytest.approx(2.5 * 2e-3)


# ---- What is printed computes

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}


def computed(numbers: str) -> float:
    """The value of a printed line of numbers."""
    text = numbers.partition(";")[0]
    text = re.sub(r"([\d.]+(?:e[+-]?\d+)?) (ns|us|ms|min|s|h)\b",
                  lambda m: str(float(m[1]) * _UNITS[m[2]]), text)  # fmt: skip
    text = re.sub(r" (layers|micro-batches)\b", "", text).replace(" x ", " * ")
    known = {"larger": six_norm, "max": max, "min": min, "log2": math.log2}
    return float(eval(text, known))


def six_norm(a: float, b: float) -> float:
    return (a**6 + b**6) ** (1 / 6)


def test_printed_numbers_compute_to_the_seconds_of_their_line() -> None:
    """Rounded to three digits each; differences, which lose digits, are left to the hand-made."""
    checked = 0
    for asked in predict_runs(read_runs(FIGURES, lenient=True))[::3]:
        if asked.run is None:
            continue
        for line in explain_run(asked.run).lines:
            if " - " in line.numbers or "largest of" in line.formula:
                continue
            assert computed(line.numbers) == pytest.approx(line.time_s, rel=0.03), line
            checked += 1
    assert checked > 300


def test_symbols_keep_brackets_and_drop_what_changes_nothing() -> None:
    a, b = Symbol(2.0, "a"), Symbol(3.0, "b")
    nothing, one = Symbol(0.0, "c"), np.ones(1)
    for found, words, value in (
        (a * (b + nothing) * one, "a x b", 6.0),
        (a * (b + 1.0), "a x (b + 1)", 8.0),
        (a - (b - 1.0), "a - (b - 1)", 0.0),
        (10.0 - (a + b), "10 - (a + b)", 5.0),
        (a / (b * 2.0), "a / (b x 2)", 1 / 3),
        (1e-6 * a * b, "a x b", 6e-6),
        (np.where(a > b, a, a + b), "a + b", 5.0),
        (np.maximum(a + b, 0.0), "a + b", 5.0),
        (np.minimum(np.asarray([4.0]), a), "min(4, a)", 2.0),
    ):
        assert found.value == pytest.approx(value)
        assert found.words == (words if value else "0")


# ---- Properties that searches rely on


@settings(max_examples=40, deadline=None)
@given(run=training_runs(), more=st.floats(1e-6, 3.0))
def test_more_idle_time_never_shortens_a_step(run, more) -> None:
    """Bounds take the least idle share that is possible."""
    x = features([run], all_fit=True)
    assigned = assign([run])
    c = assigned.of(assigned.from_file(shipped_coefficients()))
    least = replace(x, idle_share=np.minimum(x.idle_share, 1e-12))
    longer = replace(x, idle_share=x.idle_share + more * (x.idle_share > 0))
    totals = [float(step_parts(each, c).total_s[0]) for each in (least, x, longer)]
    assert totals == sorted(totals)


def test_names_and_parts_are_known() -> None:
    assert len({term.name for term in TERMS}) == len(TERMS)
    assert {term.part for term in TERMS} == set(PARTS)


# ---- A new cost is one term


def llama_prices():
    base = changed(LLAMA_RUN, dp=16, stack="megatron-core", global_batch=32)
    context = layout_context(base, load_framework("megatron-core").rules)
    space = Axes(tp=(1, 2), pp=(1, 4))
    return base, LayoutPrices(base, shipped_coefficients()), legal_layouts(space, context)


@pytest.mark.parametrize("per", [None, LAYER], ids=["once a step", "in each layer"])
def test_a_new_cost_is_one_term(monkeypatch: pytest.MonkeyPatch, per) -> None:
    """A pause for a checkpoint: the optimizer's bytes at a hundredth of the memory's bandwidth,
    every 50 steps. It shows in the step, in prices and bounds, and in the explanation."""
    base, prices, layouts = llama_prices()
    pause = Term(
        "writing checkpoints",
        Part.OVERHEAD,
        lambda x, c, earlier: 100.0 * x.optimizer_s / 50.0,
        per=per,
    )
    run = GPT_RUN
    before = step_parts(features([run]), of_each(plain()))
    bounds, exact = prices.step_times(layouts), prices.exact(layouts)
    monkeypatch.setattr(step_terms, "TERMS", (*TERMS, pause))
    after = step_parts(features([run]), of_each(plain()))
    each = 2.0 * float(features([run]).optimizer_s[0])
    # 32 micro-batches of 12 layers on each of 8 stages; 7 of them idle once for each stage.
    times = 1 if per is None else 12 * 32
    assert float((after[Part.OVERHEAD] - before[Part.OVERHEAD])[0]) == pytest.approx(times * each)
    idle = 0 if per is None else 7 * 12
    assert float((after[Part.BUBBLE] - before[Part.BUBBLE])[0]) == pytest.approx(idle * each)
    dearer = prices.step_times(layouts)
    assert np.all(dearer > bounds)
    for index in np.linspace(0, len(layouts) - 1, 20).astype(int).tolist():
        time_s = float(prices.exact_parts(layouts.run(base, index)).total_s[0])
        assert dearer[index] <= time_s * (1 + 1e-9)
        if exact[index]:
            assert dearer[index] == pytest.approx(time_s, rel=1e-9)
    (line,) = (line for line in explain_run(run).lines if line.name == pause.name)
    level = shipped_coefficients().values["level.megatron-2021"]
    assert line.time_s == pytest.approx(level * times * each)
    assert line.formula.startswith("level x 100 x bytes / bandwidth / 50")
