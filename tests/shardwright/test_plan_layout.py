"""`shardwright plan --stack` as a user types it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.layout.layout_answer import LAYOUT_SCHEMA, LayoutFile
from profiles.document import read_document
from profiles.errors import InfeasibleError, InputError, UnknownNameError
from profiles.hardware.energy.grid_carbon import grid_of
from shardwright.analysis.answer_json import ANSWER_KEYS
from shardwright.cli import app
from shardwright.requests.compared_frameworks import compared_frameworks
from simulator.training_run.fit.recalibration import shipped_hash

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
    assert "Proven optimal" in text
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


def test_the_search_decides_on_shared_tokens_where_the_framework_leaves_the_choice() -> None:
    """Without the flag, only layouts with whole tokens were searched, which are slower here."""
    free = json.loads(typed(*ASKED, "torch", *ON, "--tp", "8", "--json"))
    shared = json.loads(typed(*ASKED, "torch", *ON, "--tp", "8", "--json", "--sequence-parallel"))
    assert free["plan"]["sequence_parallel"]
    assert free["plan"] == shared["plan"]


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
    assert "no other beats in both step time and memory" in " ".join(text.split())
    text = typed(*ASKED, "megatron-core", *ON, "--cp", "1", "--pareto", "usd")
    assert "step time and dollars per million tokens" in " ".join(text.split())


def test_nothing_fits() -> None:
    with pytest.raises(InfeasibleError, match=r"no layout of llama-3\.1-70b fits on 4xh100-sxm"):
        typed(
            "plan", "llama-3.1-70b", "--on", "4xh100-sxm", "--global-batch", "8", "--seq", "2048",
            "--stack", "megatron-core", "--tp", "4",
        )  # fmt: skip


TWO_TOWERS = "examples.two_tower:build"


def test_what_cannot_be_asked() -> None:
    with pytest.raises(UnknownNameError, match="megatron-core"):
        typed(*ASKED, "megatron-cor", *ON)
    with pytest.raises(InputError, match="--cp 2: torch has no such axis"):
        typed("plan", "gpt2", *ON, "--global-batch", "8", "--cp", "2", "--stack", "torch")
    with pytest.raises(
        InputError, match="--pareto needs the search over layouts, but this request is planned"
    ):
        typed("plan", TWO_TOWERS, *ON, "--global-batch", "8", "--pareto", "memory")
    with pytest.raises(InputError, match="its trace does not give a transformer's figures"):
        typed("plan", TWO_TOWERS, *ON, "--global-batch", "8", "--stack", "megatron-core")


def test_options_beside_the_axes() -> None:
    text = typed(*ASKED, "megatron-core", *ON, "--cp", "1", "--precision", "any", "--explain")
    assert "fp8" in text
    assert "whether the" in text
    text = typed(*ASKED, "megatron-core", *ON, "--cp", "1", "--compress", "powersgd-4", "--explain")
    assert "powersgd-4" in text
    assert "Productive time" in " ".join(text.split())
    for flags, words in (
        (("--compress", "powersg"), "--compress: compression 'powersg' is unknown"),
        (("--local-steps", "0"), "--local-steps must be 1 or more"),
        (("--local-steps", "x"), "is not a list of whole numbers"),
        (("--activation-offload", "half"), "is not a list of shares"),
        (("--order", "tp-pp"), "tp-cp-pp-dp"),
        (("--precision", "bf16,fp7"), "fp8"),
        (("--precision", ","), "--precision names none"),
        (("--optimizer", "sgd"), "priced with adamw, .* leave out --stack"),
    ):
        with pytest.raises(InputError, match=words):
            typed(*ASKED, "megatron-core", *ON, *flags)
    # A front without a framework is our executor's.
    for flags, words in (
        (("--optimizer-offload",), "--optimizer-offload needs --stack"),
        (("--precision", "bf16,fp16"), "--precision bf16,fp16 needs --stack"),
    ):
        with pytest.raises(InputError, match=words):
            typed("plan", "gpt2", *ON, "--global-batch", "8", "--pareto", "memory", *flags)


@pytest.mark.parametrize(
    ("flags", "option"),
    [(("--lora", "16"), "lora_rank"), (("--precision", "bf16,fp8"), "precision")],
)
def test_what_our_executor_lacks_is_compared_among_the_others(
    flags: tuple[str, ...], option: str
) -> None:
    asked = ("plan", "llama-3.1-8b", "--on", "8xh100-sxm", "--global-batch", "64")
    said = json.loads(typed(*asked, *flags, "--json"))
    assert said["stack"] != "torch"
    assert said["plan"][option] in (16, "fp8")
    assert any("compared with" in each for each in said["assumptions"])
    assert not any("compared with" in each and "torch," in each for each in said["assumptions"])
    # No run on an L40S was fitted: the frameworks that are known best elsewhere.
    assert compared_frameworks("l40s", ours=False) == ("megatron-core", "torch-fsdp")


def test_what_our_executor_lacks_is_refused_where_it_alone_can_answer(tmp_path: Path) -> None:
    asked = ("plan", "tests.equality.models:alike", *ON, "--global-batch", "8", "--lora", "16")
    with pytest.raises(InputError, match="--lora needs --stack: our own executor"):
        typed(*asked)


def test_every_answer_has_the_same_keys() -> None:
    found = json.loads(typed(*ASKED, "megatron-core", *ON, "--cp", "1", "--tp", "1,2", "--json"))
    assert set(ANSWER_KEYS) <= set(found)
    assert found["step_time_s"] == found["chosen"]["prediction"]["step_time_s"]["value"]
    assert found["plan"] == found["chosen"]["run"]
    assert 0.0 <= found["out_of_memory_probability"] <= 0.1
    for other in found["alternatives"]:
        assert other["step_time_s"] >= found["step_time_s"]
        assert {"plan", "mfu", "peak_memory_bytes", "why_not_first"} <= set(other)


def test_several_frameworks(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    asked = ("plan", "gpt2", "--global-batch", "64", "--seq", "1024", "--on", "1x8xh100-sxm")
    text = typed(*asked, "--stack", "megatron-core,torch-fsdp,nanotron", "-o", str(path))
    assert "why not first" in text
    assert "slower" in text
    found = json.loads(typed(*asked, "--stack", "megatron-core,torch-fsdp", "--cp", "2", "--json"))
    assert set(ANSWER_KEYS) <= set(found)
    assert [each["stack"] for each in found["frameworks"]] == ["megatron-core"]
    assert "has no such axis" in found["refused"]["torch-fsdp"]
    every = json.loads(typed(*asked, "--stack", "any", "--json"))
    times = [each["step_time_s"] for each in every["frameworks"]]
    assert times == sorted(times)
    assert every["step_time_s"] == times[0]
    assert read_document(path, LayoutFile, schema=LAYOUT_SCHEMA).stack in text


def test_idle_devices_are_paid_for() -> None:
    asked = ("plan", "llama-3.1-8b", "--global-batch", "100", "--seq", "4096", "--price", "2")
    found = json.loads(typed(*asked, "--on", "7x8xh100-sxm", "--stack", "megatron-core", "--json"))
    used, idle = found["devices_used"], found["devices_idle"]
    assert used + idle == 56
    assert idle > 0
    tokens_per_s = 100 * 4096 / found["step_time_s"]
    assert found["usd_per_million_tokens"] == pytest.approx(56 * 2 / 3600 / tokens_per_s * 1e6)
    assert any(f"{used} of 56 devices are used" in said for said in found["assumptions"])
    near = {each["global_batch"]: each["tokens_per_s"] for each in found["nearby_batches"]}
    assert min(near) < 100 < max(near)
    assert min(near.values()) > tokens_per_s


def test_the_risk_of_running_out_of_memory() -> None:
    peaks = []
    for risk in ("1%", "0.5"):
        found = json.loads(typed(*ASKED, "megatron-core", *ON, "--fit-risk", risk, "--json"))
        assert found["out_of_memory_probability"] <= (0.01 if risk == "1%" else 0.5)
        peaks.append((found["peak_memory_bytes"], -found["step_time_s"]))
    assert peaks[0][1] <= peaks[1][1]
    for wrong in ("0", "1.5", "much"):
        with pytest.raises(InputError, match="--fit-risk"):
            typed(*ASKED, "megatron-core", *ON, "--fit-risk", wrong)


def test_a_front_as_json_and_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "front.json"
    flags = ("--cp", "1", "--tp", "1,2", "--pp", "1,2", "--pareto", "memory")
    found = json.loads(typed(*ASKED, "megatron-core", *ON, *flags, "--json", "-o", str(path)))
    assert found == json.loads(path.read_text())
    times = [point["step_time_s"] for point in found["front"]]
    assert times == sorted(times)


def test_what_own_runs_taught(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    based_on = shipped_hash()
    path.write_text(
        'schema = "shardwright/run-calibration@2"\nsource = "mine.csv"\nmethod = "by hand"\n'
        f'date = "2026-11-22"\nruns = 3\nbased_on = "{based_on}"\nerror_before = 0.3\n'
        "residual = 0.1\n"
        "left_out_error = 0.1\ncovariance = [[1e-4], [0.0, 1e-4]]\n[values]\n"
        '"power.h100-sxm-80gb.16" = 6.0\n"level.megatron-core" = 1.0\n'
    )
    pins = ("--cp", "1", "--tp", "1", "--pp", "1", "--json")
    usual = json.loads(typed(*ASKED, "megatron-core", *ON, *pins))
    mine = json.loads(typed(*ASKED, "megatron-core", *ON, *pins, "--calibration", str(path)))
    assert mine["step_time_s"] > 1.5 * usual["step_time_s"]
    width = [x["step_time_high_s"] / x["step_time_low_s"] for x in (usual, mine)]
    assert width[1] < width[0]


def test_spot_capacity_is_taken_back() -> None:
    found = {}
    for kind in ("on-demand", "spot"):
        flags = ("--price", kind, "--json")
        found[kind] = json.loads(typed(*ASKED, "megatron-core", *ON, *flags))
    owned, spot = (each["chosen"]["prediction"]["reliability"] for each in found.values())
    assert found["spot"]["step_time_s"] == found["on-demand"]["step_time_s"]
    assert spot["goodput"]["value"] < owned["goodput"]["value"]
    assert spot["lost"]["spot"] > 0


def test_own_failures_and_the_grid(tmp_path: Path) -> None:
    """A cluster that fails thirty times as often keeps less; carbon is energy times the grid's."""
    path = tmp_path / "cluster.toml"
    path.write_text('schema = "shardwright/reliability@1"\ndevice_hours_per_failure = 1000\n')
    pins = ("--tp", "1", "--pp", "1", "--cp", "1", "--json")
    usual = json.loads(typed(*ASKED, "megatron-core", *ON, *pins))
    mine = json.loads(
        typed(*ASKED, "megatron-core", *ON, *pins, "--reliability", str(path), "--region", "FRA")
    )
    assert mine["productive_time"] < usual["productive_time"] < 1
    assert mine["step_time_s"] == usual["step_time_s"]
    assert (usual["region"], mine["region"]) == ("world", "FRA")
    for found in (usual, mine):
        kg = found["kg_co2e_per_million_tokens_delivered"]
        kwh = found["kwh_per_million_tokens_delivered"]
        assert kg / kwh == pytest.approx(grid_of(found["region"]).kg_per_kwh.value)
        plain = found["chosen"]["prediction"]["kwh_per_million_tokens"]["value"]
        assert kwh == pytest.approx(plain / found["productive_time"])
    text = typed(*ASKED, "megatron-core", *ON, *pins[:-1], "--region", "FRA", "--explain")
    assert "grid of FRA" in " ".join(text.split())
    done = CliRunner().invoke(app, [*ASKED, "megatron-core", *ON, "--region", "Atlantis"])
    assert done.exit_code == 2 or "unknown region" in str(done.exception)


