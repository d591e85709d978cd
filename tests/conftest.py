"""What holds for the processes that run tests."""

from __future__ import annotations

import gc

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    """What imports and collection made stays to the end: the garbage collector, which took a fifth
    of the time, no longer looks through it."""
    gc.collect()
    gc.freeze()
