"""Fields of the plan page, and the request from their values, parsed like the flags of `plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.layout.layout_question import context_of
from profiles.hardware.prices.price_file import offers_with
from shardwright.console.flags import samples, tokens
from shardwright.page.field_errors import FieldErrors, near, need_no_code, need_options, number
from shardwright.page.fields import Field, typed_values
from shardwright.page.shared_fields import (
    LORA,
    MODEL,
    PRECISION,
    PRICE,
    PRICE_FILE,
    SEQUENCE,
    STACKS,
)
from shardwright.requests.layout_answers import LayoutRequester, stacks_of, why_no_layouts
from shardwright.requests.places import local_profile
from shardwright.requests.plan_flags import plan_request
from shardwright.requests.plan_request import PlanRequest

_PINNED = "a value, or a list of allowed values; empty: chosen by the search"
PLAN_FIELDS = (
    MODEL,
    Field(
        name="on",
        label="Cluster",
        start="16x8xh100-sxm",
        help="nodes x devices of a node x type (16x8xh100-sxm), or the path of a cluster file",
        counted=True,
    ),
    Field(
        name="stack",
        label="Framework",
        start="megatron-core",
        help="a framework, a list with commas, or any; empty: Shardwright's own executor",
        options=("", *STACKS),
        empty="Shardwright's own executor (torch)",
    ),
    Field(
        name="global-batch",
        label="Sequences per step",
        start="1024",
        help="the global batch: 1024, or 4k for 4,000",
    ),
    replace(SEQUENCE, start="8192"),
    PRICE,
    Field(
        name="pareto",
        label="Answer",
        help="the best plan, or the Pareto front: all plans that no other beats in both",
        options=("", "memory", "usd"),
        empty="the best plan",
        fixed=True,
    ),
    Field(
        name="explain",
        label="Sensitivity",
        help="solves again with more memory, network and devices; takes a few seconds",
        switch=True,
    ),
    replace(
        PRECISION,
        help="of the matrix products; a list or any: chosen by the search; empty: the devices' "
        "usual one, bf16 on accelerators",
        options=(*PRECISION.options, "any"),
    ),
    Field(name="tp", label="Tensor parallel", help=_PINNED, more=True),
    Field(name="pp", label="Pipeline stages", help=_PINNED, more=True),
    Field(name="dp", label="Replicas", help=_PINNED, more=True),
    Field(name="cp", label="Context parallel", help=_PINNED, more=True),
    Field(name="ep", label="Expert parallel", help=_PINNED, more=True),
    Field(name="micro-batch", label="Micro-batch", help=_PINNED, more=True),
    Field(name="zero", label="ZeRO stage", help=f"0 to 3; {_PINNED}", more=True),
    Field(name="vpp", label="Stages per rank", help=f"interleaved; {_PINNED}", more=True),
    Field(name="recompute", label="Recompute", help="none, selective, full, or a list", more=True),
    Field(name="schedule", label="Schedule", help="1f1b, interleaved, zb-h1, zbv, ...", more=True),
    Field(
        name="fit-risk",
        label="Out-of-memory risk",
        help="largest allowed probability of running out of memory: 10%",
        more=True,
    ),
    LORA,
    PRICE_FILE,
)


def read_plan(values: Mapping[str, str], *, today: str) -> PlanRequest:
    """The request for the fields' values; `today` is an ISO date. Raises FieldErrors."""
    typed = typed_values(PLAN_FIELDS, values)
    need_options(PLAN_FIELDS, typed)
    for name in ("model", "on"):
        if not typed[name]:
            raise FieldErrors([(name, "give MODEL and --on, or --questions FILE")])
    near(PLAN_FIELDS, "model", lambda: need_no_code(typed["model"]))
    given: dict[str, Any] = {
        name.replace("-", "_"): text or None for name, text in typed.items() if name != "explain"
    }
    given |= near(PLAN_FIELDS, "global-batch", lambda: _counts(typed))
    if typed["prices"]:
        given["prices"] = prices = Path(typed["prices"])
        near(PLAN_FIELDS, "prices", lambda: offers_with(prices))

    def read() -> PlanRequest:
        return plan_request(given, profile=local_profile(), today=today)

    request = near(PLAN_FIELDS, "on", read)
    if why := why_no_layouts(request):
        message = (
            f"{request.model} on {request.on} is planned block by block ({why}), which this page "
            "does not support: choose a framework (--stack), or use the command line"
        )
        raise FieldErrors([("stack" if request.cluster.homogeneous else "on", message)])
    near(PLAN_FIELDS, "stack", lambda: _need_question(request))
    return request


def _need_question(request: PlanRequest) -> None:
    """Raises the errors of the search for an invalid request, before it starts."""
    question, _ = LayoutRequester(request=request).question()
    if len(stacks_of(request.stack)) == 1:
        context_of(question)


def _counts(typed: Mapping[str, str]) -> dict[str, int | float | None]:
    seq, lora = typed["seq"], typed["lora"]
    return {
        "global_batch": samples(typed["global-batch"]) if typed["global-batch"] else None,
        "seq": tokens(seq) if seq else None,
        "lora": number("--lora", lora, int) if lora else None,
    }
