"""Cache of answers on disk, by the content of the question.

The key is a hash of all inputs of an answer: the model (its configuration, or the traces of a
factory, whose code may change), the cluster's content, workload, space, solver, seed, and the
version of code and data. Prices are not in the key: they are added to an answer when it is read
(planner/batch/sweep.py). Incomplete answers are not cached.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from planner.axes import Axes
from planner.batch.answer_file import decision_of, kept_answer, schema_of
from planner.batch.sweep import Answer, Posed, finished
from profiles.document import content_hash, encode, write_document, write_text
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.tracing.traced import TracedModel
from simulator.values.workload import Workload

KEPT_ANSWERS = 512  # a plan file is 0.1 to 3 MB
PACKAGES = (
    "profiles",
    "simulator",
    "planner",
    "shardwright/runs",
    "shardwright/requests",
    "shardwright/sweeps",
)
SUFFIXES = (".py", ".toml", ".json", ".csv", ".npz")  # of their code and data
_LIBRARIES = ("numpy", "scipy", "ortools", "torch", "transformers")
_SIZES = (2, 3)  # micro-batch sizes with traces (profiles/model/tracing/traced.py)


def answer_key(
    model: str,
    cluster: Cluster,
    workload: Workload,
    space: Axes,
    *,
    solver: str,
    seed: int,
    version: str,
) -> str:
    """The key of an answer: 16 hexadecimal digits.

    model    hash of the model's content: of its specification, or `trace_content`
    version  of code and data: `code_and_data_version`
    """
    return content_hash(
        {
            "model": model,
            "cluster": cluster,
            "workload": workload,
            "space": space,
            "solver": solver,
            "seed": seed,
            "version": version,
        }
    )


def trace_content(traced: TracedModel) -> str:
    """Hash of a model's traces, 16 hexadecimal digits."""
    return content_hash(
        {
            "graphs": [traced.at(size, tp) for tp in traced.tp_degrees for size in _SIZES],
            "tensor_parallel": traced.tensor_parallel,
            "tied": traced.tied_parameters,
        }
    )


@functools.cache
def code_and_data_version() -> str:
    """Hash of the code and data of PACKAGES and of the versions of their libraries."""
    from importlib.metadata import PackageNotFoundError, version

    root = Path(__file__).parents[2]
    found = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                found.update(f"{path.relative_to(root).as_posix()}\0".encode())
                found.update(hashlib.sha256(path.read_bytes()).digest())
    for library in _LIBRARIES:
        try:
            release = version(library).partition("+")[0]  # +cpu and +cu126 give equal traces
        except PackageNotFoundError:
            release = "-"
        found.update(f"{library} {release}\0".encode())
    return found.hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCache:
    """A folder of answers, one file per key, without prices."""

    folder: Path

    def find(self, key: str) -> Answer | None:
        """The answer of this key, or None; an unreadable file is a warning and None."""
        return kept_answer(self._path(key))

    def keep(self, key: str, answer: Answer) -> None:
        """Write the answer; the oldest answers above KEPT_ANSWERS are deleted."""
        # In one line, as json's own encoder in C writes it; a plan's timeline is long.
        data = {"schema": schema_of(answer), **encode(answer)}
        write_text(self._path(key), json.dumps(data, allow_nan=False))
        kept = sorted(self.folder.glob("*.json"), key=_written)
        for path in kept[: max(0, len(kept) - KEPT_ANSWERS)]:
            path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def _written(path: Path) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:  # another process has deleted it
        return 0.0


def write_answer(path: Path, posed: Posed, solved: Answer, *, version: str) -> None:
    """Write the plan file of a question: with its price and its assumptions.

    version  of the program that writes it
    """
    answer = finished(solved, posed)
    provenance = {
        "version": version,
        "question": encode(posed.question),
        "decided": decision_of(answer),
    }
    write_document(path, answer, schema=schema_of(answer), provenance=provenance)
