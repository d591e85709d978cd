"""Host seconds per received message of Sailor's engine: the one number fitted on its open runs.

After each received message the engine reads the message's description back to the host
(`reconstruct_tensor`, PartitionedTensor.from_meta), which waits for the device; then the host
prepares the next computation while the device has nothing queued. The layer profiles, taken without
a pipeline, know nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.sailor.files import Measurements, Run
from bench.sailor.prediction import predict_run
from profiles.document import read_document

HOST_FILE = Path(__file__).parent / "host.toml"
GRID_S = np.linspace(0.0, 0.01, 21)
"""Where the prediction is evaluated; between two points it is linear to within 0.1 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCost:
    """The fitted number with how it came about.

    mean errors  of the step time, in per cent of the measured one; left out: each run predicted
                 with the number fitted on the other runs
    """

    seconds_per_message: float
    method: str
    date: str
    source: str
    num_runs: int
    mean_error_percent: float
    mean_error_left_out_percent: float
    mean_error_model_left_out_percent: float
    mean_error_unfitted_percent: float


def shipped_host_cost() -> HostCost:
    """The number in bench/sailor/host.toml."""
    return read_document(HOST_FILE, HostCost, schema="shardwright/sailor-host@1")


def fit_host_seconds(errors: npt.NDArray[np.float64]) -> float:
    """The seconds per message with the least sum of squared relative errors.

    errors  [grid, runs] of `error_grid`
    """
    fine_s = np.linspace(GRID_S[0], GRID_S[-1], 2001)
    rows = [np.interp(fine_s, GRID_S, column) for column in errors.T]
    squares = np.sum(np.square(rows), axis=0)
    return float(fine_s[int(np.argmin(squares))])


def error_grid(runs: Sequence[Run], measurements: Measurements) -> npt.NDArray[np.float64]:
    """[grid, runs] relative error of each run's step at each of GRID_S."""
    return np.array(
        [
            [
                predict_run(run, measurements, host_s_per_message=float(host_s)).step_s / run.step_s
                - 1.0
                for run in runs
            ]
            for host_s in GRID_S
        ]
    )


def left_out_errors(errors: npt.NDArray[np.float64], groups: Sequence[object]) -> tuple[float, ...]:
    """Relative error of each run with the number fitted on the runs of other groups only.

    groups  [runs]; all different: leave one out
    """
    found = []
    for index, group in enumerate(groups):
        kept = [other for other, name in enumerate(groups) if name != group]
        host_s = fit_host_seconds(errors[:, kept])
        found.append(float(np.interp(host_s, GRID_S, errors[:, index])))
    return tuple(found)
