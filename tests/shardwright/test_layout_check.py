"""Own modules whose widths are those of GPT-2: layouts where their prices are those of the blocks,
which is what runs, and the search block by block elsewhere."""

from __future__ import annotations

import pytest

from shardwright import api
from shardwright.requests.plan_route import route_of
from simulator.traced.predict import predict
from simulator.values.workload import Workload
from tests.shardwright import own_transformers

OWN = own_transformers.__name__
ON = "8xh100-sxm"
MICRO_BATCH = 8


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("like_gpt2", ""),
        # nanoGPT: the loss is computed in bf16, and layouts count its logits in fp32.
        ("nanogpt", "the peak memory of tp1 pp1 dp8 as a layout is "),
        ("squared", "the step of tp1 pp1 dp8 as a layout is "),
        ("turned_keys", "the step of tp1 pp1 dp8 as a layout is "),
        ("written", "the step of tp1 pp1 dp8 as a layout is "),
    ],
)
def test_modules_with_other_prices_are_planned_block_by_block(module: str, why: str) -> None:
    found = route_of(f"{OWN}:{module}", api.cluster(ON), seq=None)
    assert (found.figures is None) == bool(why)
    assert why in found.why_blocks
    assert bool(found.why_blocks) == bool(why)


@pytest.mark.parametrize("module", ["like_gpt2", "nanogpt"])
@pytest.mark.parametrize(("tp", "pp", "zero"), [(1, 1, 3), (4, 1, 1), (1, 4, 1)])
def test_plans_of_own_modules_have_the_price_of_their_blocks(
    module: str, tp: int, pp: int, zero: int
) -> None:
    """As layouts, the steps of these modules were up to 20 % off, and their peaks up to 30 %."""
    model = f"{OWN}:{module}"
    replicas = 8 // (tp * pp)
    work = Workload(
        global_batch=8 * MICRO_BATCH * replicas, sequence_length=own_transformers.TOKENS
    )
    schedule = "1f1b" if pp > 1 else "none"
    found = api.plan(
        model,
        ON,
        work,
        tp=tp,
        pp=pp,
        zero=zero,
        micro_batch=MICRO_BATCH,
        recompute="none",
        schedule=schedule,
    )
    assert found.plan is not None
    assert found.prediction is not None
    shares = found.plan.sequence_parallel
    traced = api.trace(model, tp_degrees=(1, tp), sequence_parallel=shares)
    blocks = predict(found.plan, traced, api.cluster(ON))
    assert found.prediction.step_time_s.value == pytest.approx(blocks.step_time_s.value, rel=0.05)
    peaks = [max(rank.peak_bytes for rank in each.ranks) for each in (found.prediction, blocks)]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.05)
    assert api.predict(found).step_time_s.value == pytest.approx(found.prediction.step_time_s.value)
