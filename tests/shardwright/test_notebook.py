"""Results of the Python API as HTML and as tables."""

from __future__ import annotations

import importlib.util
import sys
from html.parser import HTMLParser
from typing import Any

import pytest

import shardwright as public
from profiles.errors import InputError

WORK = public.Workload(global_batch=32, sequence_length=4096)


class Page(HTMLParser):
    """Tags, attributes and text of a fragment; its tags must close in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def layout() -> Any:
    return public.plan("llama-3.1-8b", "8xh100-sxm", WORK, stack="torchtitan", tp=2, pp=1)


def page_of(result: Any) -> Page:
    """The page of a result that a notebook shows: whole, without scripts, addresses or files."""
    page = Page(result._repr_html_())
    assert page.tags <= {"pre", "span", "code"}
    assert {name for name, _ in page.attributes} <= {"style"}
    assert not any("url(" in (value or "") for _, value in page.attributes)
    assert page.text.split() == str(result).split()
    return page


def test_an_answer_needs_no_file(layout: Any) -> None:
    """An answer of `plan` is predicted and compared without a file."""
    assert isinstance(layout, public.LayoutFile)
    step = public.predict(layout)
    assert step.step_time_s == layout.chosen.prediction.step_time_s
    assert sum(row["time_s"] for row in step.table()) == pytest.approx(step.step_time_s.value)
    assert public.diff(layout, layout).equal
    page_of(step)
    with pytest.raises(InputError, match="which names its devices"):
        public.predict(layout, on="8xh200")
    with pytest.raises(InputError, match="only an imported run, compared with a log"):
        public.compare(layout, "run.json", on="8xh200")
    with pytest.raises(InputError, match="give either a run, or a log"):
        public.compare(layout)


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_a_table_is_a_data_frame(layout: Any) -> None:
    frame = layout.to_pandas()
    assert frame["row"][0] == "chosen"
    assert frame["step_time_s"][0] == layout.chosen.prediction.step_time_s.value
    assert len(frame) == 1 + len(layout.alternatives)


def test_without_pandas_the_message_says_what_to_do(
    layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"pip install 'shardwright\[notebook\]'.*table\(\)"):
        layout.to_pandas()


def test_a_run_is_sized() -> None:
    found = public.size(
        "llama-3.1-8b", "h100-sxm", tokens="5B", deadline="7d", nodes="1", stack="torchtitan"
    )
    page_of(found)
    assert found.best is not None
    (chosen, *_) = found.table()
    assert chosen["row"] == "chosen"
    assert chosen["days"] < 7
    with pytest.raises(InputError, match="--base-precision nf4"):
        public.size("llama-3.1-8b", "h100-sxm", tokens="5B", base_precision="nf4")
    with pytest.raises(InputError, match="--deadline"):
        public.size("llama-3.1-8b", "h100-sxm", tokens="20B", deadline="soon")
