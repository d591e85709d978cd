"""`KINDS`: the kinds of fitted coefficients, with meaning, starting value and owner."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document

_SCHEMA = "shardwright/coefficient-kinds@1"
_FILE = Path(__file__).parents[3] / "profiles" / "data" / "coefficient_kinds.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of coefficient.

    owner    who has one each: `stack` (a framework), `device and bits` (of the matmuls' data type),
             `attention kernel`, or "" for one value shared by all runs
    start    the physical starting value, its origin in `source`
    spread   prior standard deviation of the logarithm around the start
    between  prior standard deviation of the logarithm between sources: how far one source's value
             lies from the common one, 2 x `spread` if 0. The fit estimates it from here
    least, most   physical limits: a message is never faster than alone, no share exceeds 1
    """

    name: str
    start: float
    spread: float
    meaning: str
    source: str
    owner: str = ""
    between: float = 0.0
    least: float = 0.0
    most: float = math.inf

    def __post_init__(self) -> None:
        if not self.between:
            object.__setattr__(self, "between", 2.0 * self.spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class KindFile:
    """profiles/data/coefficient_kinds.toml."""

    kinds: tuple[Kind, ...]


KINDS = read_document(_FILE, KindFile, schema=_SCHEMA).kinds
BY_NAME = {kind.name: kind for kind in KINDS}
