"""An answer as a page draws it; all text from outside goes through templates that escape it."""

from __future__ import annotations

import streamlit as st

from shardwright.page.shown import Shown
from shardwright.reports.brief.brief import Brief
from shardwright.reports.brief.brief_html import brief_html
from shardwright.reports.brief.brief_parts import (
    facts_html,
    picture_html,
    section_html,
    words_html,
)

_FOLDED = "Assumptions"


def draw_command(command: str) -> None:
    """The command line with the same answer, to copy."""
    st.code(command, language="bash", wrap_lines=True)


def draw_shown(shown: Shown, command: str) -> None:
    """The headline, the figures, the pictures of the step, then the report's sections."""
    brief = shown.brief
    if shown.fault:
        st.html(words_html("fault", shown.fault))
    st.html(words_html("headline", brief.headline))
    st.html(words_html("sub", brief.subtitle))
    if brief.facts:
        st.html(facts_html(brief.facts))
    for text in shown.told:
        st.html(words_html("told", text))
    for number, section in enumerate(brief.sections):
        if section.title.startswith(_FOLDED):
            with st.expander(section.title):
                st.html(section_html(section))
        else:
            st.subheader(section.title, anchor=False)
            st.html(section_html(section))
        if number == 0 and shown.step_note:
            _draw_step(shown)
    _draw_download(brief, command)


def _draw_step(shown: Shown) -> None:
    st.subheader("One step over time, and the memory meanwhile", anchor=False)
    for picture in shown.step:
        st.html(picture_html(picture))
    st.html(words_html("note", shown.step_note))


def _draw_download(brief: Brief, command: str) -> None:
    from dataclasses import replace

    page = brief_html(replace(brief, command=command))
    st.download_button("Download the report", page, "report.html", "text/html", on_click="ignore")
