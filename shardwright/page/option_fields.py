"""Input fields of the pages from declared options (shardwright/options)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from planner.sizing.size_question import MINIMISED
from profiles.hardware.catalogue.catalog import link_names
from profiles.hardware.energy.grid_carbon import grids
from profiles.hardware.prices.offer import KINDS
from profiles.model.loaders import model_names
from shardwright.options.option import options_of, values_of
from shardwright.options.plan_options import PlanOptions
from shardwright.options.size_options import SizeOptions
from shardwright.page.field_errors import near
from shardwright.page.fields import Field
from shardwright.requests.plan_choices import ANY_STACK
from simulator.training_run.framework.framework import offered_frameworks

Options = TypeVar("Options", PlanOptions, SizeOptions)
STACKS = tuple(dict.fromkeys(("megatron-core", ANY_STACK, *offered_frameworks())))
"""Frameworks to choose from."""
_LISTED = {
    "model": model_names(),
    "stack": ("", *STACKS),
    "price": KINDS,
    "minimise": ("", *MINIMISED),
    "network": ("", *link_names()),
    "region": ("", *grids()),
}
"""Values to select that are files of the project."""


def fields_of(record: type) -> dict[str, Field]:
    """The fields of the options that a page offers, by the options' names, in their order."""
    return {
        each.name: Field(
            name=each.flag.removeprefix("--"),
            label=each.page.label,
            usual=each.default if isinstance(each.default, str) else "",
            start=each.page.start,
            help=each.page.help or each.help,
            options=each.page.choices or _LISTED.get(each.name, ()),
            empty=each.page.empty,
            fixed=bool(each.choices),
            argument=each.argument,
            counted=each.page.counted,
            more=each.page.more,
        )
        for each in options_of(record)
        if each.page is not None
    }


def options_from(
    options: Options, fields: Mapping[str, Field], values: Mapping[str, str]
) -> Options:
    """The options with the values of the fields; raises FieldErrors."""
    record = type(options)
    for name, field in fields.items():
        texts = {name: values[field.name]}
        read = near(tuple(fields.values()), field.name, partial(values_of, record, texts))
        options = replace(options, **read)
    return options
