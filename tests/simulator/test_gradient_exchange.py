"""Compressed gradients: bytes by hand."""

from __future__ import annotations

import pytest

from profiles.errors import InputError
from simulator.training_run.messages.gradient_exchange import compressed
from tests.simulator.described_runs import GPT_RUN, changed


def test_top_k_gathers_values_and_places_of_every_rank() -> None:
    """1 % of 1e6 gradients of each of 8 ranks, 4 bytes for a value and 4 for its place."""
    run = changed(GPT_RUN, compression="topk-0.01")
    found = compressed(run, count=1e6, sides=2e3, ranks=8)
    assert found.operation == "all_gather"
    assert found.size_bytes == pytest.approx(8 * 1e4 * 8)


def test_powersgd_sends_two_thin_factors_and_never_more_than_the_matrix() -> None:
    """Rank 4 of a 1,000 x 1,000 matrix: 4 columns and 4 rows in fp32."""
    found = compressed(changed(GPT_RUN, compression="powersgd-4"), count=1e6, sides=2e3, ranks=8)
    assert found.operation == "all_reduce"
    assert found.size_bytes == pytest.approx(4 * 2e3 * 4)
    wide = compressed(changed(GPT_RUN, compression="powersgd-4000"), count=1e6, sides=2e3, ranks=8)
    assert wide.size_bytes == pytest.approx(1e6 * 4)


def test_without_compression_there_is_no_such_message() -> None:
    with pytest.raises(InputError, match="compress"):
        compressed(GPT_RUN, count=1e6, sides=2e3, ranks=8)
