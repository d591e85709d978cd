"""Number of published runs behind a run's coefficients: of its framework, on its device."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from profiles.document import read_document
from profiles.errors import InputError
from simulator.schedules.schedule import schedule_kind
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_kinds import processor_of, software_of
from simulator.training_run.step.coefficients import COEFFICIENTS_FILE

EVIDENCE_SCHEMA = "shardwright/run-evidence@1"
EVIDENCE_FILE = COEFFICIENTS_FILE.with_name("run_evidence.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Fitted runs of one framework on one device, and the sources that published them."""

    runs: int
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceFile:
    """profiles/data/calibration/run_evidence.toml: `framework, device` -> its fitted runs."""

    date: str
    step: Mapping[str, Evidence] = field(default_factory=dict)


ENOUGH_RUNS, ENOUGH_SOURCES = 10, 2
"""A framework with fewer fitted runs or sources on a device is not chosen unless it is named.
The fit cannot separate the habits of one source from the framework's, and one unusual run of few
moves the coefficients. Both numbers are assumed."""
_GENERATION = re.compile(r"-\d{4}$|-\d\d\.\d\d$")


@functools.cache
def shipped_evidence() -> EvidenceFile:
    """The runs behind the shipped coefficients."""
    return read_document(EVIDENCE_FILE, EvidenceFile, schema=EVIDENCE_SCHEMA)


def evidence_name(run: TrainingRun) -> str:
    """Framework and device of a run, as a key of the evidence file; the framework is the one whose
    coefficients the run uses."""
    return f"{software_of(run)}, {run.device}"


def evidence_words(
    run: TrainingRun, known: EvidenceFile | None = None, *, short: bool = False
) -> str:
    """The fitted runs behind a predicted step time, as one line of text.

    short  without the names of the sources, in fewer than 90 columns
    """
    found = (known or shipped_evidence()).step.get(evidence_name(run))
    hidden = ""
    if run.model.num_experts and schedule_kind(run.schedule).pairs:
        hidden = (
            "; no fitted run hides all-to-alls of experts under another micro-batch's compute: how "
            "much of them hides is assumed"
        )
    where = f"{software_of(run)} on {run.device}"
    if found is None:
        if short:
            return f"no fitted run of {where}: coefficients of its relatives"
        return (
            f"no run of {where} was fitted: its coefficients are those of its relatives, its "
            f"interval the wider for it{hidden}"
        )
    runs = "1 run" if found.runs == 1 else f"{found.runs} runs"
    sources = "1 source" if len(found.sources) == 1 else f"{len(found.sources)} sources"
    basis = f"fitted on {runs} of {where}, of {sources}"
    return basis if short else f"coefficients {basis} ({', '.join(found.sources)}){hidden}"


def supporting_runs(framework: str, device: str, known: EvidenceFile | None = None) -> Evidence:
    """The fitted runs of a framework and its other generations (megatron-core-2023), on devices
    with the same processor (H800 and H100)."""
    family = _GENERATION.sub("", load_framework(framework).coefficients_of or framework)
    processor = processor_of(device)
    runs, sources = 0, set[str]()
    for name, found in (known or shipped_evidence()).step.items():
        owner, where = name.split(", ")
        if _GENERATION.sub("", owner) == family and _processor(where) == processor:
            runs += found.runs
            sources |= set(found.sources)
    return Evidence(runs=runs, sources=tuple(sorted(sources)))


def _processor(device: str) -> str:
    """The processor of a device; the name itself if the device is not in the catalog."""
    try:
        return processor_of(device)
    except InputError:
        return device
