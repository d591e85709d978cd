"""`SizeAnswer`: what to rent, with its probabilities and the alternatives."""

from __future__ import annotations

from dataclasses import dataclass

from planner.sizing.run_outlook import RunOutlook
from planner.sizing.sizing_search import SizedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A run on the Pareto front of days, dollars, energy and devices; in closed form."""

    device: str
    stack: str
    nodes: int
    devices: int
    layout: str
    step_time_s: float
    days: float
    usd: float | None
    kwh: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Gain of one change, from a search: added days and dollars (below 0: saved)."""

    change: str
    days: float
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """A change of the request with which there is an answer, from a search."""

    change: str
    flag: str
    days: float
    usd: float | None
    devices: int
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeAnswer:
    """The answer.

    status      `optimal`, `feasible` (a limit ended the search: see gap) or `infeasible`
    bound       lower bound on the goal of every run over the listed choices
    others      the best of each other device type
    refused     choices without an answer, with reasons
    frameworks  the best of each compared framework that was not chosen, on the chosen devices
    binds       the limit that the best run meets
    flop        of the whole run
    considered  layouts evaluated or discarded
    """

    status: str
    minimised: str
    bound: float | None = None
    gap: float | None = None
    best: RunOutlook | None = None
    others: tuple[RunOutlook, ...] = ()
    frameworks: tuple[RunOutlook, ...] = ()
    front: tuple[FrontPoint, ...] = ()
    gains: tuple[Gain, ...] = ()
    binds: str = ""
    flop: float = 0.0
    refused: tuple[tuple[str, str], ...] = ()
    relaxations: tuple[Relaxation, ...] = ()
    considered: int = 0
    search_time_s: float = 0.0
    assumptions: tuple[str, ...] = ()


def value_words(run: SizedRun, best: SizedRun) -> str:
    """Difference of a run from the best: `12 % dearer, 8.1 d longer`."""
    said = []
    if run.usd is not None and best.usd:
        said.append(_more(run.usd / best.usd - 1, "dearer", "cheaper"))
    said.append(_more(run.hours / best.hours - 1, "longer", "shorter"))
    said.append(_more(run.kwh / best.kwh - 1, "more energy", "less energy"))
    return ", ".join(word for word in said if word)


def _more(share: float, above: str, below: str) -> str:
    if abs(share) < 5e-3:
        return ""
    return f"{abs(share):.0%} {above if share > 0 else below}"
