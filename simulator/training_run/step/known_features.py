"""`KnownFeatures`: a cache, per process, of the features of representatives.

Neighboring requests share it: features depend neither on the number of devices nor on the batch
(tests/planner/layout/test_earlier_questions.py).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.training_run.run.training_run import TrainingRun
from simulator.values.degrees import Degrees

Array = NDArray[np.float64]

# Limits of the cache: number of runs (model, device, framework, sequence, ...), and numbers of 8
# bytes per run: 4,900 rows of layers (53 numbers and a key of some 200 bytes), 9,300 of meshes
# (28), 131,072 of memory (2). bench/sweep.py needs up to 831 rows of layers per run.
_RUNS, _MOST_NUMBERS = 24, 1 << 18


class KnownFeatures:
    """Cache of features, by the values of the axes that they depend on.

    of  function from runs to their features by name
    """

    def __init__(self, of: Callable[[Sequence[TrainingRun]], Mapping[str, Array]]) -> None:
        self._of = of
        self._names: tuple[str, ...] = ()
        self._known: dict[tuple[int, ...], Array] = {}
        # A server answers several requests at once.
        self._lock = threading.Lock()

    def rows(self, keys: NDArray[np.int64], run: Callable[[int], TrainingRun]) -> dict[str, Array]:
        """Name -> [keys] features; `run` returns the representative of a row of `keys`, whose
        features are computed if its key is new."""
        asked = list(map(tuple, keys.tolist()))
        with self._lock:
            new = [number for number, key in enumerate(asked) if key not in self._known]
            if new:
                found = self._of([run(number) for number in new])
                self._names = tuple(found)
                made = np.column_stack(list(found.values()))
                self._known |= {asked[number]: row for number, row in zip(new, made, strict=True)}
            columns = np.stack([self._known[key] for key in asked], axis=1)
            if len(self._known) * len(self._names) > _MOST_NUMBERS:
                self._known.clear()
            return dict(zip(self._names, columns, strict=True))


def known_features(
    base: TrainingRun,
    options: Hashable,
    of: Callable[[Sequence[TrainingRun]], Mapping[str, Array]],
) -> KnownFeatures:
    """The cache for the layouts of a run and a function `of` (`layer_features`, `mesh_features`, or
    floors of memory); option numbers in keys index `options`."""
    return features_of(without_size(base), options, of)


def without_size(base: TrainingRun) -> TrainingRun:
    """The run without its name, degrees and batch: equal for neighboring requests."""
    one = Degrees(axis_order=base.degrees.axis_order)
    return replace(base, id="", degrees=one, global_batch=1, defaults=())


@functools.lru_cache(maxsize=3 * _RUNS)
def features_of(
    base: TrainingRun,
    options: Hashable,
    of: Callable[[Sequence[TrainingRun]], Mapping[str, Array]],
) -> KnownFeatures:
    """The features computed so far in this process for one run."""
    return KnownFeatures(of)