def test_frozen_weights_and_states_of_few_bits() -> None:
    """QLoRA and 8-bit states need less memory, and a plan that has not adapters is refused."""
    adapters = (*ASKED, "transformers", *ON, "--lora", "16", "--json")
    wide, few = (json.loads(typed(*adapters, *more)) for more in ((), ("--base-precision", "nf4")))
    assert few["plan"]["frozen_type"] == "nf4"
    assert few["step_time_s"] > 0.9 * wide["step_time_s"]
    states = json.loads(typed(*ASKED, "torch-fsdp", *ON, "--optimizer", "adamw8bit", "--json"))
    assert states["plan"]["optimizer"] == "adamw8bit"
    assert any("8-bit-states: changes what is computed" in each for each in states["assumptions"])
    for wrong, why in (
        ((*ASKED, "transformers", *ON, "--base-precision", "nf4"), "add --lora RANK"),
        ((*ASKED[:-1], *ON, "--pareto", "memory", "--optimizer", "adamw8bit"), "needs --stack"),
    ):
        done = CliRunner().invoke(app, list(wrong))
        assert done.exit_code != 0
        assert why in str(done.exception) + done.output


def test_adapters_are_not_run_as_a_training_of_all_weights(tmp_path: Path) -> None:
    path = tmp_path / "adapters.json"
    asked = ("plan", "tiny-llama-demo", *ON, "--global-batch", "32", "--seq", "1024")
    more = ("--stack", "torch", "--lora", "16", "--base-precision", "nf4", "-o", str(path))
    done = CliRunner().invoke(app, [*asked, *more])
    assert "`run` refuses this plan: our executor has no" in " ".join(done.stderr.split())
    answer = read_document(path, LayoutFile, schema=LAYOUT_SCHEMA)
    assert (answer.chosen.run.lora_rank, answer.chosen.run.frozen_type) == (16, "nf4")
    assert "frozen weights in nf4" in typed("predict", str(path))
    why = r"cannot be run: our executor has no option for low-rank adapters; .* frozen weights in"
    with pytest.raises(InputError, match=why) as caught:
        typed("run", str(path), "-q")
    assert str(caught.value).startswith(f"{path}: ")
    assert "Plan without --lora 16 --base-precision nf4, or" in str(caught.value)
