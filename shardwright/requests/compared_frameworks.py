"""Which frameworks `plan` and `size` compare and choose from when the request names none."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from planner.space import EXECUTOR
from simulator.training_run.fit.evidence import ENOUGH_RUNS, ENOUGH_SOURCES, supporting_runs
from simulator.training_run.framework.framework import (
    framework_of_device,
    load_framework,
    offered_frameworks,
)

# Compared frameworks in addition to our executor.
_MOST_COMPARED = 3
# Compared, on devices without fitted runs, for options that our executor does not have: the current
# GPU framework with the most fitted sources (run_evidence.toml), and FSDP2 of stock torch.
_KNOWN_ELSEWHERE = ("megatron-core", "torch-fsdp")


def is_supported(framework: str, device: str) -> bool:
    """Whether the fit has enough runs, from enough sources, of the framework on the device."""
    known = supporting_runs(framework, device)
    return known.runs >= ENOUGH_RUNS and len(known.sources) >= ENOUGH_SOURCES


@functools.cache
def compared_frameworks(device: str, *, ours: bool = True) -> tuple[str, ...]:
    """The frameworks to compare for a request that names none, our executor last.

    ours  whether our executor has all options of the request; it is left out otherwise

    They are the frameworks with enough fitted runs on the device: supported ones first, then by
    number of axes and runs. If there are none: the framework with the most runs, or the device's
    own (neuronx on Trainium). Old generations are left out.
    """
    runs = {
        name: supporting_runs(name, device).runs
        for name in offered_frameworks()
        if name != EXECUTOR and not name[-4:].isdigit()
    }
    known = sorted(
        (name for name, count in runs.items() if count > 0),
        key=lambda name: (
            not is_supported(name, device),
            -len(load_framework(name).rules.axes),
            -runs[name],
            name,
        ),
    )
    enough = [name for name in known if runs[name] >= ENOUGH_RUNS]
    most = sorted(known, key=lambda name: -runs[name])[:1]
    needed = [name for name in (framework_of_device(device),) if name]
    others = tuple(enough or most or needed)[:_MOST_COMPARED]
    return (*others, EXECUTOR) if ours else others or _KNOWN_ELSEWHERE


def preference(frameworks: Sequence[str], device: str) -> tuple[tuple[str, ...], ...]:
    """Compared frameworks in groups: the answer is the best of the first group that has one.

    The first group contains the frameworks with enough evidence. Each other framework is a separate
    group, the one with the most fitted runs first.
    """
    supported = tuple(name for name in frameworks if is_supported(name, device))
    rest = sorted(
        (name for name in frameworks if name not in supported),
        key=lambda name: -supporting_runs(name, device).runs,
    )
    return (*((supported,) if supported else ()), *((name,) for name in rest))
