"""Input fields of the pages from declared options (shardwright/options)."""

from __future__ import annotations

from profiles.hardware.prices.offer import KINDS
from profiles.model.loaders import model_names
from shardwright.options.option import options_of
from shardwright.options.plan_options import PlanOptions
from shardwright.page.fields import Field
from shardwright.requests.plan_choices import ANY_STACK
from simulator.training_run.framework.framework import offered_frameworks

STACKS = tuple(dict.fromkeys(("megatron-core", ANY_STACK, *offered_frameworks())))
"""Frameworks to choose from."""
_LISTED = {"model": model_names(), "stack": ("", *STACKS), "price": KINDS}
"""Values to select that are files of the project."""


def fields_of(record: type) -> dict[str, Field]:
    """The fields of the options that a page offers, by their names, in the order of `record`."""
    return {
        each.name.replace("_", "-"): Field(
            name=each.name.replace("_", "-"),
            label=each.page.label,
            usual=each.default if isinstance(each.default, str) else "",
            start=each.page.start,
            help=each.page.help or each.help,
            options=each.page.choices or _LISTED.get(each.name, ()),
            empty=each.page.empty,
            fixed=bool(each.choices),
            argument=each.argument,
            counted=each.name == "on",
            more=each.page.more,
        )
        for each in options_of(record)
        if each.page is not None
    }


OF_PLAN = fields_of(PlanOptions)
"""The fields of `plan`."""
