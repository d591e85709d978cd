"""`PowerDraw`: how much of its full power a node draws, and what cooling adds.

Of the file profiles/data/energy/power_draw.toml, made by tools/derive_energy.py.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document
from profiles.sourced import Sourced, SourcedRange

POWER_FILE = Path(__file__).parents[2] / "data" / "energy" / "power_draw.toml"
POWER_SCHEMA = "shardwright/power-draw@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerDraw:
    """Constants of simulator/energy.py.

    rest_share     part of its full power that a node draws in a run that keeps it idle; the rest
                   follows its utilisation. uncertainty  of the power that results
    full_load_mfu  MFU, of the 16-bit peak, from which on a node draws all of it
    pue            power of the site over that of its nodes
    """

    rest_share: Sourced
    full_load_mfu: SourcedRange
    pue: SourcedRange

    def share(self, mfu: float | None) -> float:
        """The part of its full power that a node draws at an MFU; all where none is said."""
        if mfu is None:
            return 1.0
        busy = min(1.0, max(0.0, mfu) / self.full_load_mfu.value)
        return self.rest_share.value + (1.0 - self.rest_share.value) * busy


@functools.cache
def power_draw() -> PowerDraw:
    """The shipped constants."""
    return read_document(POWER_FILE, PowerDraw, schema=POWER_SCHEMA)
