"""`plain_values`: a dataclass value for JSON, with every field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def plain_values(value: Any, **keys: str) -> Any:
    """Plain values with null for None, unlike `encode`; `keys` renames fields of the value."""
    if hasattr(value, "__dataclass_fields__"):
        values = {each.name: getattr(value, each.name) for each in fields(value)}
        return {keys.get(name, name): plain_values(each) for name, each in values.items()}
    if isinstance(value, Mapping):
        return {key: plain_values(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [plain_values(item) for item in value]
    return value
