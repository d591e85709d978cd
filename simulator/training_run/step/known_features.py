"""`KnownFeatures`: features of representatives, each computed once in a process.

Neighbouring questions ask for the same ones: features depend neither on how many devices a cluster
has nor on the batch (tests/planner/layout/test_earlier_questions.py).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.features import layer_features, mesh_features
from simulator.values.degrees import Degrees

Array = NDArray[np.float64]

# Of so many runs (model, device, framework, sequence, ...) features are kept, and of each run so
# many rows of layers (53 numbers of 8 bytes, a key of some 200 bytes) and of meshes (28 numbers and
# a key): 24 x 8,192 x 1,050 bytes, at most 210 MB. bench/sweep.py asks for up to 831 rows of a run.
_RUNS, _MOST_ROWS = 24, 1 << 13


class KnownFeatures:
    """Features by the values of the axes that they depend on.

    of  from runs to their features by name
    """

    def __init__(self, of: Callable[[Sequence[TrainingRun]], Mapping[str, Array]]) -> None:
        self._of = of
        self._places: dict[tuple[int, ...], int] = {}
        self._columns: dict[str, Array] = {}
        # A server answers several questions at once.
        self._lock = threading.Lock()

    def rows(self, keys: NDArray[np.int64], run: Callable[[int], TrainingRun]) -> dict[str, Array]:
        """By name [keys] the features; `run` gives the representative of a row of `keys`, which is
        computed where its key is new."""
        with self._lock:
            return self._rows(list(map(tuple, keys.tolist())), run)

    def _rows(
        self, asked: list[tuple[int, ...]], run: Callable[[int], TrainingRun]
    ) -> dict[str, Array]:
        new = [number for number, key in enumerate(asked) if key not in self._places]
        if new and len(self._places) + len(new) > _MOST_ROWS:
            self._places.clear()
            self._columns.clear()
            new = list(range(len(asked)))
        if new:
            found = self._of([run(number) for number in new])
            self._columns = {
                name: np.concatenate([self._columns[name], values]) if self._columns else values
                for name, values in found.items()
            }
            # After the columns: what interrupts this leaves rows that no key names.
            begin = len(next(iter(self._columns.values()))) - len(new)
            self._places |= {asked[number]: begin + place for place, number in enumerate(new)}
        at = np.asarray([self._places[key] for key in asked])
        columns = self._columns
        if len(self._places) > _MOST_ROWS:  # one question alone asks for more
            self._places, self._columns = {}, {}
        return {name: values[at] for name, values in columns.items()}


def known_layers(base: TrainingRun, options: Hashable) -> KnownFeatures:
    """Those of layers (`layer_features`) of layouts of a run; `options` are what the numbers of
    options in their keys mean."""
    return features_of(without_size(base), options, layer_features)


def known_meshes(base: TrainingRun, options: Hashable) -> KnownFeatures:
    """Those of meshes (`mesh_features`)."""
    return features_of(without_size(base), options, mesh_features)


def without_size(base: TrainingRun) -> TrainingRun:
    """The run without its name, degrees and batch: equal for neighbouring questions."""
    one = Degrees(axis_order=base.degrees.axis_order)
    return replace(base, id="", degrees=one, global_batch=1, defaults=())


@functools.lru_cache(maxsize=2 * _RUNS)
def features_of(
    base: TrainingRun,
    options: Hashable,
    of: Callable[[Sequence[TrainingRun]], Mapping[str, Array]],
) -> KnownFeatures:
    """The features computed so far in this process for one run."""
    return KnownFeatures(of)
