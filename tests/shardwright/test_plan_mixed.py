"""`shardwright plan` on the mixed cluster of docs/clusters.md, and on clusters that it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from shardwright.analysis.answer_json import ANSWER_KEYS
from shardwright.reports.brief.brief_terminal import brief_report
from shardwright.reports.brief.plan_answers import planned_mixed
from shardwright.reports.brief.plan_brief import plan_brief
from shardwright.reports.terminal_console import WIDTH
from simulator.values.plan import PLAN_SCHEMA
from simulator.values.plan_file import read_plan_file
from tests.shardwright.test_cli import ROOT, shardwright
from tests.shardwright.test_docs import fenced

MIXED_KEYS = (
    *("model", "cluster", "chosen", "compared", "left_out", "keys", "keys_solved"),
    *("prices_usd_per_hour", "prediction", "price_notes"),
)
ASKED = ["--global-batch", "128", "--seq", "2048", "--tp", "1", "--micro-batch", "1", "--zero", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mixed")
    _, _, example = fenced(ROOT / "docs/clusters.md", "toml")
    (made / "mixed.toml").write_text(example)
    return made


def test_h100s_take_more_of_the_work_and_all_are_faster_than_some(folder: Path) -> None:
    done = shardwright(
        "plan",
        "llama-3.1-8b",
        "--on",
        "mixed.toml",
        *ASKED,
        "--schedule",
        "1f1b",
        "--json",
        "-o",
        "p.json",
        "--time-limit",
        "1h",
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["schema"] == PLAN_SCHEMA
    assert {*ANSWER_KEYS, *MIXED_KEYS} <= set(printed)
    assert printed["alternatives"] == printed["compared"]
    assert printed["considered"] == printed["keys"]
    answer = read_plan_file(folder / "p.json")
    assert answer.plan is not None
    assert answer.comparison is not None
    blocks = {"h100-sxm-80gb": 0, "a100-sxm-80gb": 0}
    for pipeline in answer.plan.pipelines:
        for stage in pipeline.stages:
            blocks[stage.device] += stage.num_blocks * pipeline.num_microbatches
    # An H100's matmuls run 2.3 times as fast as an A100's (989 / 1.55 against 312 / 1.14 TFLOP/s),
    # its attention and memory 1.5 and 1.6 times: 1.8 times the blocks.
    assert blocks["h100-sxm-80gb"] > 1.6 * blocks["a100-sxm-80gb"] > 0
    steps = {each.title: each.step_time_s for each in answer.comparison.compared}
    for other in ("h100-sxm-80gb alone", "a100-sxm-80gb alone", "all with equal shares"):
        assert answer.step_time_s < 0.8 * steps[other]
    assert answer.bound <= answer.step_time_s
    assert answer.gap < 0.08  # the exchange of gradients is in no bound

    console = Console(width=WIDTH, record=True)
    console.print(brief_report(plan_brief(planned_mixed(answer, answer.comparison))))
    text = console.export_text()
    for part in ("replicas that differ", "up to", "per million tokens", "exchange", "F + B"):
        assert part in text

    refused = shardwright("run", "p.json", cwd=folder)
    assert refused.returncode == 2
    assert "need equal replicas" in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("change", "flags", "message"),
    [
        (("domain_size = 16", "domain_size = 12"), [], "joins 12 of 16 devices"),
        (("a100-sxm-80gb", "a100-sxm-80g"), [], "a100-sxm-80gb"),
        (None, ["--precision", "fp8"], "unknown precision 'fp8'"),
    ],
)
def test_what_cannot_be_is_said(
    folder: Path, change: tuple[str, str] | None, flags: list[str], message: str
) -> None:
    text = (folder / "mixed.toml").read_text()
    (folder / "changed.toml").write_text(text.replace(*change) if change else text)
    done = shardwright(
        "plan", "tiny-llama-demo", "--on", "changed.toml", *ASKED, *flags, cwd=folder
    )
    assert done.returncode == 2, done.stdout
    assert message in " ".join(done.stderr.split())


@pytest.mark.slow
def test_one_pipeline_of_both_types_has_no_exchange() -> None:
    on = "1x2xh100-sxm+1x2xa100-sxm-80gb"
    done = shardwright("plan", "tests.equality.models:unlike", "--on", on, "--global-batch", "64")
    assert done.returncode == 0, done.stderr
    assert "exchange" not in done.stdout
