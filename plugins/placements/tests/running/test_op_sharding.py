"""Placements on real processes: values, gradients and collectives as planned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shardwright_placements.sharding_file import OP_SHARDING_SCHEMA, OpShardingFile

from plugins.placements.tests.running.sharding_cases import (
    MODELS,
    random_placements,
    solved,
    write_models,
)
from plugins.placements.tests.running.sharding_job import run_placements
from profiles.document import write_document
from tests.executor.processes import run_ranks


def run_job(cases: dict[str, OpShardingFile], processes: int, folder: Path) -> dict[str, Any]:
    """Results by name of the case."""
    for name, answer in cases.items():
        write_document(folder / f"case_{name}.json", answer, schema=OP_SHARDING_SCHEMA)
    results = folder / "results.out"
    said = run_ranks(run_placements, folder, results, processes=processes)
    assert results.is_file(), said[-4000:]
    found = {r["name"].removeprefix("case_"): r for r in json.loads(results.read_text())}
    assert set(found) == set(cases), said[-4000:]
    return found


def messages(result: dict[str, Any]) -> dict[tuple[str, str], int]:
    return {(m["phase"], m["operation"]): m["counted"] for m in result["run"]["messages"]}


def test_two_processes_do_what_was_planned(tmp_path: Path) -> None:
    """And a message that is left out of the plan is found."""
    paths = write_models(tmp_path)
    right = random_placements(paths["llama"], (2,), 7)
    cases = {
        "gpt2_solved": solved(paths["gpt2"], (2,)),
        "llama_random": right,
        "llama_random_less": replace(right, messages=right.messages[1:]),
    }
    found = run_job(cases, 2, tmp_path)
    assert not found.pop("llama_random_less")["passed"]
    for name, result in found.items():
        assert result["passed"], (name, result)
        assert sum(messages(result).values()) > 10, name


@pytest.mark.slow
def test_two_processes_send_every_kind_of_message(tmp_path: Path) -> None:
    paths = write_models(tmp_path)
    cases = {"mixtral_solved": solved(paths["mixtral"], (2,))}
    cases |= {f"{name}_random": random_placements(paths[name], (2,), 7) for name in MODELS}
    cases |= {"llama_block": solved(paths["llama"], (2,), block="LlamaDecoderLayer")}
    # Planned in bf16 as for an accelerator, run in fp32.
    cases |= {"llama_bf16": solved(paths["llama"], (2,), dtype="bfloat16")}
    moved = random_placements(paths["mixtral"], (2,), 7, exchange=True)
    cases |= {"mixtral_exchanged": moved}
    found = run_job(cases, 2, tmp_path)
    for name, result in found.items():
        assert result["passed"], (name, result)
        assert sum(messages(result).values()) > 10, name
    kinds = {operation for result in found.values() for _, operation in messages(result)}
    assert kinds == {"all_gather", "reduce_scatter", "all_reduce", "all_to_all"}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(4,), (2, 2)])
def test_four_processes_do_what_was_planned(sizes: tuple[int, ...], tmp_path: Path) -> None:
    paths = write_models(tmp_path)
    cases = {f"{name}_random": random_placements(paths[name], sizes, 11) for name in MODELS}
    if sizes == (4,):
        cases |= {"mixtral_solved": solved(paths["mixtral"], sizes)}
    for name, result in run_job(cases, 4, tmp_path).items():
        assert result["passed"], (name, result)
        assert sum(messages(result).values()) > 10, name
