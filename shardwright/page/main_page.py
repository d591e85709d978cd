"""The script that Streamlit runs for every view: style and navigation of the two pages."""

from __future__ import annotations

import streamlit as st

from shardwright.page.plan_page import plan_page
from shardwright.page.size_page import size_page
from shardwright.reports.brief.brief_html import parts_style


def main_page() -> None:
    """Draws the page of the URL."""
    st.set_page_config(page_title="Shardwright", layout="wide")
    st.html(parts_style())
    pages = [
        st.Page(plan_page, title="Plan", url_path="plan", default=True),
        st.Page(size_page, title="Size", url_path="size"),
    ]
    st.navigation(pages, position="top").run()


if __name__ == "__main__":  # Streamlit runs this file as a script
    main_page()
