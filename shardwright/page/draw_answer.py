"""`PageAnswer`: an answer on a page, and its drawing; templates escape all text from outside."""

from __future__ import annotations

from dataclasses import dataclass, replace

import streamlit as st

from planner.layout.layout_answer import LayoutChoice
from profiles.errors import InputError
from shardwright.analysis.layout_timeline import layout_timeline
from shardwright.reports.brief.brief import Brief
from shardwright.reports.brief.brief_html import (
    brief_html,
    facts_html,
    pictures_html,
    section_html,
    words_html,
)
from shardwright.reports.memory_picture import memory_picture
from shardwright.reports.timeline_picture import timeline_note, timeline_picture

_FOLDED = "Assumptions"
_DRAWN = (
    "One replica, with the numbers of its ranks. The memory excludes short-lived tensors and the "
    "allocator's overhead."
)
# Streamlit's markup element removes SVG.
_PICTURE = st.components.v2.component(
    "shardwright.picture",
    html="<div></div>",
    js="export default function ({ data, parentElement }) "
    "{ parentElement.querySelector('div').innerHTML = data; }",
    isolate_styles=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAnswer:
    """A report and its additions.

    chosen  the plan for the pictures of the step, None without one
    notes   notes on the answer
    fault   error message of the command line if nothing fits, otherwise ""
    """

    brief: Brief
    chosen: LayoutChoice | None = None
    notes: tuple[str, ...] = ()
    fault: str = ""


def draw_command(command: str) -> None:
    """The command line with the same answer, to copy."""
    st.html(words_html("note", "The same at the command line:"))
    st.code(command, language="bash", wrap_lines=True)


def draw_answer(answer: PageAnswer, command: str, *, stage: str = "") -> None:
    """Headline, figures, pictures of the step, and the report's sections.

    stage  distinguishes the keys of elements drawn twice in one run of the page
    """
    brief = answer.brief
    if answer.fault:
        st.html(words_html("fault", answer.fault))
    st.html(words_html("headline", brief.headline))
    st.html(words_html("sub", brief.subtitle))
    if brief.facts:
        st.html(facts_html(brief.facts))
    for text in answer.notes:
        st.html(words_html("told", text))
    for number, section in enumerate(brief.sections):
        if section.title.startswith(_FOLDED):
            with st.expander(section.title):
                st.html(section_html(section))
        else:
            st.subheader(section.title, anchor=False)
            if section.pictures:
                _PICTURE(data=pictures_html(section.pictures), key=f"{stage} section {number}")
            st.html(section_html(section))
        if number == 0 and answer.chosen is not None:
            step = st.container()
    _draw_download(brief, command, stage)
    # Last, as it takes the longest.
    if answer.chosen is not None:
        with step:
            _draw_step(answer.chosen, stage)


def _draw_step(chosen: LayoutChoice, stage: str) -> None:
    st.subheader("One step over time, and its memory", anchor=False)
    try:
        step = layout_timeline(chosen)
    except InputError as error:
        st.html(words_html("note", f"No picture of the step: {error}."))
        return
    for picture in (timeline_picture(step.events, (), all_in=""), memory_picture(step, None)):
        _PICTURE(data=pictures_html([picture]), key=f"{stage} {picture.name}")
    st.html(words_html("note", " ".join(filter(None, (_DRAWN, timeline_note(step))))))


def _draw_download(brief: Brief, command: str, stage: str) -> None:
    page = brief_html(replace(brief, command=command))
    st.download_button(
        *("Download the report", page, "report.html", "text/html"),
        on_click="ignore",
        key=f"{stage} report",
    )
