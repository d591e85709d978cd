"""What holds for the processes that run tests."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import settings

# Before torch and numpy are imported: tests run side by side, and threads that wait for a core spin
# (four of tests/executor/test_model_zoo.py: 18 to 25 CPU seconds with two threads, 14 with one).
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Units are compiled one after the other: torch would start processes for it that each import torch
# (tests/executor/test_compiled_units.py: 16 CPU seconds with them, 11 without).
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


# Where a test does not say how many examples it wants: half of hypothesis's usual number, others
# in every run. No deadline: a busy machine must not fail a test.
settings.register_profile("half", max_examples=50, deadline=None)
settings.load_profile("half")

# Imports and collection leave little garbage (`pytest --collect-only`: 9.4 CPU seconds with the
# collector, 8.4 without).
gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """What imports and collection made stays to the end: the garbage collector need not look
    through it again and again, nor after every 700 new objects (392 CPU seconds of searches over
    layouts: 20 in the collector)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
