"""Fields of the size page, and the request from their values, parsed like the flags of `size`."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.options.size_options import SizeOptions
from shardwright.page.field_errors import near
from shardwright.page.option_fields import fields_of, read_options
from shardwright.requests.sizing.size_flags import SizeFlags, size_flags
from shardwright.requests.sizing.size_request import size_request

_OF_SIZE = fields_of(SizeOptions)
SIZE_FIELDS = tuple(_OF_SIZE.values())


def read_size(values: Mapping[str, str], *, today: str) -> SizeFlags:
    """The request for the fields' values; `today` is an ISO date. Raises FieldErrors."""
    options = read_options(SizeOptions(), _OF_SIZE, SIZE_FIELDS, values, file_flag="--cases")
    flags = near(SIZE_FIELDS, "on", lambda: size_flags(options))
    near(SIZE_FIELDS, "on", lambda: size_request(flags, today=today))
    return flags
