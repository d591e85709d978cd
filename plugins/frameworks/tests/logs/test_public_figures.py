"""Logs with the figures of public ones give the step time that a person reads off them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shardwright_frameworks.logs.read_log import read_training_log
from shardwright_frameworks.logs.training_log import log_data

from plugins.frameworks.tests.logs.public_figures import PUBLIC, PublicFigures
from plugins.frameworks.tests.logs.written_log import WrittenRun, written
from tests.shardwright.golden import check_golden


@pytest.mark.parametrize("figures", PUBLIC, ids=lambda each: each.address.split("github.com/")[1])
def test_the_step_time_is_what_a_person_reads(tmp_path: Path, figures: PublicFigures) -> None:
    path = tmp_path / "train.log"
    path.write_text(figures.text, encoding="utf-8", newline="")
    log = read_training_log(path)
    assert log.framework == figures.framework
    assert log.steady_step_time_s == pytest.approx(figures.step_time_s, rel=0.01)
    assert (log.steps, log.restarts, log.stalls) == (figures.steps, 0, figures.stalls)
    assert log.resumed is figures.resumed


def test_the_json_of_a_log_with_all_that_happens(tmp_path: Path) -> None:
    run = WrittenRun(
        attempts=((1, 50), (41, 80)), stalls={20: 8.0, 33: 12.0}, saves=40, noise=0.005, seed=3
    )
    path = tmp_path / "train.log"
    path.write_text(written("megatron-lm", run), encoding="utf-8")
    data = {**log_data(read_training_log(path)), "file": "train.log"}
    check_golden("training_log.json", json.dumps(data, indent=1) + "\n")
