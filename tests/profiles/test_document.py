"""Flattened fields of documents: written as keys of the surrounding table, and read back."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from profiles.document import decode, encode, flattened
from profiles.errors import DocumentError, UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    width: int
    depth: int = 1

    @property
    def cells(self) -> int:
        return self.width * self.depth


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    name: str
    size: Size = field(metadata=flattened("width", optional=("cells",), height="depth"))


GRID = Grid(name="a", size=Size(width=3, depth=2))


def test_a_flattened_field_is_keys_of_the_table() -> None:
    assert encode(GRID) == {"name": "a", "width": 3, "cells": 6, "height": 2}
    assert decode(Grid, encode(GRID), where="grid") == GRID


def test_only_optional_keys_may_be_left_out() -> None:
    assert decode(Grid, {"name": "a", "width": 3, "height": 2}, where="grid") == GRID
    with pytest.raises(DocumentError, match="grid: the key 'height' is missing"):
        decode(Grid, {"name": "a", "width": 3}, where="grid")


def test_a_written_property_must_agree_with_the_value() -> None:
    with pytest.raises(DocumentError, match="cells is 7, the other keys give 6"):
        decode(Grid, {"name": "a", "width": 3, "height": 2, "cells": 7}, where="grid")


def test_the_name_of_the_field_is_no_key() -> None:
    with pytest.raises(UnknownNameError, match="size"):
        decode(Grid, {"name": "a", "size": {"width": 3}}, where="grid")
