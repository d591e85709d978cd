"""`shardwright size` as a user types it."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiles.errors import InfeasibleError, InputError, ToleranceError, UnknownNameError
from shardwright.analysis.size_json import size_json
from shardwright.cli import app
from shardwright.options.size_options import SizeOptions
from shardwright.reports.sizing.size_summary import size_summary
from shardwright.requests.sizing.size_flags import size_flags
from shardwright.requests.sizing.size_request import size_request
from shardwright.requests.sizing.sized import Detail, SizeSolver, phases_of
from tests.shardwright.test_size_money import text_of

SMALL = ("size", "gpt2", "--seq", "1024", "--global-batch", "64", "--workers", "1", "-q")
STACK = ("--stack", "megatron-core")
PROMISED = (
    *("status", "bound", "gap", "device", "nodes", "devices", "days", "days_low", "days_high"),
    *("device_hours", "device_hours_low", "device_hours_high", "usd", "usd_low", "usd_high", "kwh"),
    *("tco2e", "probability_of_deadline", "productive_time", "flop", "plan", "alternatives"),
    "assumptions",
)


def typed(*arguments):
    """Standard output; raises what the command raises."""
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def data_of(*arguments):
    return json.loads(typed(*SMALL, *STACK, *arguments, "--json"))


SOLVER = SizeSolver(clock=time.monotonic, today="2026-11-27", limit_s=300.0)


def best_of(**options):
    """As data_of, of the best run alone."""
    sized = SOLVER.of_best().solve(size_flags(SizeOptions(**options)))
    return size_json(sized.question, sized.answer)


@pytest.fixture(scope="module")
def answer():
    return data_of("--tokens", "30B", "--deadline", "2d", "--on", "h100-sxm,b200", "--nodes",
                   "1..3", "--price-kind", "3")  # fmt: skip


def test_every_promised_key_is_there(answer):
    assert set(PROMISED) <= set(answer)
    assert answer["status"] == "optimal"
    for name in ("days", "device_hours", "usd", "kwh", "tco2e", "productive_time"):
        assert answer[f"{name}_low"] <= answer[name] <= answer[f"{name}_high"]
    assert 0 <= answer["probability_of_deadline"] <= 1
    assert answer["device_hours"] == pytest.approx(answer["devices"] * 24 * answer["days"])
    assert answer["rent_usd"] == pytest.approx(3 * answer["device_hours"])
    beside = answer["storage_usd"] + answer["egress_usd"] + answer["spare_usd"]
    lost = answer["rent_usd"] * (1 - answer["productive_time"])
    assert answer["lost_usd"] == pytest.approx(lost)
    assert answer["usd"] == pytest.approx(answer["rent_usd"] + beside)
    assert len(answer["alternatives"]) == 1


def test_flop_is_six_per_parameter_and_token_and_attention(answer):
    # 124.4 M parameters but for 1024 x 768 learnt positions, the table of the tokens is tied;
    # attention 12 x 12 layers x 768 x 1024 keys.
    each = 6 * (124.44e6 - 1024 * 768) + 12 * 12 * 768 * 1024
    assert answer["flop"] == pytest.approx(30e9 * each, rel=1e-3)
    assert [each["exceeded"] for each in answer["thresholds"]] == [False, False]


def test_the_report_stands_alone():
    text = typed(*SMALL, *STACK, "--tokens", "30B", "--deadline", "2d", "--on", "h100-sxm",
                 "--nodes", "1..3", "--explain")  # fmt: skip
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    for word in ("Rent", "Step", "Time", "Cost", "Energy", "Productive", "Binding limit",
                 "Effect of single changes", "FLOP", "1e+25", "rescinded", "assumed", "on-demand",
                 "providers"):  # fmt: skip
        assert word in " ".join(text.split()), word


def test_what_cannot_be_names_the_smallest_change():
    late = ("--tokens", "300B", "--deadline", "1h", "--on", "h100-sxm", "--nodes", "1..2")
    done = CliRunner().invoke(app, [*SMALL, *STACK, *late])
    assert isinstance(done.exception, InfeasibleError)
    assert "within the limits" in str(done.exception)
    assert "the fastest there is" in done.output
    assert "--deadline" in done.output


def test_tokens_of_a_budget_and_the_way_back():
    found = data_of("--budget", "1k$", "--on", "h100-sxm", "--nodes", "1", "--price-kind", "3")
    assert found["usd"] == pytest.approx(1e3, rel=0.03)
    assert found["minimised"] == "tokens"
    more = data_of("--budget", "2k$", "--on", "h100-sxm", "--nodes", "1", "--price-kind", "3")
    assert more["tokens"] == pytest.approx(2 * found["tokens"], rel=0.01)


def test_ceiling_diff_and_versus(tmp_path):
    path = tmp_path / "old.json"
    asked = ("--tokens", "10B", "--on", "h100-sxm", "--nodes", "2", "--price-kind", "3")
    text = typed(*SMALL, *STACK, *asked, "-o", str(path), "--versus", "network=roce-200")
    assert "Versus  network=roce-200: 16 h100-sxm" in text
    assert "the first is faster with probability" in text
    done = CliRunner().invoke(
        app, [*SMALL, *STACK, *asked, "--diff", str(path), "--fail-over", "10$"]
    )
    assert "Nothing changed" in done.output
    assert isinstance(done.exception, ToleranceError)
    assert "is above --fail-over 10$" in str(done.exception)
    dearer = typed(*SMALL, *STACK, *asked[:-1], "4", "--diff", str(path))
    assert "+33.3 %" in dearer
    assert "$4 per device-hour" in dearer  # a change of text has no share


def test_phases_take_the_time_of_all(tmp_path):
    path = tmp_path / "phases.toml"
    path.write_text(
        'schema = "shardwright/phases@1"\n'
        '[[phases]]\ntokens = "9B"\nseq = 512\nglobal_batch = 128\n'
        '[[phases]]\nname = "long"\ntokens = "1B"\nseq = 1024\nglobal_batch = 32\n'
    )
    on = ("--on", "h100-sxm", "--nodes", "1")
    both = data_of("--phases", str(path), *on)
    first = data_of("--tokens", "9B", "--seq", "512", "--global-batch", "128", *on)
    second = data_of("--tokens", "1B", "--seq", "1024", "--global-batch", "32", *on)
    assert both["days"] == pytest.approx(first["days"] + second["days"], rel=0.01)
    assert "2 phases of 10.0 B tokens" in " ".join(both["assumptions"])
    path.write_text(path.read_text().replace("seq = 1024", "seq = 67108864"))
    with pytest.raises(InputError, match="phase 'long': no layout of megatron-core for 32 seq"):
        data_of("--phases", str(path), *on)


def test_a_device_without_a_price_is_told():
    with pytest.raises(InputError, match="no on-demand price is known"):
        typed(*SMALL, *STACK, "--tokens", "10B", "--on", "rtx-2070-maxq", "--nodes", "1")


def test_the_phases_of_the_docs_are_read(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "planning.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    path = tmp_path / "run.toml"
    path.write_text(example)
    assert [phase.tokens_count for phase in phases_of(path)] == [14e12, 8e11]
    assert len(text.splitlines()) < 250


def test_without_a_framework_the_one_with_little_evidence_is_not_chosen():
    """megatron-bridge-26.06, with one fitted run on an H100, was chosen and called proven."""
    asked = (
        "--tokens",
        "30B",
        "--on",
        "h100-sxm",
        "--nodes",
        "1..2",
        "--price-kind",
        "3",
        "--json",
    )
    found = json.loads(typed(*SMALL, *asked))
    assert found["stack"] == "megatron-core"
    assert found["status"] == "optimal"
    others = {other["stack"]: other["probability_better"] for other in found["frameworks"]}
    assert set(others) == {"nanotron", "torch-fsdp", "torch"}
    assert all(0 <= probability <= 1 for probability in others.values())


def test_an_unknown_framework_is_an_error_with_a_suggestion():
    done = CliRunner().invoke(
        app, [*SMALL, "--stack", "megatron", "--tokens", "1B", "--on", "b200"]
    )
    assert isinstance(done.exception, UnknownNameError)
    assert "megatron-core" in str(done.exception)


def test_devices_are_not_rounded_to_nodes():
    """1, 2 and 1001 devices were rounded up without a word."""
    asked = (*SMALL, "--tokens", "1B", "--on", "h100-sxm", "--devices")
    for count, nearest in (("1", "use 8,"), ("2", "use 8,"), ("1001", "use 1,000 or 1,008")):
        done = CliRunner().invoke(app, [*asked, count])
        assert isinstance(done.exception, InputError), count
        assert nearest in str(done.exception)
    assert "2x h100" not in typed(*asked[:-2], "2xh100-sxm", "--devices", "2")


def test_a_price_of_zero_is_refused():
    done = CliRunner().invoke(
        app, [*SMALL, "--tokens", "1B", "--on", "h100-sxm", "--price-kind", "0"]
    )
    assert isinstance(done.exception, InputError)
    assert "more than 0 US dollars" in str(done.exception)


def test_the_summary_shows_all_that_is_solved_for_it():
    """And no more is: the front and what the next node brings are for --explain, JSON and files."""
    options = SizeOptions(model="gpt2", on="h100-sxm", tokens="30B", nodes="1..3", seq=1024)
    short = replace(SOLVER, detail=Detail.SUMMARY).solve(size_flags(options))
    whole = SOLVER.solve(size_flags(options))
    assert text_of(size_summary(short)) == text_of(size_summary(whole))
    assert short.answer.frameworks
    assert not short.answer.front
    assert not short.answer.gains
    assert whole.answer.front
    assert whole.answer.gains


def test_without_limits_no_run_of_years_is_proposed():
    """70 B parameters on 15 T tokens took 2,080 days on the fewest devices."""
    asked = ("size", "llama-3.1-70b", "--tokens", "15T", "--on", "h100-sxm", "-q", "--json")
    found = best_of(model="llama-3.1-70b", tokens="15T", on="h100-sxm")
    assert found["days"] <= 90
    assert found["deadline_days"] == 90
    assert "--deadline" in found["assumptions"][0]
    fewest = json.loads(typed(*asked, "--minimise", "devices"))
    assert fewest["devices"] <= found["devices"]
    assert fewest["binds"].startswith("the deadline")


def test_one_node_is_the_fewest_there_is():
    found = data_of("--tokens", "1B", "--on", "h100-sxm", "--minimise", "devices")
    assert (found["nodes"], found["binds"]) == (1, "no limit: one node is the fewest there is")


def test_the_published_run_is_predicted_with_the_defaults_of_the_answer():
    asked = ("size", "llama-3.1-70b", "--on", "h100-sxm", "--nodes", "256", "--json", "-q")
    published = json.loads(typed(*asked, "--tokens", "1T"))["published"]
    assert published["run"]["device_hours"] == 6.4e6
    again = best_of(
        model="llama-3.1-70b", on="h100-sxm", nodes="256", tokens="15T", minimise="time"
    )
    hours = published["predicted_device_hours"]["value"]
    assert hours == pytest.approx(again["device_hours"], rel=1e-6)
    assert published["error"] == pytest.approx(hours / 6.4e6 - 1)


def test_a_cluster_file_is_sized_with_its_levels(tmp_path):
    """Four nodes whose spine is oversubscribed: slower than the same file at full bisection."""
    text = (
        'schema = "shardwright/cluster@1"\nname = "two racks"\n[[groups]]\ncount = 4\n'
        'devices_per_node = 8\ndevice = "h100-sxm"\n[[levels]]\nname = "nvlink"\ndomain_size = 8\n'
        'link = "nvlink4"\n[[levels]]\nname = "rack"\ndomain_size = 16\nlink = "ib-ndr"\n'
        '[[levels]]\nname = "spine"\ndomain_size = 32\nlink = "ib-ndr"\nshared_by = 1\n'
        "oversubscription = {}\n"
    )
    steps = []
    for share in (1.0, 8.0):
        path = tmp_path / f"racks{share:.0f}.toml"
        path.write_text(text.format(share))
        found = data_of("--tokens", "30B", "--on", str(path), "--price-kind", "3")
        assert (found["nodes"], found["device"]) == (4, "h100-sxm-80gb")
        steps.append(found["step_time_s"])
    assert steps[1] > steps[0]
    done = CliRunner().invoke(
        app, [*SMALL, *STACK, "--tokens", "1B", "--on", str(path), "--nodes", "5"]
    )
    assert isinstance(done.exception, InputError)
    assert "has 4 nodes, fewer than 5" in str(done.exception)


def test_a_model_trained_in_fp8_is_sized_in_fp8_on_devices_that_all_have_it() -> None:
    given = {"model": "deepseek-v3", "tokens": "1T", "deadline": "60d"}
    narrow = size_request(
        size_flags(SizeOptions(**given, on="h800-sxm")), today="2026-11-27"
    ).question
    assert narrow.precision == "fp8"
    assert "nanotron" not in {stack.name for stack in narrow.stacks}
    able = {stack.name for stack in narrow.stacks}
    (choice,) = narrow.choices
    assert {name for group in choice.preferred for name in group} <= able
    mixed = size_request(
        size_flags(SizeOptions(**given, on="h800-sxm,a100-sxm-80gb")), today="2026-11-27"
    )
    assert mixed.question.precision == "bf16"


def test_parts_of_nodes_are_rented_by_their_device() -> None:
    """It was `8 x 4 4xh100-sxm`."""
    text = typed(*SMALL, *STACK, "--tokens", "10B", "--on", "4xh100-sxm", "--nodes", "2")
    assert text.splitlines()[0].startswith("Rent    2 x 4 h100-sxm (8 devices)")
