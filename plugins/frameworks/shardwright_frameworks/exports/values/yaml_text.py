"""`yaml_text`: plain values as YAML, in their order."""

from __future__ import annotations

from typing import Any


def yaml_text(data: Any) -> str:
    """Block style, keys in their order."""
    import yaml

    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    return text
