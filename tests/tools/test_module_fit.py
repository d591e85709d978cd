"""The fit of modules' steps finds the shares that made the times, and leaves out what it should."""

from __future__ import annotations

import numpy as np

from profiles.model.kernels import DeviceKernel, Kernel
from shardwright.runs.module_row import module_setting
from shardwright.runs.module_table import ModuleRow
from tests.simulator.hand_made import one_pass
from tools.module_fit import begin_of, fit, measured_steps, without


def moving(kernel: Kernel, moved: float) -> DeviceKernel:
    return DeviceKernel(kernel=kernel, dtype="float16", read_bytes=int(moved))


def test_the_fit_finds_what_made_the_times() -> None:
    # Steps of copies and of softmax in several proportions, on two devices.
    sizes = [(1e10, 1e9), (1e9, 1e10), (1e10, 1e10), (3e9, 2e10), (2e10, 3e9), (1e11, 1e9)]
    steps, settings = [], []
    for device in ("rtx-3090", "t4"):
        row = ModuleRow(
            row=1, id="a", factory="a:b", device=device, optimizer="none", precision="fp16"
        )
        for copied, softmaxed in sizes:
            steps.append(one_pass(moving(Kernel.COPY, copied), moving(Kernel.SOFTMAX, softmaxed)))
            settings.append(module_setting(row))
    truth = {name: value for name, (value, _) in begin_of().items()}
    truth |= {"bytes.copy": 0.9, "bytes.softmax": 0.4, "architecture.turing.memory": 0.8}
    blank = measured_steps(steps, settings, [1.0] * len(steps))
    times = np.exp(blank.log_errors(blank.sums(truth), truth))
    data = measured_steps(steps, settings, times.tolist())
    everything = np.ones(len(steps), bool)
    found = fit(data, everything, iterations=20)
    # Weak priors draw every share a little towards its start.
    assert np.abs(data.log_errors(data.sums(found), found)).max() < 0.05
    assert found["bytes.softmax"] < 0.5 < 0.8 < found["bytes.copy"]
    # A device alone with its architecture: without it the fit cannot know its memory's share.
    t4 = np.asarray([s.device.name == "t4" for s in settings])
    left = without(data, found, [t4], used=everything)
    assert np.abs(left[t4]).min() > 0.1
    assert np.allclose(left[~t4], data.log_errors(data.sums(found), found)[~t4])
