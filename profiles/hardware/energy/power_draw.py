"""`PowerDraw`: power of a node as a share of its full power, and the site's overhead.

From profiles/data/energy/power_draw.toml, made by tools/derive_energy.py.
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

    rest_share     share of the full power of an idle node in a run; the rest is proportional to
                   utilization (with the uncertainty of the resulting power)
    full_load_mfu  MFU, of the 16-bit peak, from which a node draws full power
    pue            power of the site over that of its nodes
    """

    rest_share: Sourced
    full_load_mfu: SourcedRange
    pue: SourcedRange

    def share(self, mfu: float | None) -> float:
        """The share of a node's full power at an MFU; 1 if the MFU is unknown."""
        if mfu is None:
            return 1.0
        busy = min(1.0, max(0.0, mfu) / self.full_load_mfu.value)
        return self.rest_share.value + (1.0 - self.rest_share.value) * busy


@functools.cache
def power_draw() -> PowerDraw:
    """The shipped constants."""
    return read_document(POWER_FILE, PowerDraw, schema=POWER_SCHEMA)
