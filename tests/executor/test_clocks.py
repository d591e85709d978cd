"""Recording a device's actions: by events in its stream, read once it has caught up."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executor.recorder import Clock, Recorder


class Device:
    """One that works behind its host: `passed` milliseconds of its stream are queued so far."""

    def __init__(self) -> None:
        self.queued_ms = 0.0
        self.waited = False

    def event(self) -> Event:
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self) -> None:
        self.at_ms = self.device.queued_ms

    def elapsed_time(self, other: Event) -> float:
        assert self.device.waited, "read before the device had caught up"
        return other.at_ms - self.at_ms


def test_actions_are_timed_by_the_device_and_read_once_it_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device()

    def synchronize(_: Any) -> None:
        device.waited = True

    monkeypatch.setattr(torch.accelerator, "synchronize", synchronize)
    recorder = Recorder(Clock(torch.device("cuda", 0), device.event))
    with recorder.step() as record:
        with recorder.action("0F0"):
            device.queued_ms += 20.0
        device.queued_ms += 5.0
        with recorder.action("0B0"):
            device.queued_ms += 40.0
        assert not device.waited
    assert record.wall_s == pytest.approx(0.065)
    told = [(name, start, end) for name, start, end, _ in record.actions]
    assert told == [
        ("0F0", pytest.approx(0.0), pytest.approx(0.02)),
        ("0B0", pytest.approx(0.025), pytest.approx(0.065)),
    ]
    assert all(cpu_s < 0.01 for *_, cpu_s in record.actions)
