"""`shardwright size` as a user types it."""

import json

import pytest
from typer.testing import CliRunner

from profiles.errors import InfeasibleError, InputError, ToleranceError
from shardwright.cli import app

SMALL = ("size", "llama-3.1-8b", "--seq", "4096", "--global-batch", "256", "--workers", "1", "-q")
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


@pytest.fixture(scope="module")
def answer():
    return data_of("--tokens", "300B", "--deadline", "20d", "--on", "h100-sxm,b200", "--nodes",
                   "2..24", "--price-kind", "3")  # fmt: skip


def test_every_promised_key_is_there(answer):
    assert set(PROMISED) <= set(answer)
    assert answer["status"] == "optimal"
    for name in ("days", "device_hours", "usd", "kwh", "tco2e", "productive_time"):
        assert answer[f"{name}_low"] <= answer[name] <= answer[f"{name}_high"]
    assert 0 <= answer["probability_of_deadline"] <= 1
    assert answer["device_hours"] == pytest.approx(answer["devices"] * 24 * answer["days"])
    assert answer["usd"] == pytest.approx(3 * answer["device_hours"])
    assert len(answer["alternatives"]) == 1


def test_flop_is_six_per_parameter_and_token_and_attention(answer):
    # 6 x 8.03e9 x 3e11 = 1.445e22; attention 12 x 32 layers x 4096 x 4096 x 3e11 = 1.9e21.
    assert answer["flop"] == pytest.approx(1.445e22 + 1.93e21, rel=0.04)
    assert [each["exceeded"] for each in answer["thresholds"]] == [False, False]


def test_the_report_stands_alone():
    text = typed(*SMALL, *STACK, "--tokens", "300B", "--deadline", "20d", "--on", "h100-sxm",
                 "--nodes", "2..24")  # fmt: skip
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    for word in ("Rent", "Step", "Time", "Cost", "Energy", "Kept", "Binds", "Next", "FLOP",
                 "1e+25", "rescinded", "Assumed", "on-demand", "providers", "probability"):  # fmt: skip
        assert word in text, word


def test_what_cannot_be_names_the_smallest_change():
    late = ("--tokens", "300B", "--deadline", "1h", "--on", "h100-sxm", "--nodes", "2..4")
    done = CliRunner().invoke(app, [*SMALL, *STACK, *late])
    assert isinstance(done.exception, InfeasibleError)
    assert "keeps the limits" in str(done.exception)
    assert "the fastest there is" in done.output
    assert "--deadline" in done.output


def test_tokens_of_a_budget_and_the_way_back():
    found = data_of("--budget", "100k$", "--on", "h100-sxm", "--nodes", "4", "--price-kind", "3")
    assert found["usd"] == pytest.approx(1e5, rel=0.03)
    assert found["minimised"] == "tokens"
    more = data_of("--budget", "200k$", "--on", "h100-sxm", "--nodes", "4", "--price-kind", "3")
    assert more["tokens"] == pytest.approx(2 * found["tokens"], rel=0.01)


def test_ceiling_diff_and_versus(tmp_path):
    path = tmp_path / "old.json"
    asked = ("--tokens", "100B", "--on", "h100-sxm", "--nodes", "4..8", "--price-kind", "3")
    typed(*SMALL, *STACK, *asked, "-o", str(path))
    text = typed(*SMALL, *STACK, *asked, "--diff", str(path))
    assert "nothing changed" in text
    text = typed(*SMALL, *STACK, *asked[:-1], "4", "--diff", str(path))
    assert "+33.3%" in text
    with pytest.raises(ToleranceError, match="above --fail-over"):
        typed(*SMALL, *STACK, *asked, "--fail-over", "1k$")
    text = typed(*SMALL, *STACK, *asked, "--versus", "network=roce-200")
    assert "faster than network=roce-200 with probability" in text


def test_phases_take_the_time_of_all(tmp_path):
    path = tmp_path / "phases.toml"
    path.write_text(
        'schema = "shardwright/phases@1"\n'
        '[[phases]]\ntokens = "90B"\nseq = 4096\nglobal_batch = 256\n'
        '[[phases]]\nname = "long"\ntokens = "10B"\nseq = 32768\nglobal_batch = 32\n'
    )
    on = ("--on", "h100-sxm", "--nodes", "4")
    both = data_of("--phases", str(path), *on)
    alone = data_of("--tokens", "90B", *on)
    # A tenth more tokens, of longer sequences: more than a ninth longer.
    assert both["days"] > alone["days"] * 10 / 9
    assert "2 phases of 100 B tokens" in " ".join(both["assumptions"])


def test_adapters_are_lighter(answer):
    on = ("--tokens", "100M", "--on", "h100-sxm", "--nodes", "1")
    full = data_of(*on)
    adapters = data_of(*on, "--lora", "16")
    peaks = [x["plan"]["peak_memory_bytes"] for x in (adapters, full)]
    assert peaks[0] < peaks[1]
    assert adapters["days"] < full["days"]
    assert any("adapters of rank 16" in said for said in adapters["assumptions"])


def test_a_device_without_a_price_is_told():
    with pytest.raises(InputError, match="no on-demand price is known"):
        typed(*SMALL, *STACK, "--tokens", "10B", "--on", "rtx-2070-maxq", "--nodes", "1")
