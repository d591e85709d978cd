"""Fields of the size page, and the flags from their values, parsed like the flags of `size`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from planner.sizing.size_question import MINIMISED
from profiles.hardware.catalogue.catalog import link_names
from profiles.hardware.energy.grid_carbon import grids
from profiles.hardware.prices.price_file import offers_with
from shardwright.options.read_text import tokens
from shardwright.page.field_errors import FieldErrors, near, need_no_code, need_options, number
from shardwright.page.fields import Field, typed_values
from shardwright.page.option_fields import OF_PLAN, STACKS
from shardwright.requests.sizing.size_flags import SizeFlags, size_flags
from shardwright.requests.sizing.size_request import size_request
from simulator.goodput.reliability_inputs import read_reliability

SIZE_FIELDS = (
    replace(OF_PLAN["model"], start="llama-3.1-8b"),
    Field(
        name="on",
        label="Types of devices",
        start="h100-sxm,b200",
        help="a list: h100-sxm,b200; 8xgb200 for nodes of eight; their number is the answer",
    ),
    Field(
        name="stack",
        label="Framework",
        start="megatron-core",
        help="one, a list with commas, or any (slower); empty: compare those with evidence",
        options=STACKS,
    ),
    Field(
        name="nodes",
        label="Nodes",
        help="32, or 16..2048; empty: the best number, up to 32,768 devices",
    ),
    Field(
        name="tokens",
        label="Tokens of the run",
        start="1T",
        help="15T, 300B, or optimal for the model; empty: as many as the limits allow",
    ),
    Field(name="deadline", label="Deadline", start="30d", help="of the whole run: 60d"),
    Field(name="budget", label="Budget", help="of the whole run: 5M$"),
    replace(OF_PLAN["price"], name="price-kind"),
    Field(
        name="minimise",
        label="Minimize",
        help="empty: dollars, or days if only a budget is given",
        options=("", *MINIMISED),
        empty="the cheapest",
        more=True,
    ),
    Field(
        name="sure",
        label="Confidence",
        usual="50%",
        start="50%",
        help="probability of meeting each limit: 80%",
        more=True,
    ),
    Field(name="devices", label="Devices", help="instead of nodes: 256..32768", more=True),
    Field(
        name="global-batch",
        label="Sequences per step",
        help="2048; a list; 1024..4096; empty: as in published models of this size",
        more=True,
    ),
    replace(OF_PLAN["seq"], start="", more=True),
    replace(
        OF_PLAN["precision"],
        help="of the matrix products; empty: the devices' usual one, bf16 on accelerators",
        options=OF_PLAN["precision"].options[:-1],
    ),
    OF_PLAN["lora"],
    Field(
        name="network",
        label="Link between nodes",
        help="a link of the catalog; empty: each device's usual one",
        options=("", *link_names()),
        empty="the usual one",
        more=True,
    ),
    Field(name="pue", label="PUE", help="of the site: 1.2; empty: as published", more=True),
    Field(
        name="region",
        label="Region of the grid",
        help="for CO2e; empty: the world's average",
        options=("", *grids()),
        empty="the world's average",
        more=True,
    ),
    OF_PLAN["prices"],
    Field(
        name="reliability",
        label="Failures and storage",
        help="path of a file with your own values (docs/goodput.md)",
        more=True,
    ),
)
_TEXTS = (
    *("tokens", "deadline", "budget", "sure", "nodes", "devices", "minimise", "stack"),
    *("global-batch", "precision", "region", "network"),
)


def read_size(values: Mapping[str, str], *, today: str) -> SizeFlags:
    """The flags for the fields' values; `today` is an ISO date. Raises FieldErrors."""
    typed = typed_values(SIZE_FIELDS, values)
    need_options(SIZE_FIELDS, typed)
    for name in ("model", "on"):
        if not typed[name]:
            raise FieldErrors([(name, "give MODEL and --on, or --cases FILE")])
    near(SIZE_FIELDS, "model", lambda: need_no_code(typed["model"]))
    given: dict[str, Any] = {name.replace("-", "_"): typed[name] for name in _TEXTS}
    given |= near(SIZE_FIELDS, "seq", lambda: _numbers(typed))
    for name, read in {"prices": offers_with, "reliability": read_reliability}.items():
        if typed[name]:
            given[name] = near(SIZE_FIELDS, name, partial(_readable, read, Path(typed[name])))
    given["price"] = typed["price-kind"]
    flags = near(SIZE_FIELDS, "on", lambda: size_flags(typed["model"], typed["on"], **given))
    near(SIZE_FIELDS, "on", lambda: size_request(flags, today=today))
    return flags


def _readable(read: Callable[[Path], object], path: Path) -> Path:
    """The path if `read` succeeds; raises the errors of `read`."""
    read(path)
    return path


def _numbers(typed: Mapping[str, str]) -> dict[str, Any]:
    seq, lora, pue = typed["seq"], typed["lora"], typed["pue"]
    return {
        "seq": tokens(seq, "--seq") if seq else None,
        "lora": number("--lora", lora, int) if lora else 0,
        "pue": number("--pue", pue, float) if pue else None,
    }
