"""Fits that leave sources out, as studies of strangers' runs use them."""

from __future__ import annotations

import numpy as np

from bench.one_log import _file
from evidence.cross_fit import fit, fit_table
from tests.evidence.test_cross_fit import MEASURED, PUBLISHED


def test_a_fit_is_a_coefficient_file_that_gives_its_values_back() -> None:
    table = fit_table(PUBLISHED, MEASURED)
    fitted = fit(table)
    file = _file(table, fitted)
    assert np.array_equal(table.assigned.from_file(file), fitted.values)
    assert set(table.assigned.family_kinds) <= set(file.values)
