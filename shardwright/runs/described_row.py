"""`DescribedRow`: a published row while it is completed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from profiles.hardware.catalogue.device import Device
from shardwright.runs.run import PublishedRun
from simulator.training_run.framework.framework import Framework

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DescribedRow:
    """The row, its device and framework; each assumption is added to `said`, in words."""

    run: PublishedRun
    device: Device
    stack: Framework
    said: list[str]

    def assumed(self, value: T, words: str) -> T:
        """The value, which the words say."""
        self.said.append(words)
        return value
