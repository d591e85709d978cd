"""`load_stack`: what our executor keeps, from its framework file."""

from __future__ import annotations

from simulator.training_run.framework.executor_states import ExecutorStates
from simulator.training_run.framework.framework import load_framework

Stack = ExecutorStates


def load_stack() -> Stack:
    """The section `executor` of profiles/data/frameworks/torch.toml."""
    found = load_framework("torch").executor
    assert found is not None
    return found
