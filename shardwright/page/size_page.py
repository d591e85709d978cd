"""The size page: devices to rent for a run, with its duration and cost."""

from __future__ import annotations

import datetime

import streamlit as st

from profiles.errors import ShardwrightError
from shardwright.page.draw_answer import draw_answer, draw_command
from shardwright.page.field_errors import FieldErrors
from shardwright.page.fields import command_of, field_named
from shardwright.page.inputs import Inputs
from shardwright.page.size_answer import size_answer
from shardwright.page.size_question import SIZE_FIELDS, read_size


def size_page() -> None:
    """Draws the inputs, the equivalent command line, and the answer: first the devices to rent,
    then again with the gain of one more node or dollar."""
    inputs = Inputs(page="size", fields=SIZE_FIELDS)
    inputs.draw()
    command = command_of("size", SIZE_FIELDS, inputs.values)
    inputs.show_errors(inputs.errors)
    draw_command(command)
    place = st.empty()
    today = datetime.date.today().isoformat()
    try:
        flags = read_size(inputs.values, today=today)
        with st.spinner("Searching devices, nodes and layouts", show_time=True):
            answer = size_answer(flags, today=today, explain=False)
        with place.container():
            draw_answer(answer, command, stage="first")
        with st.spinner("Solving with one more node or dollar", show_time=True):
            answer = size_answer(flags, today=today, explain=True)
    except FieldErrors as error:
        inputs.show_errors(error.messages)
        return
    except ShardwrightError as error:
        inputs.show_errors([(field_named(SIZE_FIELDS, str(error)), str(error))])
        return
    with place.container():
        draw_answer(answer, command)
