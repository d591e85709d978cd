"""Fitting: planted coefficients come back, what is not measured stays, a mistake is ignored."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.training_run.fit.fit import Fitted, fit_coefficients
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_kinds import KINDS
from simulator.training_run.step.coefficients import Assigned, assign
from simulator.training_run.step.features import Features, features
from simulator.training_run.step.step_time import step_parts
from tests.simulator.described_runs import GPT_RUN, LLAMA_8B, LLAMA_RUN

Array = NDArray[np.float64]

PLANTED = {
    "power.h100-sxm-80gb.16": 1.7,
    "passes.torch-fsdp": 2.0,
    "gather_exposed.torch-fsdp": 0.5,
    "step_ms.torch-fsdp": 25.0,
}


def table() -> list[TrainingRun]:
    """64 layouts of one stack on H100: other sizes, sequences, recomputation and nodes."""
    runs: list[TrainingRun] = []
    for hidden in (2048, 4096, 8192, 12288):
        heads = hidden // 128
        model = replace(
            LLAMA_8B,
            num_layers=16,
            hidden_size=hidden,
            ffn_size=7 * hidden // 2,
            num_heads=heads,
            num_kv_heads=heads,
        )
        for seq_len in (1024, 4096):
            for recompute in ("none", "full"):
                for devices in (8, 16):
                    for batch in (1, 4):
                        runs.append(
                            replace(
                                LLAMA_RUN,
                                id=f"r{len(runs)}",
                                model=model,
                                seq_len=seq_len,
                                recompute=recompute,
                                num_devices=devices,
                                dp=devices,
                                micro_batch=batch,
                                global_batch=2 * batch * devices,
                            )
                        )
    return runs


RUNS = table()


@pytest.fixture(scope="module")
def known() -> tuple[Features, Assigned, Array]:
    """Features, coefficients and the step times that the planted ones give, without noise."""
    x, assigned = features(RUNS), assign(RUNS)
    return x, assigned, step_parts(x, assigned.of(truth(assigned))).total_s


def truth(assigned: Assigned) -> Array:
    values = assigned.starts()
    for name, value in PLANTED.items():
        values[assigned.names.index(name)] = value
    return values


def named(assigned: Assigned, fitted: Fitted) -> dict[str, float]:
    return dict(zip(assigned.names, fitted.values.tolist(), strict=True))


def test_planted_coefficients_come_back(known: tuple[Features, Assigned, Array]) -> None:
    x, assigned, times = known
    fitted = fit_coefficients(x, assigned, times, weights=np.ones(len(times)))
    found = named(assigned, fitted)
    assert fitted.residual < 0.01
    for name, value in PLANTED.items():
        assert found[name] == pytest.approx(value, rel=0.15), name
    # The prior alone would have left them 20 to 60 % away.
    assert found["power.h100-sxm-80gb.16"] == pytest.approx(1.7, rel=0.02)


def test_what_no_row_feels_stays_at_its_kind(known: tuple[Features, Assigned, Array]) -> None:
    """No run here has stages or tensor parallelism, nor an unfused attention core."""
    x, assigned, times = known
    fitted = fit_coefficients(x, assigned, times, weights=np.ones(len(times)))
    found = named(assigned, fitted)
    start = {kind.name: kind.start for kind in KINDS}
    for kind in ("cut_step_us", "cut_peer_us", "cut_exposed", "ring_us", "scores"):
        assert found[f"{kind}.torch-fsdp"] == pytest.approx(start[kind], rel=1e-3), kind
        assert fitted.kind_values[kind] == pytest.approx(start[kind], rel=1e-3), kind


def test_a_kind_follows_its_members(known: tuple[Features, Assigned, Array]) -> None:
    """A device without rows starts where the measured ones of its kind ended."""
    x, assigned, times = known
    fitted = fit_coefficients(x, assigned, times, weights=np.ones(len(times)))
    assert 1.4 < fitted.kind_values["power"] < 1.7
    more = [*RUNS, replace(GPT_RUN, stack="torch-fsdp")]
    wide = assign(more)
    weights = np.ones(len(more))
    weights[-1] = 0.0
    silent = fit_coefficients(features(more), wide, np.append(times, 1.0), weights=weights)
    found = named(wide, silent)
    assert found["power.a100-sxm-80gb.16"] == pytest.approx(silent.kind_values["power"], rel=1e-3)


def test_one_absurd_row_is_ignored(known: tuple[Features, Assigned, Array]) -> None:
    """A hundred times slower than its like, as a published table with a slip of a decimal: least
    squares without a cap would move all of them by about 100^(1/64), 7 %."""
    x, assigned, times = known
    wrong = times.copy()
    wrong[10] *= 100.0
    fitted = fit_coefficients(x, assigned, wrong, weights=np.ones(len(times)))
    again = step_parts(x, assigned.of(fitted.values)).total_s
    error = np.abs(again / times - 1)
    assert error.max() < 0.03
    assert fitted.residual == pytest.approx(0.99 / 64, rel=0.3)


def test_a_row_of_weight_zero_has_no_say(known: tuple[Features, Assigned, Array]) -> None:
    x, assigned, times = known
    weights = np.ones(len(times))
    weights[:32] = 0.0
    plain = fit_coefficients(x, assigned, times, weights=weights)
    spoilt = times.copy()
    spoilt[:32] *= 3.0
    other = fit_coefficients(x, assigned, spoilt, weights=weights)
    assert other.values.tolist() == plain.values.tolist()


def test_without_any_row_everything_stays(known: tuple[Features, Assigned, Array]) -> None:
    """What leaving out the only source of a table comes to: the starts, and no residual."""
    x, assigned, times = known
    fitted = fit_coefficients(x, assigned, times, weights=np.zeros(len(times)))
    np.testing.assert_allclose(fitted.values, assigned.starts())
    assert math.isnan(fitted.residual)


def test_noise_averages_out(known: tuple[Features, Assigned, Array]) -> None:
    x, assigned, times = known
    rng = np.random.default_rng(7)
    noisy = times * np.exp(0.05 * rng.standard_normal(len(times)))
    fitted = fit_coefficients(x, assigned, noisy, weights=np.ones(len(times)))
    again = step_parts(x, assigned.of(fitted.values)).total_s
    assert np.abs(again / times - 1).mean() < 0.025
    assert 0.02 < fitted.residual < 0.05


def test_a_users_few_runs_move_what_was_shipped(known: tuple[Features, Assigned, Array]) -> None:
    """With a prior the fit starts from given coefficients and returns them where they fit."""
    x, assigned, times = known
    five = np.zeros(len(times))
    five[[0, 13, 27, 41, 60]] = 1.0
    values = truth(assigned)
    same = fit_coefficients(x, assigned, times, weights=five, start=values, prior=values)
    np.testing.assert_allclose(same.values, values, rtol=1e-3)
    # A cluster that takes 30 % longer: five runs are enough to come within 5 % on all.
    slow = fit_coefficients(x, assigned, 1.3 * times, weights=five, start=values, prior=values)
    again = step_parts(x, assigned.of(slow.values)).total_s
    assert np.abs(again / (1.3 * times) - 1).mean() < 0.05


def test_rows_of_one_device_tell_of_its_like(known: tuple[Features, Assigned, Array]) -> None:
    """H200 without rows takes what H100's say of Hopper, half way from the kind's mean."""
    runs = [*RUNS, replace(RUNS[0], id="unseen", device="h200-sxm")]
    x, assigned = features(runs), assign(runs)
    values = assigned.starts()
    values[assigned.names.index("power.h100-sxm-80gb.16")] = 1.9
    measured = step_parts(x, assigned.of(values)).total_s
    weights = np.ones(len(runs))
    weights[-1] = 0.0
    fitted = fit_coefficients(x, assigned, measured, weights=weights)
    found = named(assigned, fitted)
    family = fitted.family_values[assigned.family_names.index("power.hopper.16.*")]
    assert found["power.h200-sxm.16"] == pytest.approx(family)
    assert fitted.kind_values["power"] < family < found["power.h100-sxm-80gb.16"]
