"""`stack_of`: the most probable framework of a row, and how it was chosen."""

from __future__ import annotations

from profiles.hardware.catalogue.device import Device
from profiles.published.run import PublishedRun
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.framework.run_conditions import LOW_PRECISIONS
from simulator.training_run.reading.complete_words import PRECISIONS
from simulator.training_run.reading.framework_candidates import (
    UNKNOWN,
    framework_candidates,
    how_assumed,
)


def stack_of(run: PublishedRun, device: Device, said: list[str]) -> tuple[str, str]:
    """The framework's name and TrainingRun.stack_assumed; what was assumed is added to `said`."""
    candidates = framework_candidates(run, device)
    stack, assumed = candidates[0].stack, how_assumed(run, candidates)
    if assumed:
        named = f" for {run.framework!r}" if run.framework else ""
        others = ", ".join(f"{each.stack} {each.probability:.0%}" for each in candidates[1:])
        said.append(
            f"stack {stack}{named}{_why(stack, assumed)}" + (f" (or {others})" if others else "")
        )
    compiled = load_framework(stack).compiled_name
    if compiled and PRECISIONS.get(run.precision.strip().lower()) in LOW_PRECISIONS:
        said.append(f"torch.compile, which fuses the casts of {run.precision}")
        stack = compiled
    return stack, assumed


def _why(stack: str, assumed: str) -> str:
    if assumed == "fork":
        return ", a fork or wrapper of it"
    if stack == UNKNOWN:
        return ": FlashAttention, the mean of what frameworks of 2023 and later do"
    return ", by the row's date, device or model" if assumed == "dated" else ""
