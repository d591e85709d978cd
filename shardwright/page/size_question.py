"""Fields of the size page, and the request from their values, parsed like the flags of `size`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from profiles.hardware.prices.price_file import offers_with
from shardwright.options.size_options import SizeOptions
from shardwright.page.field_errors import FieldErrors, near, need_no_code, need_options
from shardwright.page.fields import typed_values
from shardwright.page.option_fields import fields_of, options_from
from shardwright.requests.sizing.size_flags import SizeFlags, size_flags
from shardwright.requests.sizing.size_request import size_request
from simulator.goodput.reliability_inputs import read_reliability

_OF_SIZE = fields_of(SizeOptions)
SIZE_FIELDS = tuple(_OF_SIZE.values())


def read_size(values: Mapping[str, str], *, today: str) -> SizeFlags:
    """The request for the fields' values; `today` is an ISO date. Raises FieldErrors."""
    typed = typed_values(SIZE_FIELDS, values)
    need_options(SIZE_FIELDS, typed)
    for name in ("model", "on"):
        if not typed[name]:
            raise FieldErrors([(name, "give MODEL and --on, or --cases FILE")])
    near(SIZE_FIELDS, "model", lambda: need_no_code(typed["model"]))
    options = options_from(SizeOptions(), _OF_SIZE, typed)
    if options.prices is not None:
        near(SIZE_FIELDS, "prices", partial(offers_with, options.prices))
    if options.reliability is not None:
        near(SIZE_FIELDS, "reliability", partial(read_reliability, options.reliability))
    flags = near(SIZE_FIELDS, "on", lambda: size_flags(options))
    near(SIZE_FIELDS, "on", lambda: size_request(flags, today=today))
    return flags
