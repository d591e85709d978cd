"""Fitting: planted coefficients and source effects come back; mistakes and zero weights do not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from evidence.coefficient_fit import Fitted, Origin, Variances, fit_coefficients
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_kinds import BY_NAME, KINDS
from simulator.training_run.step.coefficients import Assigned, assign
from simulator.training_run.step.features import Features, features
from simulator.training_run.step.step_time import step_parts
from tests.simulator.described_runs import LLAMA_8B, LLAMA_RUN, changed

Array = NDArray[np.float64]

PLANTED = {"power.h100-sxm-80gb.16": 1.6, "passes.*": 2.0, "step_ms.*": 15.0}


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
                            changed(
                                LLAMA_RUN,
                                id=f"r{len(runs)}",
                                model=model,
                                seq_len=seq_len,
                                recompute=recompute,
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


def sources(count: int) -> Origin:
    """Rows dealt to so many sources of one device."""
    return Origin(sources=[f"s{i % count}" for i in range(len(RUNS))], devices=["h100"] * len(RUNS))


def fitted_on(
    known: tuple[Features, Assigned, Array],
    times: Array,
    count: int = 8,
    weights: Array | None = None,
) -> Fitted:
    x, assigned, _ = known
    each = np.ones(len(times)) if weights is None else weights
    return fit_coefficients(x, assigned, times, sources(count), weights=each)


def test_planted_coefficients_come_back(known: tuple[Features, Assigned, Array]) -> None:
    """Eight sources that agree: the common values move from the starts towards the planted ones."""
    fitted = fitted_on(known, known[2])
    found = named(known[1], fitted)
    assert fitted.residual < 0.02
    for name, value in PLANTED.items():
        start = BY_NAME[name.partition(".")[0]].start
        assert abs(math.log(found[name] / value)) < 0.6 * abs(math.log(start / value)), name


def test_a_coefficient_that_no_row_depends_on_stays(
    known: tuple[Features, Assigned, Array],
) -> None:
    """No run here has stages, tensor parallelism or an unfused attention core."""
    found = named(known[1], fitted_on(known, known[2]))
    for kind in ("cut_step_us", "cut_exposed", "hop_us", "scores"):
        assert found[f"{kind}.*"] == pytest.approx(BY_NAME[kind].start, rel=1e-6), kind


def test_the_effect_of_one_source_stays_with_it(known: tuple[Features, Assigned, Array]) -> None:
    """One of eight sources is 40 % slower: its own effect says so, and a new source hardly."""
    x, assigned, times = known
    origin = sources(8)
    slow = times * np.where(np.asarray(origin.sources) == "s3", 1.4, 1.0)
    fitted = fitted_on(known, slow)
    plain = step_parts(x, assigned.of(fitted.values)).total_s
    assert np.median(np.abs(np.log(plain / times))) < 0.06
    level = [kind.name for kind in KINDS].index("level")
    shift = {
        name: effects[level] + fitted.clusters[name, "h100"]
        for name, effects in fitted.deviations.items()
    }
    assert shift["s3"] > 0.12
    assert max(abs(value) for name, value in shift.items() if name != "s3") < 0.08
    assert fitted.variances.between["level"] > fitted_on(known, times).variances.between["level"]


def test_one_source_moves_common_values_less_than_eight(
    known: tuple[Features, Assigned, Array],
) -> None:
    """The same rows, all 30 % slower, said by one source or by eight."""
    x, assigned, times = known
    moved = []
    for count in (1, 8):
        fitted = fitted_on(known, 1.3 * times, count)
        step = step_parts(x, assigned.of(fitted.values)).total_s
        plain = step_parts(x, assigned.of(fitted_on(known, times, count).values)).total_s
        moved.append(float(np.mean(np.log(step / plain))))
    assert moved[0] < 0.8 * moved[1]
    assert moved[1] > 0.1


def test_one_absurd_row_is_ignored(known: tuple[Features, Assigned, Array]) -> None:
    """A hundred times slower than its peers, as in a table with a misplaced decimal: least squares
    without a cap would move all rows by about 100^(1/64), 7 %."""
    x, assigned, times = known
    wrong = times.copy()
    wrong[10] *= 100.0
    spoilt, plain = (
        step_parts(x, assigned.of(fitted_on(known, each).values)).total_s for each in (wrong, times)
    )
    assert np.abs(spoilt / plain - 1).max() < 0.03


def test_a_row_of_weight_zero_has_no_effect(known: tuple[Features, Assigned, Array]) -> None:
    times = known[2]
    weights = np.ones(len(times))
    weights[:32] = 0.0
    plain = fitted_on(known, times, weights=weights)
    spoilt = times.copy()
    spoilt[:32] *= 3.0
    assert fitted_on(known, spoilt, weights=weights).values.tolist() == plain.values.tolist()


def test_without_any_row_everything_stays(known: tuple[Features, Assigned, Array]) -> None:
    """Leaving out the only source of a table: the starts, and no residual."""
    fitted = fitted_on(known, known[2], weights=np.zeros(len(RUNS)))
    np.testing.assert_allclose(fitted.values, known[1].starts())
    assert math.isnan(fitted.residual)


def test_noise_is_estimated(known: tuple[Features, Assigned, Array]) -> None:
    """Eight rows of each source: its deviations follow part of the noise."""
    times = known[2]
    rng = np.random.default_rng(7)
    noise = [
        fitted_on(known, times * np.exp(spread * rng.standard_normal(len(times)))).variances.noise
        for spread in (0.02, 0.3)
    ]
    assert noise[0] < 0.04 < 0.1 < noise[1] < 0.35


def test_a_refit_keeps_the_variances(known: tuple[Features, Assigned, Array]) -> None:
    x, assigned, times = known
    whole = fitted_on(known, times)
    again = fit_coefficients(
        x, assigned, times, sources(8), weights=np.ones(len(times)), start=whole
    )
    assert again.variances == whole.variances
    np.testing.assert_allclose(again.values, whole.values, rtol=5e-3)


def test_rows_of_one_device_inform_its_family(known: tuple[Features, Assigned, Array]) -> None:
    """H200 without rows takes the value of Hopper, between the start and H100's own value."""
    runs = [*RUNS, replace(RUNS[0], id="unseen", device="h200-sxm")]
    x, assigned = features(runs), assign(runs)
    values = assigned.starts()
    values[assigned.names.index("power.h100-sxm-80gb.16")] = 1.8
    measured = step_parts(x, assigned.of(values)).total_s
    weights = np.ones(len(runs))
    weights[-1] = 0.0
    origin = Origin(sources=[*sources(8).sources, "s0"], devices=[*sources(8).devices, "h200"])
    fitted = fit_coefficients(x, assigned, measured, origin, weights=weights)
    found = named(assigned, fitted)
    family = float(fitted.family_values[list(assigned.family_kinds).index("power.hopper.16.*")])
    assert found["power.h200-sxm.16"] == pytest.approx(family)
    assert BY_NAME["power"].start < family < found["power.h100-sxm-80gb.16"]


def test_variances_start_at_those_of_the_kinds() -> None:
    assert Variances().between == {kind.name: kind.between for kind in KINDS}
