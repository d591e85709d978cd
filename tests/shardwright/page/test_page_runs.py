"""The pages as Streamlit runs them, without a browser: they say what the command line says."""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiles.units import format_percent, format_time
from shardwright.cli import app
from shardwright.reports.brief.brief import between

pytest.importorskip("streamlit", reason="the page needs the extra [ui]")
from streamlit.testing.v1 import AppTest

# A small question, so that its search takes tenths of a second.
PLAN = {"model": "llama-3.1-8b", "on": "2x8xh100-sxm", "global-batch": "64", "seq": "4096"}
PLAN |= {"cp": "1", "recompute": "none"}
SIZE = {"on": "h100-sxm", "nodes": "4", "tokens": "100B", "deadline": ""}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def opened(page: str, **address: str) -> AppTest:
    """A page under an address, as it is drawn first."""
    script = f"from shardwright.page.{page}_page import {page}_page\n{page}_page()"
    made = AppTest.from_string(script, default_timeout=120)
    for name, value in address.items():
        made.query_params[name] = value
    found = made.run()
    assert not found.exception
    return found


def said(page: AppTest) -> str:
    """The page's own texts in one line, as a reader sees them."""
    bodies = " ".join(element.proto.body for element in page.get("html"))
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", bodies)).split())


def faults(page: AppTest) -> list[str]:
    bodies = [element.proto.body for element in page.get("html")]
    found = [re.search(r'role="alert">(.*?)</p>', body, re.DOTALL) for body in bodies]
    return [html.unescape(each[1]) for each in found if each]


def typed(page: AppTest) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of the page's own command line."""
    words = shlex.split(page.code[0].value)
    assert words.pop(0) == "shardwright"
    done = CliRunner().invoke(app, [*words, "--json"])
    return done.exit_code, done.stdout, str(done.exception)


def test_a_plan_and_one_change_of_it() -> None:
    page = opened("plan", **PLAN)
    for nodes in (2, 3):
        if nodes == 3:
            page = page.number_input[0].set_value(3).run()
            assert page.text_input(key="plan on").value == "3x8xh100-sxm"
            assert page.query_params["on"] == "3x8xh100-sxm"
        status, stdout, _ = typed(page)
        assert status == 0
        found, text = json.loads(stdout), said(page)
        assert f"Step {format_time(found['step_time_s'])} " in text
        assert f"MFU {format_percent(found['mfu'])} " in text
        ends = found["step_time_low_s"], found["step_time_high_s"]
        assert between(*ends, format_time) in text
        assert len(found["alternatives"]) == 3
        for other in found["alternatives"]:
            assert f" {format_time(other['step_time_s'])} [" in text
        assert found["price_usd_per_hour"]["source"] in text
    pictures = [element.proto.json for element in page.get("bidi_component")]
    assert sum("<svg" in each for each in pictures) == 3
    assert all("<rect" in each or "<path" in each for each in pictures)


def test_a_size_says_what_the_command_line_says() -> None:
    page = opened("size", **SIZE)
    status, stdout, _ = typed(page)
    assert status == 0
    found, text = json.loads(stdout), said(page)
    assert found["devices"] == 32
    assert f"Time {found['days']:.3g} days " in text
    assert f"Step {format_time(found['step_time_s'])} " in text
    assert f"{found['usd_per_device_hour']:.2f} per device-hour ({found['price']})" in text
    assert "Productive share of the time" in text
    assert "Effect of single changes" in text


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("plan", {"model": "llama-9"}),
        ("plan", {"on": "16x8xh1000"}),
        ("plan", {"global-batch": "many"}),
        ("plan", {"pareto": "moon"}),
        ("plan", {"tp": "3", **PLAN}),
        ("size", {"tokens": "15TB"}),
        ("size", {"region": "atlantis"}),
        ("size", {"price-kind": "cheap"}),
    ],
)
def test_errors_are_those_of_the_command_line(name: str, address: dict[str, str]) -> None:
    page = opened(name, **address)
    (text,) = faults(page)
    if address.get("pareto"):  # the page has gone back to the best plan
        said_there = CliRunner().invoke(app, ["plan", "gpt2", "--pareto", "moon"]).output
        text = text.removeprefix("Invalid value for '--pareto': ")
    else:
        status, _, said_there = typed(page)
        assert status != 0
    assert " ".join(text.split()) in " ".join(said_there.split())
    # The page stays usable: the right value gives an answer or the next error.
    assert page.text_input


def test_nothing_that_an_address_holds_becomes_markup() -> None:
    page = opened("plan", model="<img src=x onerror=alert(1)>", on="[a](http://x.y)", zz="<b>")
    bodies = "".join(element.proto.body for element in page.get("html"))
    assert "<img" not in bodies
    assert "<b>" not in bodies
    assert len(faults(page)) == 2
    assert "unknown parameter &#39;zz&#39;" in bodies


def test_what_does_not_fit_says_so_and_what_would() -> None:
    page = opened("plan", **(PLAN | {"model": "llama-3.1-70b", "on": "4xh100-sxm"}))
    (text,) = faults(page)
    _, _, said_there = typed(page)
    assert text == said_there
    assert text == "no layout of llama-3.1-70b fits on 4xh100-sxm with megatron-core"
    assert "with this change a plan fits" in said(page)
