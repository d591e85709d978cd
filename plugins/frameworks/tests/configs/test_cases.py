"""Configurations written anew after public ones (each names its address): what is read of them.

`expected.json` was written by hand from the files: the keys that they set; every other is null.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shardwright_frameworks.imported_run import MODEL_FIGURES, ImportedRun, imported_json
from shardwright_frameworks.reading.read_config import read_config

CASES = Path(__file__).parent / "cases"
KEYS = (
    "framework", "device", "devices", "nodes", "devices_per_node", "tp", "pp", "vpp", "cp", "ep",
    "dp", "dp_replicate", "zero_stage", "micro_batch", "global_batch", "gradient_accumulation",
    "seq_len", "precision", "recompute", "sequence_parallel", "distributed_optimizer", "optimizer",
    "schedule", "optimizer_offload", "flash_attention",
)  # fmt: skip
NAMES = sorted(folder.name for folder in CASES.iterdir())


def read(name: str) -> tuple[dict[str, object], ImportedRun]:
    expected = json.loads((CASES / name / "expected.json").read_text(encoding="utf-8"))
    files = [p for p in (CASES / name).iterdir() if p.name != "expected.json"]
    config = expected.pop("config", files[0].name)
    return expected, read_config(CASES / name / config)


@pytest.mark.parametrize("name", NAMES)
def test_values_of_a_configuration(name: str) -> None:
    expected, run = read(name)
    found = {key: getattr(run, key) for key in KEYS}
    assert found == {key: expected.get(key) for key in KEYS}
    model = {key: getattr(run.model, key) for key in ("name", "flavor", *MODEL_FIGURES)}
    figures = expected.get("model", {})
    assert isinstance(figures, dict)
    assert model == {key: figures.get(key) for key in model}


@pytest.mark.parametrize("name", NAMES)
def test_problems_of_a_configuration(name: str) -> None:
    expected, run = read(name)
    assert [each.field for each in run.contradictions] == expected.get("contradictions", [])
    assert [each.option for each in run.unknown] == expected.get("unknown", [])
    assert [each.option for each in run.unresolved] == expected.get("unresolved", [])
    for each in run.contradictions:
        assert each.places, each
        for place in each.places:
            file, _, line = place.rpartition(":")
            assert 1 <= int(line) <= len((CASES / name / file).read_text().splitlines())


def test_json_has_every_key_and_null_for_silence() -> None:
    _, run = read("deepspeed_json")
    plain = imported_json(run)
    assert set(KEYS) <= set(plain)
    assert plain["tp"] is None
    assert plain["defaults"]["tp"] == {"value": 1, "source": "DeepSpeed 0.17, runtime/config.py"}
    assert plain["model"]["num_layers"] is None


def test_there_are_enough() -> None:
    assert len(NAMES) >= 40
