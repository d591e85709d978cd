"""The page of sizes: what to rent for a run, when it is done, what it costs."""

from __future__ import annotations

import datetime

import streamlit as st

from profiles.errors import ShardwrightError
from shardwright.page.asked_fields import command_of, field_named
from shardwright.page.field_errors import FieldErrors
from shardwright.page.shown_brief import draw_command, draw_shown
from shardwright.page.shown_fields import Inputs
from shardwright.page.size_question import SIZE_FIELDS, read_size
from shardwright.page.size_shown import size_shown


def size_page() -> None:
    """Draws the inputs, the command line that asks the same, and the answer: first what to rent,
    then with what the next node or dollar brings."""
    inputs = Inputs(page="size", fields=SIZE_FIELDS)
    inputs.draw()
    command = command_of("size", SIZE_FIELDS, inputs.values)
    inputs.tell(inputs.said)
    draw_command(command)
    answer = st.empty()
    today = datetime.date.today().isoformat()
    try:
        flags = read_size(inputs.values, today=today)
        with st.spinner("Searching devices, nodes and layouts", show_time=True):
            shown = size_shown(flags, today=today, explain=False)
        with answer.container():
            draw_shown(shown, command, stage="first")
        with st.spinner("Solving what one more node or dollar brings", show_time=True):
            shown = size_shown(flags, today=today, explain=True)
    except FieldErrors as error:
        inputs.tell(error.said)
        return
    except ShardwrightError as error:
        inputs.tell([(field_named(SIZE_FIELDS, str(error)), str(error))])
        return
    with answer.container():
        draw_shown(shown, command)
