"""User options for the precision and compression of gradients. Their cost: gradient_exchange.py."""

from __future__ import annotations

import re
from dataclasses import dataclass

from profiles.errors import InputError

REDUCTIONS = ("fp32", "bf16")
_NAMED = re.compile(r"^(powersgd|topk)-(\d+(?:\.\d+)?)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """`powersgd` with a rank, or `topk` with the share (0 to 1) of the entries to send."""

    kind: str
    rank: int = 0
    share: float = 0.0


def compression_of(text: str) -> Compression | None:
    """The compression for `powersgd-4` or `topk-0.01`, None for ""; raises InputError."""
    if not text:
        return None
    match = _NAMED.match(text)
    if match is not None:
        kind, number = match[1], float(match[2])
        if kind == "powersgd" and number == int(number) >= 1:
            return Compression(kind=kind, rank=int(number))
        if kind == "topk" and 0 < number <= 1:
            return Compression(kind=kind, share=number)
    raise InputError(
        f"compression {text!r} is unknown: use powersgd-R with a rank R of 1 or more (powersgd-4), "
        "or topk-S with a share S of entries to send, above 0 and at most 1 (topk-0.01)"
    )
