"""`WholeRun`: a pretraining run of a shipped model as its authors published it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document
from profiles.model.loaders import model_named

WHOLE_RUNS = Path(__file__).parents[2] / "profiles" / "data" / "published" / "whole_runs.toml"
WHOLE_RUNS_SCHEMA = "shardwright/whole-runs@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """A published run.

    models        shipped names of its layers and vocabulary;  name  in the source
    devices       number of devices, 0 if not published
    tokens        of the whole run;  batch_tokens  of one step, 0 if not published
    device_hours  of the whole run, downtime included
    """

    models: tuple[str, ...]
    name: str
    device: str
    devices: int = 0
    tokens: float
    batch_tokens: int = 0
    device_hours: float
    source: str

    @property
    def hours_per_trillion(self) -> float:
        """Device-hours for 10^12 tokens."""
        return self.device_hours / self.tokens * 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRuns:
    """The file of whole runs, at most one of each model."""

    date: str
    runs: tuple[WholeRun, ...]


@functools.cache
def whole_runs() -> tuple[WholeRun, ...]:
    """All published runs, in the order of the file."""
    return read_document(WHOLE_RUNS, WholeRuns, schema=WHOLE_RUNS_SCHEMA).runs


def whole_run(model: str) -> WholeRun | None:
    """The published run of a model that is named as the user names it; None if there is none.

    >>> whole_run("deepseek-ai/DeepSeek-V3").hours_per_trillion
    180000.0
    """
    name = model_named(model)
    return next((run for run in whole_runs() if name in run.models), None)
