"""Spreads of steps: slopes and variances by hand, against draws, and through a file."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evidence.coefficient_fit import Fitted, Variances
from evidence.fit_spread import covariance_bytes, knowledge_of
from simulator.training_run.fit.step_spread import (
    Knowledge,
    coefficient_spreads,
    read_covariance,
    run_spreads,
    shipped_knowledge,
    step_spreads,
)
from simulator.training_run.step.coefficient_kinds import KINDS
from simulator.training_run.step.coefficients import assign, shipped_coefficients
from simulator.training_run.step.features import features
from simulator.training_run.step.step_slopes import log_slopes
from simulator.training_run.step.step_time import PricedRuns, step_parts
from tests.simulator.described_runs import GPT_RUN, LLAMA_RUN, changed

KIND = {kind.name: kind for kind in KINDS}
RUNS = (GPT_RUN, LLAMA_RUN, changed(GPT_RUN, dp=64 // GPT_RUN.degrees.tp // GPT_RUN.degrees.pp))


def test_slopes_against_differences_in_the_middle() -> None:
    x, assigned = features(RUNS), assign(RUNS)
    c = assigned.of(assigned.from_file(shipped_coefficients()))
    slopes = log_slopes(x, c)
    for kind, value in c.items():
        ends = [step_parts(x, c | {kind: value * math.exp(by)}).total_s for by in (1e-4, -1e-4)]
        expected = np.log(ends[0] / ends[1]) / 2e-4
        assert slopes[kind] == pytest.approx(expected, abs=1e-4), kind


def test_a_spread_by_hand() -> None:
    """Independent coefficients, of which one is unknown and one has a known family; two kinds
    differ between sources."""
    assigned = assign([LLAMA_RUN])
    kinds = {kind.name: kind for kind in KINDS}
    named = dict(zip((KINDS[k].name for k in assigned.kinds), assigned.names, strict=True))
    unknown, akin = named["passes"], named["power"]
    family = assigned.families[assigned.names.index(akin)]
    names = (*(name for name in assigned.names if name not in (unknown, akin)), family)
    between = {kind.name: 0.0 for kind in KINDS} | {"level": 0.1, "attention": 0.3}
    known = Knowledge(
        names=names, covariance=0.02**2 * np.eye(len(names)), between=between, noise=0.04
    )
    x = features([LLAMA_RUN])
    values = assigned.from_file(shipped_coefficients())
    slopes = {kind: float(s[0]) for kind, s in log_slopes(x, assigned.of(values)).items()}
    expected = 0.04**2 + 0.02**2 * sum(s**2 for k, s in slopes.items() if k != "passes")
    expected += (slopes["passes"] * kinds["passes"].spread) ** 2
    expected += 0.5 * (slopes["power"] * kinds["power"].spread) ** 2
    expected += (slopes["level"] * 0.1) ** 2 + (slopes["attention"] * 0.3) ** 2
    found = step_spreads(PricedRuns([LLAMA_RUN], x, assigned, values), known)
    assert found == pytest.approx([math.sqrt(expected)])
    inferred = replace(LLAMA_RUN, stack_assumed="inferred")
    wider = step_spreads(PricedRuns([inferred], x, assigned, values), known)
    assert wider == pytest.approx([math.sqrt(expected + 0.1**2)])
    each = dict(zip(assigned.names, coefficient_spreads(assigned, known), strict=True))
    assert each[unknown] == pytest.approx(kinds["passes"].spread)
    assert each[named["level"]] == pytest.approx(math.hypot(0.02, 0.1))


def test_only_logged_coefficients_have_no_variance_between_sources() -> None:
    """Logs of one framework say nothing of how another source runs another framework, be it fitted
    or not."""
    x, assigned = features([LLAMA_RUN]), assign([LLAMA_RUN])
    values = assigned.from_file(shipped_coefficients())
    slope = float(log_slopes(x, assigned.of(values))["level"][0])
    level = next(name for name in assigned.names if name.startswith("level."))
    shipped = shipped_knowledge()
    new = float(step_spreads(PricedRuns([LLAMA_RUN], x, assigned, values), shipped)[0])
    logged = replace(shipped, logged=frozenset([level]))
    own = float(step_spreads(PricedRuns([LLAMA_RUN], x, assigned, values), logged)[0])
    assert new**2 - own**2 == pytest.approx((slope * shipped.between["level"]) ** 2)
    elsewhere = replace(shipped, logged=frozenset(["level.another framework"]))
    assert step_spreads(PricedRuns([LLAMA_RUN], x, assigned, values), elsewhere)[0] == new


def test_a_device_known_by_its_data_sheet_alone_is_less_certain() -> None:
    """Intel's Max 1550: no kernel of it was measured and no run of its architecture was fitted. The
    same run on a data sheet's variance of 0.3^2 more than the spread of its coefficients."""
    run = replace(LLAMA_RUN, device="max-1550")
    known = shipped_knowledge()
    x, assigned = features([run], all_fit=True), assign([run])
    values = assigned.from_file(shipped_coefficients())
    fitted = replace(
        known,
        names=(*known.names, "power.max-1550.16"),
        covariance=np.pad(known.covariance, ((0, 1), (0, 1))),
    )
    fitted.covariance[-1, -1] = KIND["power"].spread ** 2
    as_fitted = float(step_spreads(PricedRuns([run], x, assigned, values), fitted)[0])
    assert run_spreads([run])[0] == pytest.approx(math.hypot(as_fitted, 0.3))


