"""The fitted coefficients of runs: values, sources, and their assignment to runs.

A coefficient belongs to something physical: a device, a framework, an attention kernel, or all
runs. There is none per model, run or table. A coefficient that is not in the file has the value of
its family (`power.hopper.16.*`), otherwise the initial value of its kind.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from profiles.document import read_document
from profiles.hardware.catalogue.device import Device
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_kinds import (
    BY_NAME,
    KINDS,
    architecture_of,
    family_of,
    owner_of,
    processor,
)

Array = NDArray[np.float64]

COEFFICIENTS_SCHEMA = "shardwright/run-coefficients@2"
COEFFICIENTS_FILE = Path(__file__).parents[3] / "profiles" / "data" / "calibration" / "runs.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoefficientFile:
    """profiles/data/calibration/runs.toml.

    residual   median absolute relative error on the fitted rows, without their source's effect
    between    by kind: standard deviation of a coefficient's logarithm between sources
    cluster    standard deviation of the level's logarithm between the devices of one source
    noise      standard deviation of the logarithm of a row within its source
    quantile   half width of a 90 % interval in standard deviations
    sources_of   coefficient -> number of sources that determine it
    """

    source: str
    method: str
    date: str
    runs: int
    residual: float
    cluster: float = 0.0
    noise: float = 0.0
    quantile: float = 1.645
    values: Mapping[str, float] = field(default_factory=dict)
    between: Mapping[str, float] = field(default_factory=dict)
    sources_of: Mapping[str, int] = field(default_factory=dict)


@functools.cache
def shipped_coefficients() -> CoefficientFile:
    """The shipped coefficients."""
    return read_document(COEFFICIENTS_FILE, CoefficientFile, schema=COEFFICIENTS_SCHEMA)


def coefficient(kind: str, *owners: str) -> float:
    """The shipped value of the first owner that has one, or the initial value of the kind."""
    values = shipped_coefficients().values
    names = (f"{kind}.{owner}" for owner in owners)
    return next((values[name] for name in names if name in values), BY_NAME[kind].start)


def matmul_coefficients(device: Device, bits: int) -> tuple[float, float]:
    """The shipped `matmul` and `power` of a device's matmuls in a data type of `bits` bits."""
    family = f"{architecture_of(device.name)}.{bits}.*"
    return coefficient("matmul", "*"), coefficient("power", f"{processor(device)}.{bits}", family)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """The coefficient of each kind for each run.

    names, kinds   of every coefficient
    families       name of each coefficient's family, "" for none
    family_kinds   name of a family -> kind
    index          kind -> [runs] index of the coefficient
    """

    names: tuple[str, ...]
    kinds: tuple[int, ...]
    families: tuple[str, ...]
    family_kinds: Mapping[str, int]
    index: Mapping[str, NDArray[np.intp]]

    def of(self, values: Array) -> dict[str, Array]:
        """Kind -> [runs] values."""
        return {kind: values[index] for kind, index in self.index.items()}

    def rows(self, index: NDArray[np.intp]) -> Assigned:
        """The assignment of some of the runs."""
        return replace(self, index={kind: found[index] for kind, found in self.index.items()})

    def starts(self) -> Array:
        """[coefficients] initial values of fits."""
        return np.asarray([KINDS[k].start for k in self.kinds])

    def from_file(self, file: CoefficientFile) -> Array:
        """[coefficients] values from a file: the coefficient's own, otherwise its family's,
        otherwise the initial value of its kind."""
        found = [
            file.values.get(name, file.values.get(family, KINDS[kind].start))
            for name, kind, family in zip(self.names, self.kinds, self.families, strict=True)
        ]
        return np.asarray(found)


def assign(runs: Sequence[TrainingRun]) -> Assigned:
    """The assignment of coefficients to runs."""
    # name -> its index, kind and family
    places: dict[str, tuple[int, int, str]] = {}
    index: dict[str, NDArray[np.intp]] = {}
    for k, kind in enumerate(KINDS):
        rows = []
        for run in runs:
            name = f"{kind.name}.{owner_of(kind, run)}"
            if name not in places:
                family = family_of(kind, run)
                places[name] = (len(places), k, f"{kind.name}.{family}.*" if family else "")
            rows.append(places[name][0])
        index[kind.name] = np.asarray(rows, dtype=np.intp)
    return Assigned(
        names=tuple(places),
        kinds=tuple(kind for _, kind, _ in places.values()),
        families=tuple(family for _, _, family in places.values()),
        family_kinds={family: kind for _, kind, family in places.values() if family},
        index=index,
    )
