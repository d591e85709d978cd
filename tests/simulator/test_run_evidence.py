"""What a prediction rests on, in words: fitted runs by framework and device."""

from __future__ import annotations

from dataclasses import replace

from simulator.training_run.fit.evidence import (
    Evidence,
    EvidenceFile,
    evidence_words,
    shipped_evidence,
)
from tests.simulator.described_runs import LLAMA_RUN, MIXTRAL, changed

KNOWN = EvidenceFile(
    date="2026-11-22",
    step={
        "megatron-core, h100-sxm-80gb": Evidence(runs=33, sources=("mlperf", "readme")),
        "megatron-core, h200-sxm": Evidence(runs=1, sources=("mlperf",)),
    },
)


def test_sources_and_runs_are_counted() -> None:
    known = replace(LLAMA_RUN, stack="megatron-core", device="h100-sxm-80gb")
    said = evidence_words(known, KNOWN)
    on = "megatron-core on h100-sxm-80gb"
    assert said == f"coefficients fitted on 33 runs of {on}, of 2 sources (mlperf, readme)"
    one = evidence_words(replace(known, device="h200-sxm"), KNOWN)
    assert one == "coefficients fitted on 1 run of megatron-core on h200-sxm, of 1 source (mlperf)"


def test_what_nobody_measured_is_said() -> None:
    unseen = replace(LLAMA_RUN, stack="megatron-core", device="b300-sxm")
    assert evidence_words(unseen, KNOWN).startswith("no run of megatron-core on b300-sxm")


def test_hidden_all_to_alls_are_an_assumption() -> None:
    settings = {"stack": "megatron-core", "model": MIXTRAL, "ep": 8, "pp": 2, "vpp": 2}
    for schedule, assumed in (("interleaved", False), ("interleaved-overlap", True)):
        said = evidence_words(changed(LLAMA_RUN, **settings, schedule=schedule), KNOWN)
        assert ("hides all-to-alls" in said) == assumed


def test_the_shipped_file_counts_what_was_fitted() -> None:
    shipped = shipped_evidence().step
    assert shipped["nanotron, h100-sxm-80gb"].sources == ("ultra",)
    assert all(found.runs >= len(found.sources) > 0 for found in shipped.values())
