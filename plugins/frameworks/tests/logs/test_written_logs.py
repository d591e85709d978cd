"""Logs with a known truth, in every form: the steady step within 1 %, and what was not steady."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shardwright_frameworks.logs.read_log import read_training_log
from shardwright_frameworks.logs.training_log import TrainingLog

from plugins.frameworks.tests.logs.written_log import FORMS, WrittenRun, steady_s, written


def reading(folder: Path, text: str) -> TrainingLog:
    path = folder / "train.log"
    path.write_text(text, encoding="utf-8", newline="")
    return read_training_log(path)


@st.composite
def runs(draw: st.DrawFn) -> WrittenRun:
    every = draw(st.sampled_from((1, 1, 1, 5, 10)))
    count = every * draw(st.integers(20, 60))
    stalls = draw(
        st.dictionaries(
            st.integers(8, count // every - 2).filter(lambda n: n % 2 == 0),
            st.floats(6.0, 20.0),
            max_size=3,
        )
    )
    restart = draw(st.booleans())
    begin = every * draw(st.sampled_from((0, 0, 30))) + 1
    attempts = [(begin, begin + count - 1)]
    if restart:
        back = every * draw(st.integers(1, 5))
        attempts.append((begin + count - back, begin + count - back + every * 12 - 1))
    saves = draw(st.sampled_from((0, 0, 7)))
    before = (begin - 1) // every
    # What follows a checkpoint at once is taken for its cost.
    stalls = {place: f for place, f in stalls.items() if not saves or (before + place) % saves != 1}
    return WrittenRun(
        attempts=tuple(attempts),
        base_s=draw(st.floats(0.2, 90.0)),
        noise=draw(st.floats(0.0, 0.02)),
        warm_up=draw(st.sampled_from(((), (3.0,), (20.0, 1.5), (6.0, 2.0, 1.3)))),
        stalls={begin + every * place - 1: factor * every for place, factor in stalls.items()},
        saves=every * saves,
        save_s=draw(st.floats(5.0, 100.0)),
        every=every,
        seed=draw(st.integers(0, 1000)),
    )


@pytest.mark.parametrize("name", sorted(FORMS))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(run=runs())
def test_the_steady_step_is_read_within_one_percent(
    name: str, tmp_path: Path, run: WrittenRun
) -> None:
    if name == "transformers" and run.attempts[0][0] > 1:
        # Behind a jump the rate of a bar tells little, and its clock counts whole seconds.
        begin = run.attempts[0][0]
        run = replace(
            run, stalls={s: f for s, f in run.stalls.items() if s > begin + 20 * run.every}
        )
    # A bar's rate has two decimals: of few lines they leave more unknown.
    few = run.attempts[0][1] - run.attempts[0][0] < 40 * run.every
    near = 0.02 if name == "transformers" and few else 0.01
    log = reading(tmp_path, written(name, run))
    assert log.framework == name
    assert log.steady_step_time_s == pytest.approx(steady_s(run), rel=near)
    assert log.restarts == len(run.attempts) - 1
    assert log.resumed is (run.attempts[0][0] > 1)
    assert log.steps == run.last - run.attempts[0][0] + 1
    assert log.stalls == len(run.stalls)
