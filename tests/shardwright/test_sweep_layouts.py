"""Sweeps of a framework's layouts: the same answers as single questions, whoever solves them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiles.errors import InfeasibleError, InputError, UnitError, UnknownNameError
from shardwright.cli import app
from shardwright.requests.questions import Grid
from tests.shardwright.test_sweep import CACHE

SITES = """
schema = "shardwright/cluster@1"
name = "two sites"

[[groups]]
count = 4
devices_per_node = 8
device = "h100-sxm"

[[levels]]
name = "nvlink"
domain_size = 8
link = "nvlink4"

[[levels]]
name = "ib"
domain_size = 16
link = "ib-ndr"

[[levels]]
name = "line"
domain_size = 32
shared_by = 16

[levels.link]
name = "line"
bandwidth_gb_per_s = { value = 5.0, source = "40 Gb/s", date = "2026-11-21", method = "assumed" }
latency_us = { value = 2000.0, source = "200 km", date = "2026-11-21", method = "assumed" }
efficiency = { value = 0.8, source = "assumed", date = "2026-11-21", method = "assumed" }
"""


@pytest.fixture(autouse=True, scope="module")
def own_cache() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(CACHE))
        yield


def typed(*arguments: str) -> str:
    """Standard output; raises what the command raises."""
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_same_answer_as_a_single_question(tmp_path: Path) -> None:
    folder = tmp_path / "answers"
    asked = ("--global-batch", "64", "--seq", "2048", "--stack", "nanotron")
    typed("plan", "llama-3.1-8b", "--on", "1x8xh100-sxm,2x8xh100-sxm", *asked, "-o", str(folder))
    rows = json.loads((folder / "summary.json").read_text())["rows"]
    for row in rows:
        file = tmp_path / "one.json"
        on = ("--on", row["cluster"], "--no-cache")
        typed("plan", "llama-3.1-8b", *on, *asked, "-o", str(file))
        one = json.loads(file.read_text())
        many = json.loads((folder / row["file"]).read_text())
        assert one["chosen"] == many["chosen"]
        for mine, other in zip(one["alternatives"], many["alternatives"], strict=True):
            assert {name: mine[name] for name in other} == other
        assert one["assumptions"] == many["assumptions"]
        assert row["step_time_s"] == many["chosen"]["prediction"]["step_time_s"]["value"]
        assert row["pins"] == "--stack nanotron"


def test_sites_in_a_sweep(tmp_path: Path) -> None:
    """A file's cluster beside a named one; one of them has nothing that fits."""
    path = tmp_path / "sites.toml"
    path.write_text(SITES)
    folder = tmp_path / "answers"
    typed(
        "plan", "llama-3.1-70b", "--on", f"{path},1xh100-sxm", "--global-batch", "32", "--seq",
        "2048", "--stack", "megatron-core", "--tp", "8,1", "--cp", "1", "-o", str(folder),
    )  # fmt: skip
    rows = {x["cluster"]: x for x in json.loads((folder / "summary.json").read_text())["rows"]}
    assert rows["1xh100-sxm"]["status"] == "infeasible"
    assert "does not fit" in rows["1xh100-sxm"]["reason"]
    assert rows[str(path)]["status"] == "optimal"
    assert rows[str(path)]["pp"] > 1


def test_a_file_of_grids(tmp_path: Path) -> None:
    path = tmp_path / "questions.toml"
    path.write_text(
        """
schema = "shardwright/questions@1"
[[grids]]
models = ["gpt2"]
clusters = ["1x8xa100-sxm-80gb"]
global_batches = [16]
sequence_lengths = [1024]
stack = "megatron-core"
options = { local_steps = "1,8", compress = "none,powersgd-4" }
"""
    )
    text = typed("plan", "--questions", str(path), "-o", str(tmp_path / "answers"))
    assert "gpt2" in text


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    out = ("-o", str(tmp_path / "a"))
    asked = ("plan", "gpt2,llama-3.1-8b", "--on", "8xh100-sxm", "--global-batch", "8", *out)
    with pytest.raises(UnknownNameError, match="megatron-core"):
        typed(*asked, "--stack", "megatron-cor")
    with pytest.raises(InputError, match="--cp 2: our own executor has no such axis"):
        typed(*asked, "--cp", "2")
    with pytest.raises(InputError, match="--order needs --stack"):
        typed(*asked, "--order", "any")
    with pytest.raises(InputError, match="--pareto is for one request"):
        typed(*asked, "--stack", "megatron-core", "--pareto", "memory")
    with pytest.raises(UnknownNameError, match="activation_offload"):
        Grid(
            models=("gpt2",), clusters=("8xh100",), global_batches=(8,), stack="nanotron",
            options={"activation_ofload": "1"},
        )  # fmt: skip
    one = ("plan", "gpt2", "--on", "8xh100-sxm", "--global-batch", "8", "--stack", "nanotron")
    with pytest.raises(UnitError, match=r"write 10%, or 0\.1"):
        typed(*one, "--fit-risk", "ten")
    with pytest.raises(UnknownNameError, match="unknown option 'base_precision'"):
        Grid(
            models=("gpt2",), clusters=("8xh100",), global_batches=(8,), stack="nanotron",
            options={"base_precision": "nf4"},
        )  # fmt: skip
    with pytest.raises(InputError, match="--base-precision is for one request"):
        typed(*asked, "--stack", "nanotron", "--base-precision", "nf4")
    with pytest.raises(InfeasibleError, match="none of the 2 requests has a plan"):
        typed(
            "plan", "llama-3.1-405b,llama-3.1-70b", "--on", "1xh100-sxm", "--global-batch", "8",
            "--seq", "2048", "--stack", "megatron-core", *out,
        )  # fmt: skip
