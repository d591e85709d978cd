"""`shardwright plan --stack` as a user types it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.layout.layout_answer import LAYOUT_SCHEMA, LayoutFile
from profiles.document import read_document
from profiles.errors import InfeasibleError, InputError, UnknownNameError
from shardwright.cli import app

ASKED = ("plan", "llama-3.1-8b", "--global-batch", "64", "--seq", "4096", "--stack")
ON = ("--on", "2x8xh100-sxm")


def typed(*arguments: str) -> str:
    """Standard output; raises what the command raises."""
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_answer_is_written_and_printed(tmp_path: Path) -> None:
    path = tmp_path / "layout.json"
    text = typed(*ASKED, "megatron-core", *ON, "--explain", "-o", str(path))
    answer = read_document(path, LayoutFile, schema=LAYOUT_SCHEMA)
    assert answer.status == "optimal"
    assert "proven" in text
    assert "layouts considered" in text
    assert "twice the devices (4x8xh100-sxm)" in text
    assert max(map(len, text.splitlines())) <= 100
    changes = {found.change: found.step_time_s for found in answer.sensitivities}
    now = answer.chosen.prediction.step_time_s.value
    assert changes["10 GiB more memory per device"] <= now
    assert changes["10 GiB less memory per device"] >= now
    # Which way a collective goes is chosen at datasheet rates, its time has fitted coefficients:
    # another way may come out a little slower.
    assert changes["a network of twice the rate between nodes"] <= 1.005 * now
    assert changes["twice the devices (4x8xh100-sxm)"] < now


def test_json_and_a_price() -> None:
    found = [
        json.loads(typed(*ASKED, "nanotron", *ON, "--json", "--price", price))
        for price in ("2", "4")
    ]
    dollars = [x["chosen"]["prediction"]["usd_per_million_tokens"]["value"] for x in found]
    assert dollars[1] == pytest.approx(2 * dollars[0])
    run = found[0]["chosen"]["run"]
    tokens_per_s = 64 * 4096 / found[0]["chosen"]["prediction"]["step_time_s"]["value"]
    assert dollars[0] == pytest.approx(16 * 2 / 3600 / tokens_per_s * 1e6)
    assert run["tp"] * run["pp"] * run["dp"] == 16


def test_fp8_is_faster_where_the_device_has_it() -> None:
    times = {}
    for precision in ("bf16", "fp8"):
        found = json.loads(
            typed(*ASKED, "megatron-core", *ON, "--precision", precision, "--json", "--cp", "1")
        )
        times[precision] = found["chosen"]["prediction"]["step_time_s"]["value"]
    assert times["fp8"] < times["bf16"]
    with pytest.raises(InputError, match="no rate for float8"):
        typed(*ASKED, "megatron-core", "--on", "8xa100-sxm-40gb", "--precision", "fp8")


def test_fronts() -> None:
    text = typed(*ASKED, "megatron-core", *ON, "--cp", "1", "--pareto", "memory")
    assert text.startswith("No layout is better in both step time and peak memory")
    text = typed(*ASKED, "megatron-core", *ON, "--cp", "1", "--pareto", "usd")
    assert "dollars per million tokens" in text


def test_nothing_fits() -> None:
    with pytest.raises(InfeasibleError, match=r"no layout of llama-3\.1-70b fits on 4xh100-sxm"):
        typed(
            "plan", "llama-3.1-70b", "--on", "4xh100-sxm", "--global-batch", "8", "--seq", "2048",
            "--stack", "megatron-core", "--tp", "4",
        )  # fmt: skip


def test_what_cannot_be_asked() -> None:
    with pytest.raises(UnknownNameError, match="megatron-core"):
        typed(*ASKED, "megatron-cor", *ON)
    with pytest.raises(InputError, match="--cp 2: our own executor has no such axis"):
        typed("plan", "gpt2", *ON, "--global-batch", "8", "--cp", "2")
    with pytest.raises(InputError, match="--pareto needs --stack"):
        typed("plan", "gpt2", *ON, "--global-batch", "8", "--pareto", "memory")
    with pytest.raises(InputError, match="its trace does not give a transformer's figures"):
        typed("plan", "t5-large", *ON, "--global-batch", "8", "--stack", "megatron-core")


def test_options_beside_the_axes() -> None:
    text = typed(*ASKED, "megatron-core", *ON, "--cp", "1", "--precision", "any")
    assert "fp8" in text
    assert "whether the" in text
    text = typed(*ASKED, "megatron-core", *ON, "--cp", "1", "--compress", "powersgd-4")
    assert "powersgd-4" in text
    assert "of the time moves the" in " ".join(text.split())
    for flags, words in (
        (("--compress", "powersg"), "--compress: compression 'powersg' is none"),
        (("--local-steps", "0"), "--local-steps must be 1 or more"),
        (("--local-steps", "x"), "is not a list of whole numbers"),
        (("--activation-offload", "half"), "is no list of shares"),
        (("--order", "tp-pp"), "tp-cp-pp-dp"),
        (("--precision", "bf16,fp7"), "fp8"),
        (("--precision", ","), "--precision names none"),
    ):
        with pytest.raises(InputError, match=words):
            typed(*ASKED, "megatron-core", *ON, *flags)
    with pytest.raises(InputError, match="--optimizer-offload needs --stack"):
        typed("plan", "gpt2", *ON, "--global-batch", "8", "--optimizer-offload")
    with pytest.raises(InputError, match="several to choose from need --stack"):
        typed("plan", "gpt2", *ON, "--global-batch", "8", "--precision", "bf16,fp16")
