"""Fields of the plan page, and the request from their values, parsed like the flags of `plan`."""

from __future__ import annotations

from collections.abc import Mapping

from planner.layout.layout_question import context_of
from shardwright.options.plan_options import PlanOptions
from shardwright.options.size_options import SizeOptions
from shardwright.page.fields import Field, FieldErrors, near
from shardwright.page.option_fields import fields_of, read_options
from shardwright.requests.layout_answers import LayoutRequester, stacks_of, why_no_layouts
from shardwright.requests.local_paths import local_profile
from shardwright.requests.plan_request import PlanRequest, plan_request
from shardwright.requests.sizing.size_flags import SizeFlags, size_flags
from shardwright.requests.sizing.size_request import size_request

_EXPLAIN = Field(
    name="explain",
    label="Sensitivity",
    help="solves again with more memory, network and devices; takes a few seconds",
    switch=True,
)
_OF_PLAN = fields_of(PlanOptions)
PLAN_FIELDS = (*_OF_PLAN.values(), _EXPLAIN)


def read_plan(values: Mapping[str, str], *, today: str) -> PlanRequest:
    """The request for the fields' values; `today` is an ISO date. Raises FieldErrors."""
    options = read_options(PlanOptions(), _OF_PLAN, PLAN_FIELDS, values, file_flag="--questions")
    request = near(
        PLAN_FIELDS, "on", lambda: plan_request(options, profile=local_profile(), today=today)
    )
    if why := why_no_layouts(request):
        message = (
            f"{options.model} on {options.on} is planned block by block ({why}), which this page "
            "does not support: choose a framework (--stack), or use the command line"
        )
        raise FieldErrors([("stack" if request.cluster.homogeneous else "on", message)])
    near(PLAN_FIELDS, "stack", lambda: _need_question(request))
    return request


def _need_question(request: PlanRequest) -> None:
    """Raises the errors of the search for an invalid request, before it starts."""
    question, _ = LayoutRequester(request=request).question()
    if len(stacks_of(request.options.stack)) == 1:
        context_of(question)


_OF_SIZE = fields_of(SizeOptions)
SIZE_FIELDS = tuple(_OF_SIZE.values())


def read_size(values: Mapping[str, str], *, today: str) -> SizeFlags:
    """The request for the fields' values; `today` is an ISO date. Raises FieldErrors."""
    options = read_options(SizeOptions(), _OF_SIZE, SIZE_FIELDS, values, file_flag="--cases")
    flags = near(SIZE_FIELDS, "on", lambda: size_flags(options))
    near(SIZE_FIELDS, "on", lambda: size_request(flags, today=today))
    return flags
