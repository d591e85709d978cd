"""Memory rates: interpolation, the cut at the cache, relatives, messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import device_names
from tools.memory_rates import (
    MEMORY_FILE,
    MemoryRate,
    memory_fraction,
    memory_rates,
    memory_time_s,
)


def test_the_file_is_small_and_counts_its_rows() -> None:
    assert MEMORY_FILE.stat().st_size < 10_000
    for rate in memory_rates().devices.values():
        assert min(rate.rows) >= 50
        assert 0 < rate.spread < 0.2
        # A copy of an H100 reaches 0.9 of the datasheet's; nothing streams faster.
        assert 0.7 < rate.fraction[-1] < 0.97


def test_between_two_sizes() -> None:
    rate = memory_rates().devices["h100-sxm-80gb"]
    place = rate.log2_bytes.index(28)
    middle = (rate.fraction[place] + rate.fraction[place + 1]) / 2
    assert memory_fraction("h100", 2**28.5) == pytest.approx(middle)
    assert memory_time_s("h100", 2.0**28) == pytest.approx(2**28 / (rate.fraction[place] * 3350e9))


def test_the_cache_gives_no_credit() -> None:
    rate = memory_rates().devices["l40s"]
    assert max(rate.fraction) > 1.0
    assert memory_fraction("l40s", 2.0 ** np.arange(10, 40)).max() == rate.fraction[-1]


@given(
    size=st.floats(1.0, 1e12),
    factor=st.floats(1.0, 8.0),
    name=st.sampled_from(sorted(device_names())),
)
def test_more_bytes_are_never_faster(size: float, factor: float, name: str) -> None:
    assert memory_time_s(name, size * factor) >= memory_time_s(name, size) * (1 - 1e-9)


def test_messages() -> None:
    with pytest.raises(UnknownNameError, match="unknown device"):
        memory_time_s("nosuch", 1.0)
    with pytest.raises(InputError, match="one entry per size"):
        MemoryRate(log2_bytes=(1, 2), fraction=(0.5,), p90=(0.5, 0.5), rows=(1, 1), spread=0.1)
