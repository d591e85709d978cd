"""The fitted coefficients of described runs: what each means, its value, and where it came from.

A coefficient belongs to something physical: a device, a framework of a generation, a kind of link.
There is none per model, per run or per table. One that a run needs and the file lacks takes the
value of its family (`matmul.hopper.*`: what the fit pulls members of a family towards), else that
of its kind (`matmul.*`: what it pulls families towards).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from profiles.document import read_document
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_kinds import KINDS
from simulator.training_run.step.coefficient_owner import family_of, owner_of

Array = NDArray[np.float64]

COEFFICIENTS_SCHEMA = "shardwright/run-coefficients@1"
COEFFICIENTS_FILE = Path(__file__).parents[3] / "profiles" / "data" / "calibration" / "runs.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoefficientFile:
    """profiles/data/calibration/runs.toml."""

    source: str
    method: str
    date: str
    runs: int
    residual: float
    values: Mapping[str, float] = field(default_factory=dict)


@functools.cache
def shipped_coefficients() -> CoefficientFile:
    """The coefficients that the project ships."""
    return read_document(COEFFICIENTS_FILE, CoefficientFile, schema=COEFFICIENTS_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """Which coefficient each run takes.

    names, kinds   of every coefficient; index  per kind the coefficient of every run
    family_names, family_kinds   of every family of coefficients of one kind
    families       of every coefficient its family, -1 for none
    """

    names: tuple[str, ...]
    kinds: tuple[int, ...]
    index: Mapping[str, NDArray[np.intp]]
    family_names: tuple[str, ...] = ()
    family_kinds: tuple[int, ...] = ()
    families: tuple[int, ...] = ()

    def of(self, values: Array) -> dict[str, Array]:
        """Per kind the value of every run."""
        return {kind: values[index] for kind, index in self.index.items()}

    def rows(self, index: NDArray[np.intp]) -> Assigned:
        """Those of some of the runs."""
        return replace(self, index={kind: found[index] for kind, found in self.index.items()})

    def starts(self) -> Array:
        """Where fits begin, per coefficient."""
        return np.asarray([KINDS[k].start for k in self.kinds])

    def spreads(self) -> Array:
        """How far (in log) each may lie from what it is drawn to."""
        return np.asarray([KINDS[k].spread for k in self.kinds])

    def from_file(self, file: CoefficientFile) -> Array:
        """The values of a file: a coefficient's own, else its family's, else its kind's, else where
        fits begin."""
        found = []
        for name, k, family in zip(self.names, self.kinds, self.families, strict=True):
            kind = KINDS[k]
            asked = [name, f"{kind.name}.*"]
            if family >= 0:
                asked.insert(1, self.family_names[family])
            found.append(next((file.values[n] for n in asked if n in file.values), kind.start))
        return np.asarray(found)


def assign(runs: Sequence[TrainingRun]) -> Assigned:
    """The coefficients that runs take."""
    names: dict[str, int] = {}
    kinds: list[int] = []
    families: list[int] = []
    family_names: dict[str, int] = {}
    family_kinds: list[int] = []
    index: dict[str, NDArray[np.intp]] = {}
    for k, kind in enumerate(KINDS):
        rows = []
        for run in runs:
            name = f"{kind.name}.{owner_of(kind, run)}"
            if name not in names:
                names[name] = len(names)
                kinds.append(k)
                family = family_of(kind, run)
                if family and f"{kind.name}.{family}.*" not in family_names:
                    family_names[f"{kind.name}.{family}.*"] = len(family_names)
                    family_kinds.append(k)
                families.append(family_names[f"{kind.name}.{family}.*"] if family else -1)
            rows.append(names[name])
        index[kind.name] = np.asarray(rows, dtype=np.intp)
    return Assigned(
        names=tuple(names),
        kinds=tuple(kinds),
        index=index,
        family_names=tuple(family_names),
        family_kinds=tuple(family_kinds),
        families=tuple(families),
    )
