"""The page in a headless Chromium: typed at, clicked, read, compared with the command line.

Playwright from the package index drives the Chromium that is installed (`chromium`, or the path in
CHROMIUM); nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profiles.units import format_time, format_usd
from tests.shardwright.test_cli import ROOT

pytestmark = pytest.mark.browser
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium is installed (CHROMIUM names one)", allow_module_level=True)
pytest.importorskip("streamlit", reason="the page needs the extra [ui]")
playwright = pytest.importorskip("playwright.sync_api", reason="Playwright drives the browser")

SMALL = "model=llama-3.1-8b&on=2x8xh100-sxm&global-batch=64&seq=4096&cp=1&recompute=none"
WIDTHS = (1440, 1024, 390)
WAIT_MS = 60_000


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("cache")
    return dict(os.environ, PYTHONPATH=str(ROOT), XDG_CACHE_HOME=str(folder))


@pytest.fixture(scope="module")
def site(environment: dict[str, str]) -> Iterator[str]:
    """The address of a page that `shardwright ui` serves, ended with SIGTERM."""
    port = free_port()
    words = [sys.executable, "-m", "shardwright", "ui", "--port", str(port)]
    server = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    address = f"http://127.0.0.1:{port}"
    end = time.monotonic() + 90
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/_stcore/health", timeout=5).close()
            break
        except OSError:
            time.sleep(0.2)
    yield address
    server.terminate()
    _, complained = server.communicate(timeout=30)
    assert server.returncode == 0, complained
    assert "Traceback" not in complained


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def view(chromium: Any) -> Iterator[Any]:
    """A tab that fails where anything is asked of another host."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    tab, foreign = context.new_page(), []

    def watched(request: Any) -> None:
        if not re.match(r"(https?|ws)://127\.0\.0\.1:|data:|blob:", request.url):
            foreign.append(request.url)

    tab.on("request", watched)
    tab.set_default_timeout(WAIT_MS)
    yield tab
    context.close()
    assert foreign == []


def fact(tab: Any, name: str) -> str:
    """The value of one of the large numbers."""
    found = tab.locator(".fact", has=tab.locator(f"span:text-is('{name}')")).locator("b")
    return str(found.first.inner_text())


def command(tab: Any) -> str:
    return str(tab.locator("[data-testid=stCode] code").inner_text()).strip()


def answer(line: str, environment: dict[str, str]) -> dict[str, Any]:
    """What the command line of the page says, in a process of its own."""
    words = [sys.executable, "-m", *shlex.split(line), "--json"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def settled(tab: Any, words: str) -> None:
    """Waits until the command line holds the words and the page has drawn its last part."""
    tab.wait_for_function(
        "words => document.querySelector('[data-testid=stCode]')?.innerText.includes(words)"
        " && !document.querySelector('[data-testid=stSpinner], [data-stale=true]')"
        " && document.querySelector('[data-testid=stDownloadButton], .fault')",
        arg=words,
    )


def test_a_plan_is_typed_and_read(view: Any, site: str, environment: dict[str, str]) -> None:
    view.goto(f"{site}/?{SMALL}")
    settled(view, "--on 2x8xh100-sxm")
    first = fact(view, "Step")
    # By the keyboard alone: into the field, a new value, Enter.
    view.get_by_label("Cluster", exact=True).focus()
    view.keyboard.press("Control+A")
    view.keyboard.type("3x8xh100-sxm")
    view.keyboard.press("Enter")
    settled(view, "--on 3x8xh100-sxm")
    found = answer(command(view), environment)
    assert fact(view, "Step") == format_time(found["step_time_s"]) != first
    price = found["usd_per_million_tokens"]
    assert fact(view, "Cost per million tokens without failures") == format_usd(price)
    assert found["price_usd_per_hour"]["source"] in view.locator("body").inner_text()
    assert "on=3x8xh100-sxm" in view.url
    rows = view.locator("table.cards").first.locator("tbody tr")
    assert rows.count() == 1 + len(found["alternatives"])
    assert view.locator("svg#timeline path, svg#timeline rect").count() > 10
    assert "GiB for training" in view.locator("svg#memory").text_content()
    # A step with the mouse; then the browser's Back, and the address as a link.
    shared = view.url
    view.get_by_test_id("stNumberInputStepUp").click()
    settled(view, "--on 4x8xh100-sxm")
    assert fact(view, "Step") != format_time(found["step_time_s"])
    for go in (view.go_back, lambda: view.goto(shared)):
        go()
        settled(view, "--on 3x8xh100-sxm")
    assert fact(view, "Step") == format_time(found["step_time_s"])
    # A framework that is typed into the list, and the trade-off against memory.
    view.get_by_role("combobox", name="Framework").fill("nanotron")
    view.keyboard.press("Enter")
    settled(view, "--stack nanotron")
    assert fact(view, "Step") == format_time(answer(command(view), environment)["step_time_s"])
    view.get_by_role("combobox", name="Answer").click()
    view.get_by_role("option", name="memory").click()
    settled(view, "--pareto memory")
    points = answer(command(view), environment)["front"]
    assert view.locator("svg#front path.mark").count() >= len(points)
    assert fact(view, "Step") == format_time(points[0]["step_time_s"])


def test_a_size_is_typed_and_read(view: Any, site: str, environment: dict[str, str]) -> None:
    view.goto(f"{site}/size?on=h100-sxm&nodes=4&tokens=100B&deadline=")
    settled(view, "--tokens 100B")
    view.get_by_role("textbox", name="Tokens of the run").fill("50B")
    view.keyboard.press("Enter")
    settled(view, "--tokens 50B")
    view.wait_for_selector("text=Effect of single changes")
    found = answer(command(view), environment)
    assert fact(view, "Time") == format_time(found["days"] * 86400)
    assert fact(view, "Cost") == format_usd(found["usd"])
    assert found["price"] in view.locator("body").inner_text()
    assert view.locator("svg#completion").count() == 1
    assert "tokens=50B" in view.url
    # The other page and back: what was typed is kept.
    view.get_by_role("link", name="Plan").click()
    settled(view, "shardwright plan")
    view.get_by_role("link", name="Size").click()
    settled(view, "--tokens 50B")


def test_errors_stand_at_their_fields_and_the_page_goes_on(view: Any, site: str) -> None:
    view.goto(f"{site}/?{SMALL}&on=16x8xh1000&tokns=1T")
    settled(view, "h1000")
    near = view.locator("[data-testid=stColumn]", has=view.get_by_label("Cluster", exact=True))
    assert "unknown device 'h1000'" in near.get_by_role("alert").inner_text()
    assert "unknown parameter 'tokns'" in view.locator("body").inner_text()
    view.get_by_label("Cluster", exact=True).fill("2x8xh100-sxm")
    view.keyboard.press("Enter")
    settled(view, "--on 2x8xh100-sxm")
    assert view.locator("[role=alert] >> visible=true").count() == 0
    assert fact(view, "Step")
    assert "tokns" not in view.url


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overflows(view: Any, site: str, width: int, tmp_path: Path) -> None:
    view.set_viewport_size({"width": width, "height": 900})
    view.goto(f"{site}/?{SMALL}")
    settled(view, "--on 2x8xh100-sxm")
    view.wait_for_selector("svg#front")
    wide = view.evaluate(
        "() => [...document.querySelectorAll('[data-testid=stMain] *')].filter(e =>"
        " !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 1"
        " && e.getBoundingClientRect().width > 0).map(e => e.tagName + '.' + e.className)"
    )
    assert wide == []
    picture = tmp_path / "page.png"
    view.screenshot(path=picture)
    assert picture.stat().st_size > 20_000
