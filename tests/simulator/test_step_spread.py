"""Spreads of steps: slopes and variances by hand, against draws, and through a file."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.training_run.fit.fit import share_of_family
from simulator.training_run.fit.step_spread import (
    Information,
    coefficient_spreads,
    information_bytes,
    read_information,
    run_spreads,
    shipped_information,
    step_spreads,
)
from simulator.training_run.step.coefficient_kinds import KINDS
from simulator.training_run.step.coefficients import assign, shipped_coefficients
from simulator.training_run.step.features import features
from simulator.training_run.step.step_slopes import log_slopes
from simulator.training_run.step.step_time import step_parts
from tests.simulator.described_runs import GPT_RUN, LLAMA_RUN

RUNS = (GPT_RUN, LLAMA_RUN, replace(GPT_RUN, num_devices=64, dp=64 // GPT_RUN.tp // GPT_RUN.pp))


def test_slopes_against_differences_in_the_middle() -> None:
    x, assigned = features(RUNS), assign(RUNS)
    c = assigned.of(assigned.from_file(shipped_coefficients()))
    slopes = log_slopes(x, c)
    for kind, value in c.items():
        ends = [step_parts(x, c | {kind: value * math.exp(by)}).total_s for by in (1e-4, -1e-4)]
        expected = np.log(ends[0] / ends[1]) / 2e-4
        assert slopes[kind] == pytest.approx(expected, abs=1e-4), kind


def test_a_spread_by_hand() -> None:
    """Independent coefficients, of which one is unknown and one has a family."""
    assigned = assign([LLAMA_RUN])
    kinds = {kind.name: kind for kind in KINDS}
    named = dict(zip((KINDS[k].name for k in assigned.kinds), assigned.names, strict=True))
    unknown, akin = named["passes"], named["matmul"]
    family = assigned.family_names[assigned.families[assigned.names.index(akin)]]
    names = tuple(name for name in assigned.names if name not in (unknown, akin))
    names = (*dict.fromkeys((*names, family, *(f"{kind.name}.*" for kind in KINDS))),)
    information = Information(names=names, matrix=np.eye(len(names)) / 0.1**2)
    x = features([LLAMA_RUN])
    values = assigned.from_file(shipped_coefficients())
    slopes = {kind: float(s[0]) for kind, s in log_slopes(x, assigned.of(values)).items()}
    expected = 0.1**2 * sum(slope**2 for slope in slopes.values())
    expected += (slopes["passes"] * kinds["passes"].spread) ** 2
    matmul = kinds["matmul"]
    expected += (1 - share_of_family(matmul)) * (slopes["matmul"] * matmul.spread) ** 2
    found = step_spreads([LLAMA_RUN], x, assigned, values, information)
    assert found == pytest.approx([math.sqrt(expected)])
    each = dict(zip(assigned.names, coefficient_spreads(assigned, information), strict=True))
    assert each[unknown] == pytest.approx(math.hypot(0.1, kinds["passes"].spread))


def test_a_framework_that_borrows_is_less_certain_than_its_lender() -> None:
    """Our own executor takes the coefficients of torch-fsdp: what a family's members lie around
    their mean by is added for every coefficient of the framework, none of the device."""
    lender, borrower = LLAMA_RUN, replace(LLAMA_RUN, stack="torch")
    assert lender.stack == "torch-fsdp"
    x, assigned = features([borrower]), assign([borrower])
    c = assigned.of(assigned.from_file(shipped_coefficients()))
    slopes = {kind: float(slope[0]) for kind, slope in log_slopes(x, c).items()}
    added = sum(
        (1 - share_of_family(kind)) * (slopes[kind.name] * kind.spread) ** 2
        for kind in KINDS
        if kind.owner.startswith("stack")
    )
    values, known = assigned.from_file(shipped_coefficients()), shipped_information()
    alike = step_spreads([lender], x, assigned, values, known)[0]
    assert run_spreads([borrower])[0] == pytest.approx(math.hypot(alike, math.sqrt(added)))


def test_a_spread_against_draws_of_the_coefficients() -> None:
    """To first order: coefficients drawn as the fit leaves them move steps by about as much."""
    information = shipped_information()
    assigned = assign(RUNS)
    places = np.asarray([information.places[name] for name in assigned.names])
    covariance = information.covariance[np.ix_(places, places)]
    values = np.log(assigned.from_file(shipped_coefficients()))
    rng = np.random.default_rng(1)
    # Small ones: what is not linear is no matter of this test.
    draws = rng.multivariate_normal(values, covariance / 100, size=1500)
    x = features(RUNS)
    steps = [np.log(step_parts(x, assigned.of(np.exp(draw))).total_s) for draw in draws]
    expected = run_spreads(RUNS)
    assert 10 * np.std(steps, axis=0) == pytest.approx(expected, rel=0.08)


def test_information_through_a_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(9, 4)) * (rng.random((9, 4)) < 0.5)
    information = Information(names=("a", "b", "c", "a.*"), matrix=rows.T @ rows + np.eye(4))
    content = information_bytes(information)
    assert content == information_bytes(information)
    path = tmp_path / "information.npz"
    path.write_bytes(content)
    found = read_information(path)
    assert found.names == information.names
    assert found.matrix == pytest.approx(information.matrix, rel=1e-6)
    assert found.covariance @ information.matrix == pytest.approx(np.eye(4), abs=1e-5)


def test_what_is_known_of_every_shipped_coefficient() -> None:
    """No coefficient that was fitted is less certain than its kind allows."""
    information = shipped_information()
    assert np.all(np.linalg.eigvalsh(information.matrix) > 0)
    spread = {kind.name: kind.spread for kind in KINDS}
    errors = np.sqrt(np.diag(information.covariance))
    for name, error in zip(information.names, errors.tolist(), strict=True):
        assert 0 < error < 1.5 * spread[name.partition(".")[0]], name
