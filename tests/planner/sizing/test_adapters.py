"""Low-rank adapters are planned as described runs of them are predicted."""

from dataclasses import replace

import pytest

from profiles.errors import InputError
from simulator.memory.footprint import footprint
from tests.planner.layout.asked import question, solved


def test_adapters_need_less_memory_and_time():
    asked = question("llama-3.1-8b", "8xh100-sxm", batch=8)
    full = solved(asked).chosen
    adapters = solved(replace(asked, lora_rank=16))
    run = adapters.chosen.run
    assert run.lora
    assert run.lora_rank == 16
    assert adapters.chosen.prediction.step_time_s.value < full.prediction.step_time_s.value
    trained = replace(run, lora=False)
    assert footprint(run).needed_bytes < footprint(trained).needed_bytes
    assert any("adapters of rank 16" in said for said in adapters.assumptions)


def test_a_rank_is_no_less_than_one():
    with pytest.raises(InputError, match="--lora -1"):
        replace(question(), lora_rank=-1)