def test_a_spread_against_draws_of_new_sources() -> None:
    """To first order: coefficients drawn for new sources move steps by about as much."""
    known = shipped_knowledge()
    assigned = assign(RUNS)
    places = np.asarray([known.places[name] for name in assigned.names])
    covariance = known.covariance[np.ix_(places, places)]
    values = np.log(assigned.from_file(shipped_coefficients()))
    rng = np.random.default_rng(1)
    between = np.asarray([known.between[KINDS[k].name] for k in assigned.kinds])
    x = features(RUNS)
    steps = []
    for _ in range(1500):
        # Small draws: the test is about the variance, not about curvature.
        common = rng.multivariate_normal(values, covariance / 100)
        drawn = np.exp(common + 0.1 * between * rng.standard_normal(values.size))
        noise = 0.1 * known.noise * rng.standard_normal(len(RUNS))
        steps.append(np.log(step_parts(x, assigned.of(drawn)).total_s) + noise)
    assert 10 * np.std(steps, axis=0) == pytest.approx(run_spreads(RUNS), rel=0.08)


def test_a_covariance_through_a_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(9, 4))
    covariance = rows.T @ rows + np.eye(4)
    names = ("a", "b", "c", "a.*")
    content = covariance_bytes(names, covariance)
    assert content == covariance_bytes(names, covariance)
    path = tmp_path / "covariance.npz"
    path.write_bytes(content)
    found, matrix = read_covariance(path)
    assert found == names
    assert matrix == pytest.approx(covariance, rel=1e-6)


def test_a_fit_knows_nothing_of_coefficients_without_rows() -> None:
    """Two runs on different devices and frameworks, of which one was fitted on: the other's power
    and level take their families', and its device is one without rows."""
    assigned = assign([LLAMA_RUN, replace(GPT_RUN, device="v100-sxm2-16gb")])
    count = len(assigned.names) + len(assigned.family_kinds)
    fitted = Fitted(
        values=assigned.starts(),
        family_values=np.ones(len(assigned.family_kinds)),
        variances=Variances(),
        covariance=np.diag(np.arange(1.0, count + 1.0)),
        residual=0.1,
        deviations={},
        clusters={},
        joint=np.eye(count),
    )
    known = knowledge_of(assigned, fitted, np.asarray([0]))
    level, power = (assigned.names[assigned.index[kind][0]] for kind in ("level", "power"))
    assert {level, power, "level.frameworks.*", "matmul.*"} <= set(known.names)
    other = (assigned.names[assigned.index[kind][1]] for kind in ("level", "power"))
    assert not set(other) & set(known.names)
    assert known.covariance[known.places[power]].sum() == assigned.names.index(power) + 1


def test_knowledge_of_the_shipped_coefficients() -> None:
    """No fitted coefficient is less certain than its prior, and few enough are fitted."""
    known = shipped_knowledge()
    assert len(known.names) <= 120
    assert np.all(np.linalg.eigvalsh(known.covariance) > 0)
    spread = {kind.name: kind.spread for kind in KINDS}
    errors = np.sqrt(np.diag(known.covariance))
    for name, error in zip(known.names, errors.tolist(), strict=True):
        assert 0 < error < 1.001 * spread[name.partition(".")[0]], name
