"""The page of plans: one model, one cluster, the best plan and its runners-up."""

from __future__ import annotations

import datetime

import streamlit as st

from profiles.errors import ShardwrightError
from shardwright.page.asked_fields import command_of, field_named
from shardwright.page.field_errors import FieldErrors
from shardwright.page.plan_question import PLAN_FIELDS, read_plan
from shardwright.page.plan_shown import plan_shown
from shardwright.page.shown_brief import draw_command, draw_shown
from shardwright.page.shown_fields import Inputs


def plan_page() -> None:
    """Draws the inputs, the command line that asks the same, and the answer."""
    inputs = Inputs(page="plan", fields=PLAN_FIELDS)
    inputs.draw()
    command = command_of("plan", PLAN_FIELDS, inputs.values)
    inputs.tell(inputs.said)
    draw_command(command)
    try:
        request = read_plan(inputs.values, today=datetime.date.today().isoformat())
        with st.spinner("Searching the layouts", show_time=True):
            shown = plan_shown(request, explain=bool(inputs.values["explain"]))
    except FieldErrors as error:
        inputs.tell(error.said)
        return
    except ShardwrightError as error:
        inputs.tell([(field_named(PLAN_FIELDS, str(error)), str(error))])
        return
    draw_shown(shown, command)
