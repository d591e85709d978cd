"""Blocks in another order, and what crosses the cuts."""

import numpy as np
import pytest

from profiles.errors import MismatchError
from profiles.model.tracing.block_order import crossing_bytes, in_order
from tests.oracles.random_branches import BranchModel
from tests.simulator.hand_made import graph


def test_what_crosses_is_what_is_made_before_and_used_behind():
    model = BranchModel(np.random.default_rng(0), "towers", 6, unlike=True)
    made = model.graph
    sizes = {b.producer: b.spec.memory_bytes for b in made.branches}
    ends = [b.producer for b in made.branches if b.consumers == (5,)]
    # Behind the first tower, in the traced order, its result goes past every block of the second.
    assert crossing_bytes(made, ends[0] + 2) == sizes[ends[0]] + sizes[ends[0] + 1]
    assert crossing_bytes(made, 0) == crossing_bytes(made, 6) == 0
    entries = [ref.entry for ref in made.chain]
    second = entries[ends[0] + 1 : 5]
    turned = in_order(made, [*second, *entries[: ends[0] + 1], entries[5]])
    assert crossing_bytes(turned, len(second)) == sizes[4]
    assert in_order(turned, entries) == made
    assert in_order(made, entries) is made


def test_orders_that_cannot_be_are_refused():
    made = BranchModel(np.random.default_rng(0), "towers", 5, unlike=True).graph
    entries = [ref.entry for ref in made.chain]
    with pytest.raises(MismatchError, match="whose tensor it takes"):
        in_order(made, [*reversed(entries)])
    with pytest.raises(MismatchError, match="'b4' is a block of only one of them"):
        in_order(made, [*entries[:-1], "other"])
    plain = graph(4)
    assert crossing_bytes(plain, 2) == 1024 * 1024 * 2
    with pytest.raises(MismatchError, match="each takes the output of the one before it"):
        in_order(plain, ["layers.1", "", "layers.2", "head"])
