"""Saves and loads of a run's states, and the interval between saves that loses least.

Symbols: M mean time between interruptions, d seconds that the run stands still for a save, t
seconds of training between saves. With exponential times between failures a kept interval takes
M e^(R/M) (e^((t+d)/M) - 1) seconds on average, R to restart (Daly, FGCS 22(3), 2006, eq. 20; a
failure may also strike while another is mended). That over t is least where

    (1 - t/M) e^(t/M) = e^(-d/M)

which does not depend on R; for d much less than M it is Young's t = sqrt(2 d M) (CACM 17(9), 1974).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.goodput.reliability_inputs import ReliabilityInputs

_NEWTON_STEPS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Seconds of one save (from its begin until a restart may load it), of the pause in training
    that it makes, and of a load."""

    save_s: float
    pause_s: float
    load_s: float


def checkpoint_of(parameters: float, devices: int, inputs: ReliabilityInputs) -> Checkpoint:
    """What a save and a load of all states takes over the cluster's storage."""
    stored = inputs.checkpoint_bytes_per_parameter * parameters
    write = inputs.storage_write_bytes_per_s or devices * inputs.write_bytes_per_s_per_device
    read = inputs.storage_read_bytes_per_s or devices * inputs.read_bytes_per_s_per_device
    save_s = stored / write
    return Checkpoint(
        save_s=save_s, pause_s=inputs.checkpoint_blocking_share * save_s, load_s=stored / read
    )


def best_interval_s(between_s: float, pause_s: float, save_s: float = 0.0) -> float:
    """Seconds of training between saves that lose least, at least what a save itself takes (the
    next one waits for it).

    >>> round(best_interval_s(11135.0, 2.84))
    250
    """
    if pause_s <= 0:
        return max(save_s, 1.0)
    # f(x) = (x - 1) e^x + e^(-d/M) is convex above 0 and positive at 1: Newton from there comes
    # down to its root.
    end, x = math.exp(-pause_s / between_s), 1.0
    for _ in range(_NEWTON_STEPS):
        x -= ((x - 1) * math.exp(x) + end) / (x * math.exp(x))
        if x <= 0:
            break
    if not x > 0:
        x = math.sqrt(2 * pause_s / between_s)
    return max(x * between_s, save_s)
