"""Lines of the form `iteration 5/ 10 | name: value | name: value |`, as in Megatron-LM's logs."""

from __future__ import annotations

import re

ITERATION = re.compile(r"\biteration\s*[:=]?\s*(\d+)\s*/\s*(\d+)\s*\|")


def piped_fields(line: str) -> dict[str, str]:
    """Name -> value of the parts between bars; names in lower case, with spaces for `_`.

    >>> piped_fields(" iteration 5/ 10 | lm_loss: 2.5 | global_batch_size=  8 |")
    {'lm loss': '2.5', 'global batch size': '8'}
    """
    found: dict[str, str] = {}
    for part in line.split("|"):
        colon, equals = part.rfind(": "), part.find("=")
        at = colon if colon > 0 else equals
        if at > 0:
            found[part[:at].strip().lower().replace("_", " ")] = part[at + 1 :].strip()
    return found


def first(fields: dict[str, str], *names: str) -> str | None:
    """The value of the first existing name; for `now/mean` pairs, the first number."""
    for name in names:
        value = fields.get(name)
        if value:
            return value.split("/")[0].strip()
    return None
