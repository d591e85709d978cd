"""Folds of cross-validation: single rows, models, sources, frameworks, devices.

Each function returns the fold of every run by id. Rows of one fold are predicted with constants
fitted on the other folds. Folds depend on ids and on the set of rows, not on their order or on
chance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from evidence.groups import source_of
from profiles.errors import InputError
from shardwright.runs.run import PublishedRun
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_kinds import processor_of, software_of

FOLDS = 5


def plain_folds(runs: Iterable[PublishedRun], *, count: int = FOLDS) -> dict[str, str]:
    """`count` folds of single rows: each source is dealt evenly, in the order of its ids' hashes.

    Near-duplicates of a row may be in the other folds, so these folds give the lowest errors.
    """
    return _dealt(runs, lambda run: run.id, count)


def model_folds(runs: Iterable[PublishedRun], *, batches: int | None = None) -> dict[str, str]:
    """Leave one model out: a fold per architecture, across sources.

    batches   number of folds to combine the architectures into, if a fit per architecture is too
              slow
    """
    kept = tuple(runs)
    keys = {run.id: model_key(run) for run in kept}
    if batches is None:
        return keys
    names = _by_hash(set(keys.values()))
    place = {name: f"models-{number % _checked(batches)}" for number, name in enumerate(names)}
    return {run_id: place[key] for run_id, key in keys.items()}


def source_folds(runs: Iterable[PublishedRun]) -> dict[str, str]:
    """Leave one source out: a fold per source (`groups.source_of`)."""
    return {run.id: source_of(run.id) for run in runs}


def framework_folds(runs: Iterable[TrainingRun]) -> dict[str, str]:
    """Leave one framework out: a fold per framework with coefficients of its own, across sources.

    Takes completed runs, since many rows name no framework.
    """
    return {run.id: software_of(run) for run in runs}


def device_folds(runs: Iterable[TrainingRun]) -> dict[str, str]:
    """Leave one device out: a fold per processor, whatever its memory and power limit."""
    return {run.id: processor_of(run.device) for run in runs}


def model_key(run: PublishedRun) -> str:
    """The model of a run: its figures if stated, else its name."""
    if run.num_layers is None or run.hidden_size is None:
        return run.model.lower()
    experts = f"x{run.num_experts}" if run.num_experts else ""
    return f"{run.num_layers}x{run.hidden_size}{experts}"


def members(folds: Mapping[str, str], ids: Sequence[str]) -> dict[str, list[int]]:
    """Each fold by name, with the places of its ids among `ids`."""
    found: dict[str, list[int]] = {fold: [] for fold in sorted({*folds.values()})}
    for place, run_id in enumerate(ids):
        if run_id in folds:
            found[folds[run_id]].append(place)
    return {fold: places for fold, places in found.items() if places}


def _dealt(
    runs: Iterable[PublishedRun], group_of: Callable[[PublishedRun], str], count: int
) -> dict[str, str]:
    """Groups of each source in the order of their hashes, each to the fold that has fewest rows.

    Balanced by rows within each source: every fold contains rows of every source with `count`
    groups or more.
    """
    sources: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        groups = sources.setdefault(source_of(run.id), {})
        groups.setdefault(group_of(run), []).append(run.id)
    folds: dict[str, str] = {}
    for source in sorted(sources):
        # The folds of a source with few groups are chosen by hash too.
        first = _number(source) % _checked(count)
        sizes = [0] * count
        for group in _by_hash(sources[source], prefix=source):
            members = sources[source][group]
            turn = min(range(count), key=lambda fold: (sizes[fold], (fold - first) % count))
            sizes[turn] += len(members)
            folds.update(dict.fromkeys(members, f"fold-{turn}"))
    return folds


def _by_hash(names: Iterable[str], *, prefix: str = "") -> Sequence[str]:
    return sorted(names, key=lambda name: (_number(f"{prefix}|{name}"), name))


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _checked(count: int) -> int:
    if count < 2:
        raise InputError(f"{count} folds leave nothing to fit on; use 2 or more")
    return count
