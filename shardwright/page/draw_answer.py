"""Drawing of an answer on a page; templates escape all text from outside."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from planner.layout.layout_answer import LayoutChoice
from shardwright.page.page_answer import PageAnswer
from shardwright.page.step_pictures import step_pictures
from shardwright.reports.brief.brief import Brief
from shardwright.reports.brief.brief_html import brief_html
from shardwright.reports.brief.brief_parts import (
    facts_html,
    pictures_html,
    section_html,
    words_html,
)

_FOLDED = "Assumptions"
# Streamlit's markup element removes SVG.
_PICTURE = st.components.v2.component(
    "shardwright.picture",
    html="<div></div>",
    js="export default function ({ data, parentElement }) "
    "{ parentElement.querySelector('div').innerHTML = data; }",
    isolate_styles=False,
)


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
    drawn = step_pictures(chosen)
    for picture in drawn.pictures:
        _PICTURE(data=pictures_html([picture]), key=f"{stage} {picture.name}")
    st.html(words_html("note", drawn.note))


def _draw_download(brief: Brief, command: str, stage: str) -> None:
    page = brief_html(replace(brief, command=command))
    st.download_button(
        *("Download the report", page, "report.html", "text/html"),
        on_click="ignore",
        key=f"{stage} report",
    )
