"""Input fields of the pages from declared options (shardwright/options)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from planner.sizing.size_question import MINIMISED
from profiles.hardware.catalogue.catalog import link_names
from profiles.hardware.energy.grid_carbon import grids
from profiles.hardware.prices.offer import KINDS
from profiles.hardware.prices.price_file import offers_with
from profiles.model.loaders import model_names
from shardwright.options.option import options_of, values_of
from shardwright.options.plan_options import PlanOptions
from shardwright.options.size_options import SizeOptions
from shardwright.page.fields import (
    Field,
    FieldErrors,
    near,
    need_no_code,
    need_options,
    typed_values,
)
from shardwright.requests.plan_choices import ANY_STACK
from simulator.goodput.reliability_inputs import read_reliability
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


def read_options(
    options: Options,
    of_options: Mapping[str, Field],
    fields: Sequence[Field],
    values: Mapping[str, str],
    *,
    file_flag: str,
) -> Options:
    """The options with the values of a page's fields.

    of_options  fields of options (`fields_of`);  fields  all fields of the page
    file_flag   of the command, for the error if the model or the devices are missing

    Raises FieldErrors, also for Python code and for files that cannot be read.
    """
    typed = typed_values(fields, values)
    need_options(fields, typed)
    for name in ("model", "on"):
        if not typed[name]:
            raise FieldErrors([(name, f"give MODEL and --on, or {file_flag} FILE")])
    near(fields, "model", lambda: need_no_code(typed["model"]))
    for name, field in of_options.items():
        texts = {name: typed[field.name]}
        read = near(fields, field.name, partial(values_of, type(options), texts))
        options = replace(options, **read)
    if options.prices is not None:
        near(fields, "prices", partial(offers_with, options.prices))
    if options.reliability is not None:
        near(fields, "reliability", partial(read_reliability, options.reliability))
    return options
