"""The study of what printed memory is worth, on figures by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bench.one_log_memory import _one


def test_a_cluster_that_is_off_by_one_factor_is_helped() -> None:
    # Measured is 1.2 times the predicted everywhere: before 1 / 1.2 - 1 = -16.7 %; three logs and
    # one that agrees give 1.2 ^ (3 / 4) = 1.1465, which is 4.5 % off.
    before, after, asked = _one(np.full(6, 1.2), [0, 1, 2])
    assert before == pytest.approx(1 - 1 / 1.2)
    assert after == asked == pytest.approx(1 - 1.2**-0.25)


def test_logs_that_disagree_ask_for_no_factor() -> None:
    before, after, asked = _one(np.array([1.5, 0.8, 0.8, 1.0, 1.0]), [0, 1, 2])
    assert before == asked == 0
    assert 0 <= after < 0.02
    assert _one(np.array([1.5, 1.0, 1.0]), [0])[2] == pytest.approx(1.5**0.5 - 1)
