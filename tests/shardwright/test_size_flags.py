"""What `size` is typed with: units, ranges, contradictions told together."""

from dataclasses import replace

import pytest

from profiles.errors import DocumentError, InputError, UnitError
from profiles.units import parse_quantity
from shardwright.analysis.size_change import Ceiling, changes_since, read_before, replaced
from shardwright.options.size_options import SizeOptions
from shardwright.requests.sizing.size_flags import batches_of, devices_of, range_of, size_flags
from shardwright.requests.sizing.size_request import size_request

GIVEN = SizeOptions(model="gpt2", on="h100-sxm")


@pytest.mark.parametrize("text", ["20M$", "$20M", "20 M$", "20M USD", "20000k$", "2e7$"])
def test_dollars_may_be_written_so(text):
    assert parse_quantity(text, "money") == 20e6


@pytest.mark.parametrize("text", ["20M", "20", "20M€", "-5M$", "M$"])
def test_what_is_no_money(text):
    with pytest.raises(UnitError, match=r"20M\$, \$20M or 750k\$|not negative"):
        parse_quantity(text, "money", where="--budget")


def test_everything_wrong_is_told_at_once():
    with pytest.raises(InputError) as told:
        size_flags(
            replace(GIVEN, tokens="15TB", deadline="60", budget="20M", nodes="9..3", pue=0.5)
        )
    said = str(told.value)
    for part in ("15TB", "15T, 300B", "--deadline: '60' has no unit", "20M$", "9..3", "--pue 0.5"):
        assert part in said


def test_without_devices_those_that_most_providers_rent_are_compared():
    flags = size_flags(replace(GIVEN, on="", tokens="1B"))
    assert flags.on == ()
    request = size_request(flags, today="2026-11-28")
    names = [choice.device for choice in request.question.choices]
    assert names == ["h100-sxm-80gb", "h200-sxm", "b200-sxm", "a100-sxm-80gb"]
    assert request.assumed[0].startswith("devices h100-sxm,h200,b200,a100-80gb, which most")


def test_contradictions_are_named_together():
    with pytest.raises(InputError) as told:
        size_flags(replace(GIVEN, nodes="4", devices="32", minimise="cost"))
    said = str(told.value)
    assert "--nodes and --devices" in said
    assert "tokens are unknown and nothing limits them" in said
    assert "--minimise cost without --tokens" in said
    # A limit that cannot be read is a limit.
    for given in (replace(GIVEN, budget="5"), replace(GIVEN, deadline="60")):
        with pytest.raises(InputError, match="has no unit") as told:
            size_flags(given)
        assert "tokens are unknown" not in str(told.value)


def test_devices_and_ranges():
    assert [(d.name, d.node_devices) for d in devices_of("h100-sxm, 8xgb200")] == [
        ("h100-sxm", 0),
        ("gb200", 8),
    ]
    assert [(d.name, d.node_devices) for d in devices_of("4090,8x910b")] == [
        ("4090", 0),
        ("910b", 8),
    ]
    found = range_of("16..2,048", "--nodes")
    assert (found.first, found.last) == (16, 2048)
    assert batches_of("512..4096") == (512, 1024, 2048, 4096)
    assert batches_of("1k,3000") == (1000, 3000)
    for wrong in ("", "16x8xh100", "0xh100"):
        with pytest.raises(InputError, match="--on"):
            devices_of(wrong)


def test_what_versus_changes():
    made = replaced(GIVEN, "on=b200; price-kind=spot; pue=1.2")
    assert made == SizeOptions(model="gpt2", on="b200", price="spot", pue=1.2)
    with pytest.raises(InputError, match="Did you mean 'network'"):
        replaced(GIVEN, "netwrok=roce-400")
    with pytest.raises(InputError, match="changes nothing"):
        replaced(GIVEN, "b200")


def test_ceilings_and_changes():
    assert Ceiling("20M$").usd == 20e6
    assert Ceiling("60d").seconds == 60 * 86400
    with pytest.raises(UnitError, match="neither dollars nor time"):
        Ceiling("60")
    found = changes_since({"days": 10.0, "device": "h100"}, {"days": 11.0, "device": "b200"})
    assert [(c.name, c.share and round(c.share, 6)) for c in found] == [
        ("device", None),
        ("days", 0.1),
    ]


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_what_is_no_answer_says_so(text, tmp_path):
    path = tmp_path / "before.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DocumentError, match="answer of size --json"):
        read_before(path)
