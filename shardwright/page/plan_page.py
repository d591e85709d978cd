"""The plan page: the best plan and runners-up for a model and a cluster."""

from __future__ import annotations

import datetime

import streamlit as st

from profiles.errors import ShardwrightError
from shardwright.page.draw_answer import draw_answer, draw_command
from shardwright.page.field_errors import FieldErrors
from shardwright.page.fields import command_of, field_named
from shardwright.page.inputs import Inputs
from shardwright.page.plan_answer import plan_answer
from shardwright.page.plan_question import PLAN_FIELDS, read_plan


def plan_page() -> None:
    """Draws the inputs, the equivalent command line, and the answer."""
    inputs = Inputs(page="plan", fields=PLAN_FIELDS)
    inputs.draw()
    command = command_of("plan", PLAN_FIELDS, inputs.values)
    inputs.show_errors(inputs.errors)
    draw_command(command)
    try:
        request = read_plan(inputs.values, today=datetime.date.today().isoformat())
        with st.spinner("Searching the layouts", show_time=True):
            answer = plan_answer(request, explain=bool(inputs.values["explain"]))
    except FieldErrors as error:
        inputs.show_errors(error.messages)
        return
    except ShardwrightError as error:
        inputs.show_errors([(field_named(PLAN_FIELDS, str(error)), str(error))])
        return
    draw_answer(answer, command)
