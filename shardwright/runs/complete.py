"""`complete_run`: fill in the missing values of a published run so that it fits in memory.

If the default values for a row's missing ones (usual_answers.py) need more memory than the device
has, or make no layout, other values are tried. A row with part of its layout keeps as many defaults
as possible; a row without any is assumed to have run an expert's choice. Among the remaining
values, those with the shortest predicted step are taken. Stated values are never changed: a row
that cannot have run as stated keeps the defaults, and is reported in `fits`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import get_device
from shardwright.runs.complete_layout import LONG_SEQUENCE
from shardwright.runs.framework_candidates import framework_candidates
from shardwright.runs.run import PublishedRun
from shardwright.runs.usual_answers import complete_as_usual
from simulator.memory.footprint import footprint
from simulator.training_run.framework.framework import load_framework, memory_of
from simulator.training_run.run.training_run import TrainingRun, UnsupportedRunError
from simulator.training_run.step.features import Features, features
from simulator.training_run.step.step_time import price_runs

# Error of counted tensors of frameworks that nobody measured (docs/accuracy.md, peak memory by
# source): a run that exceeds the device's memory by less may well have run.
_OFF = 1.1
# Shares of a stage's layers for which full recomputation is tried, if the framework allows it.
_SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)
_GIB = 2**30
_AXES = ("tp", "pp", "cp")
_MOST_TP = 8
# Values that are changed at once in a row without any degree: tp, pp and one more.
_MOST_CHANGES = 3
_MOST_DEGREE = 64

Answers = Mapping[str, Any]

__all__ = ["UnsupportedRunError", "complete_run"]


@functools.lru_cache(maxsize=4096)  # `validate` fits and compares the same rows
def complete_run(run: PublishedRun) -> TrainingRun:
    """The run with all values needed for a prediction; impossible defaults are replaced.

    Raises UnsupportedRunError with the reason if the source gives too little (no device, number of
    devices, global batch or known model), contradicts itself, or describes a run that is not
    modeled.
    """
    try:
        usual = complete_as_usual(run)
    except UnsupportedRunError as error:
        found = _least_costly(run, None) if run.ran and _silent_axes(run) else None
        if found is None:
            raise
        return _note_answers(*found, why=error.reason)
    if not run.ran or _could_run(usual, _OFF):
        return usual
    found = _least_costly(run, usual)
    if found is None:
        return usual
    need, usable = footprint(usual).allocated_bytes, get_device(usual.device).usable_bytes
    return _note_answers(
        *found, why=f"else its tensors need {need / _GIB:.0f} GiB of {usable / _GIB:.0f}"
    )


def _least_costly(
    run: PublishedRun, usual: TrainingRun | None
) -> tuple[TrainingRun, Answers] | None:
    """The fastest possible run. If the row has no degree: among all runs with up to `_MOST_CHANGES`
    changed defaults, otherwise among the runs with the fewest. A row without degrees keeps its most
    probable framework if that has a possible layout."""
    silent = _silences(run, usual)
    if len(_silent_axes(run)) < len(_AXES):
        return _fastest(run, usual, silent, every=False)
    if "recompute" in silent:
        silent["recompute"] = [{"recompute": "selective"}, {"recompute": "full"}]
    layouts = {name: answers for name, answers in silent.items() if name != "framework"}
    found = _fastest(run, usual, layouts, every=True)
    return found or _fastest(run, usual, silent, every=True)


def _fastest(
    run: PublishedRun,
    usual: TrainingRun | None,
    silent: Mapping[str, list[Answers]],
    *,
    every: bool,
) -> tuple[TrainingRun, Answers] | None:
    """The fastest possible run among those with the fewest changed defaults or, with `every`, among
    all with up to `_MOST_CHANGES`."""
    most = min(len(silent), _MOST_CHANGES) if every else len(silent)
    possible: list[tuple[float, int, TrainingRun, Answers]] = []
    for count in range(1, most + 1):
        for answers in _choices(silent, count):
            try:
                done = complete_as_usual(replace(run, **answers))
            except ShardwrightError:
                continue
            if _could_run(done, 1.0):
                priced = price_runs([done], x=_features_of(done))
                possible.append((float(priced.parts.total_s[0]), len(possible), done, answers))
        if possible and (not every or count == most):
            _, _, done, answers = min(possible, key=lambda each: each[:2])
            if usual is not None:
                done = replace(done, stack_assumed=usual.stack_assumed)
            return done, answers
    return None


def _choices(silent: Mapping[str, list[Answers]], count: int) -> Iterator[Answers]:
    for names in itertools.combinations(silent, count):
        for parts in itertools.product(*(silent[name] for name in names)):
            yield {key: value for part in parts for key, value in part.items()}


def _silences(run: PublishedRun, usual: TrainingRun | None) -> dict[str, list[Answers]]:
    """Other possible values, per missing value of the row."""
    found: dict[str, list[Answers]] = {}
    axes = _silent_axes(run)
    if usual is None or len(axes) == len(_AXES):
        found |= {axis: _degrees(run, axis) for axis in axes}
    if usual is not None:
        others = framework_candidates(run, get_device(usual.device))[1:]
        found["framework"] = [{"framework": each.stack} for each in others]
        if run.micro_batch is None and usual.micro_batch > 1:
            smaller = [n for n in range(usual.micro_batch - 1, 0, -1) if usual.micro_batch % n == 0]
            found["micro_batch"] = [{"micro_batch": n} for n in smaller]
        if run.zero_stage is None:
            stages = range(usual.zero_stage + 1, 4)
            found["zero_stage"] = [{"zero_stage": stage} for stage in stages]
        if run.ep is None and usual.model.num_experts:
            experts = usual.model.num_experts
            found["ep"] = [{"ep": n} for n in _powers(_MOST_DEGREE) if experts % n == 0]
    if not run.recompute and (usual is None or usual.recompute == "none"):
        found["recompute"] = [{"recompute": "selective"}, *_partial(usual), {"recompute": "full"}]
    return {name: answers for name, answers in found.items() if answers}


def _partial(usual: TrainingRun | None) -> list[Answers]:
    """Full recomputation of some layers of each stage, if the framework has it (Megatron-Core's
    `--recompute-method block`)."""
    if usual is None or not load_framework(usual.stack).rules.partial_recompute:
        return []
    layers = -(-usual.model.num_layers // usual.degrees.num_stages)
    counts = sorted({max(1, round(share * layers)) for share in _SHARES})
    return [{"recompute": "full", "recompute_layers": n} for n in counts if n < layers]


def _silent_axes(run: PublishedRun) -> tuple[str, ...]:
    """The missing degrees of a row without dp; () for a row with dp."""
    return tuple(axis for axis in _AXES if run.dp is None and getattr(run, axis) is None)


def _degrees(run: PublishedRun, axis: str) -> list[Answers]:
    """Possible values of a missing degree, powers of two: tensor parallelism inside a node, stages,
    and parts of long sequences."""
    most = min(_MOST_TP, run.devices_per_node or _MOST_TP) if axis == "tp" else _MOST_DEGREE
    if axis == "cp" and (run.seq_len or 0) < LONG_SEQUENCE:
        return []
    devices = run.num_devices or 1
    return [{axis: degree} for degree in _powers(most) if devices % degree == 0]


def _powers(most: int) -> tuple[int, ...]:
    return tuple(2**n for n in range(1, most.bit_length()) if 2**n <= most)


def _could_run(run: TrainingRun, off: float) -> bool:
    """Whether the tensors fit in `off` times the device's memory (an allocator frees its cache when
    memory is short). True if the memory of the framework, or of layers with a state, is not
    described or was never compared with a measured peak."""
    try:
        fits = _may_fit(run, off)
        if fits == (off > 1.0):
            return fits
        _features_of(run)  # a layout that cannot be computed cannot have run
        return fits
    except ShardwrightError:
        return off > 1.0


@functools.lru_cache(maxsize=1)
def _features_of(run: TrainingRun) -> Features:
    return features([run])


def _may_fit(run: TrainingRun, off: float) -> bool:
    if not memory_of(run).compared or run.model.state is not None:
        return True
    memory = footprint(run)
    usable = get_device(run.device).usable_bytes
    needed = memory.allocated_bytes if off > 1.0 else memory.needed_bytes
    return not memory.refused and needed <= off * usable


def _note_answers(run: TrainingRun, answers: Answers, *, why: str) -> TrainingRun:
    taken = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in answers.items())
    return replace(run, defaults=(f"{taken} ({why})", *run.defaults))
