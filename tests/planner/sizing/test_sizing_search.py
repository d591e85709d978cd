"""The sized run is the best of all node counts, and more to choose from never makes it worse."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from planner.layout.layout_question import LayoutSolver
from planner.layout.layout_search import nodes_of_run
from planner.sizing.sizing_search import goal_of, layout_question_of, plain_layout
from profiles.errors import InputError
from profiles.model.figures.transformer import Transformer
from simulator.training_run.framework.framework import framework_names, load_framework
from tests.planner.sizing.sized_questions import choice, size_question, sized
from tests.simulator.described_runs import LLAMA_RUN, MIXTRAL

SAME = 1 + 1e-9
RELAXED = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
)
GOALS = ("cost", "time", "devices", "energy")
DAY = 86400.0


def enumerated(question, picked):
    """The least value over every number of nodes, the fastest layout of each, by a search each."""
    best = math.inf
    for batch in question.batches:
        for stack in question.stacks:
            goal = goal_of(question, picked, stack, batch)
            for nodes in range(1, picked.most + 1):
                asked = layout_question_of(
                    question, picked, stack, batch, picked.node_devices, nodes
                )
                try:
                    found = LayoutSolver(clock=lambda: 0.0).search(asked)
                except InputError:
                    continue
                if not found.layouts:
                    continue
                layout = found.layouts[0]
                filled = np.asarray([nodes_of_run(layout.run)])
                value = goal.values(filled, np.asarray([layout.step_time_s]))[0]
                best = min(best, float(value))
    return best


ASKED = st.fixed_dictionaries(
    {
        "model": st.sampled_from(("gpt2", "llama-3.1-8b")),
        "device": st.sampled_from(("h100-sxm", "a100-sxm-80gb")),
        "node": st.sampled_from((4, 8)),
        "most": st.integers(1, 5),
        "minimise": st.sampled_from(GOALS),
        "batch": st.sampled_from((24, 60, 64)),
        "days": st.sampled_from((None, 2.0, 20.0, 200.0)),
        "usd": st.sampled_from((None, 2e3, 2e4, 2e6)),
    }
)


def asked_of(words):
    picked = choice(device=words["device"], node=words["node"], most=words["most"])
    limits = {
        "deadline_s": words["days"] * DAY if words["days"] else None,
        "budget_usd": words["usd"],
    }
    question = size_question(
        model=words["model"],
        tokens=1e10,
        minimise=words["minimise"],
        batches=(words["batch"],),
        choices=(picked,),
        **limits,
    )
    return question, picked


@settings(RELAXED, max_examples=7)
@given(ASKED)
def test_one_search_finds_what_every_number_of_nodes_gives(words):
    question, picked = asked_of(words)
    best = sized(question).best
    expected = enumerated(question, picked)
    assert (best.value if best else math.inf) == pytest.approx(expected, rel=1e-9)


@settings(RELAXED, max_examples=7)
@given(ASKED, st.sampled_from(("days", "usd", "most")), st.integers(2, 4))
def test_more_is_never_worse(words, what, times):
    question, _ = asked_of(words)
    now = sized(question).best
    given_more = words[what] and words[what] * times
    more, _ = asked_of({**words, what: given_more})
    then = sized(more).best
    if now is not None:
        assert then is not None
        assert then.value <= now.value * SAME


@settings(RELAXED, max_examples=3)
@given(st.sampled_from((1e4, 1e5)), st.sampled_from((None, 10.0)), st.integers(2, 5))
def test_more_dollars_buy_no_fewer_tokens(usd, days, times):
    limits = {"deadline_s": days * DAY if days else None}
    some = sized(size_question(tokens=None, budget_usd=usd, **limits)).best
    more = sized(size_question(tokens=None, budget_usd=times * usd, **limits)).best
    assert more.tokens >= some.tokens / SAME


def test_tokens_of_a_budget_cost_the_budget():
    found = sized(size_question(tokens=None, budget_usd=5e4)).best
    assert found.usd == pytest.approx(5e4)
    again = sized(size_question(tokens=found.tokens, minimise="cost")).best
    # As many tokens are bought at least for as much; steps are whole.
    assert again.usd == pytest.approx(5e4, rel=1e-4)


def test_racks_may_be_used_without_their_last_trays():
    picked = choice(device="gb200-nvl72", node=72, most=2, widths=(72, 64))
    question = size_question(model="llama-3.1-8b", tokens=1e10, batches=(64,), choices=(picked,))
    both = sized(question).best
    whole = sized(replace(question, choices=(replace(picked, widths=(72,)),))).best
    assert both.value <= whole.value
    assert both.devices % 72 == 0


def test_a_time_limit_leaves_a_gap_and_not_a_wrong_answer():
    question = size_question(choices=(choice(most=64),), batches=(256,))
    ticks = iter(range(10**6))
    hurried = sized(question, end_s=2.0, clock=lambda: float(next(ticks)))
    whole = sized(question)
    assert not hurried.complete
    if hurried.best is not None:
        assert hurried.best.value >= whole.best.value / SAME
        assert hurried.bound <= whole.best.value * SAME


@pytest.mark.parametrize("stack", framework_names())
@pytest.mark.parametrize("model", [LLAMA_RUN.model, MIXTRAL])
def test_the_plain_layout_is_one_that_the_framework_runs(stack: str, model: Transformer) -> None:
    base = replace(LLAMA_RUN, stack=stack, model=model)
    rules = load_framework(stack).rules
    for width in (1, 8, 256):
        run = plain_layout(base, 1024, width)
        assert run.degrees.used <= set(rules.axes)
        assert run.zero_stage in rules.zero_stages_at(1)
        assert run.degrees.tp * run.degrees.dp == run.degrees.num_devices == 1024
        assert run.degrees.tp <= model.num_kv_heads
        assert run.degrees.ep <= max(1, model.num_experts)
