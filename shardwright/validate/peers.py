"""What other tools reach or claim on published runs, with citations.

`run` figures were made by running the tool's release on the rows that it or others published;
`claimed` ones are the authors'. Row counts tell whether they cover all rows or those of one table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An error that a tool reaches on rows of `source` (`groups.source_of`), or "" for its own."""

    tool: str
    source: str
    rows: str
    error: str
    how: str
    citation: str


_CALCULON = "Isaev et al., SC23, https://github.com/calculon-ai/calculon (1.1)"
_VTRAIN = "Bang et al. 2023, arXiv 2312.12391; KAIST's announcement of vTrain, 2025"
_VTRAIN_ROWS = "https://github.com/VIA-Research/vTrain data/ground_truth_*.csv"

PEERS = (
    Peer(
        tool="SimuMax 1.2",
        source="simumax-b200",
        rows="43 rows of its own B200 table",
        error="time 5.62 % mean absolute (42 of 43 too fast), memory 0.46 %",
        how="run",
        citation="https://github.com/MooreThreads/SimuMax docs/b200 (release 1.2)",
    ),
    Peer(
        tool="Calculon 1.1",
        source="korthikanti-tab5",
        rows="8 rows, the ones that it was tuned on",
        error="time 3.65 % mean absolute, 8.9 % at worst",
        how="run",
        citation=_CALCULON,
    ),
    Peer(
        tool="Calculon 1.1, uncalibrated",
        source="vtrain-multi",
        rows="109 rows",
        error="time 19.6 % mean absolute",
        how="run",
        citation=f"{_CALCULON} on {_VTRAIN_ROWS}",
    ),
    Peer(
        tool="Calculon 1.1, uncalibrated",
        source="vtrain-single",
        rows="1,440 rows",
        error="time 38.9 % mean absolute",
        how="run",
        citation=f"{_CALCULON} on {_VTRAIN_ROWS}",
    ),
    Peer(
        tool="vTrain",
        source="vtrain-multi",
        rows="109 rows, its own",
        error="time 14.73 % mean absolute",
        how="claimed",
        citation=_VTRAIN,
    ),
    Peer(
        tool="vTrain",
        source="vtrain-single",
        rows="1,440 rows, its own",
        error="time 8.37 % mean absolute",
        how="claimed",
        citation=_VTRAIN,
    ),
    Peer(
        tool="15-term least-squares fit",
        source="vtrain-multi",
        rows="109 rows, 5-fold",
        error="time 6.9 % mean absolute (12.4 % with a model size left out)",
        how="run",
        citation=f"non-negative least squares on {_VTRAIN_ROWS}",
    ),
    Peer(
        tool="15-term least-squares fit",
        source="vtrain-single",
        rows="1,440 rows, 5-fold",
        error="time 8.2 % mean absolute",
        how="run",
        citation=f"non-negative least squares on {_VTRAIN_ROWS}",
    ),
    Peer(
        tool="RAPID-LLM",
        source="ultra",
        rows="Ultra-Scale sweep",
        error="95 % of fits-or-fails right",
        how="claimed",
        citation="Karfakis et al. 2025, arXiv 2512.19606",
    ),
    Peer(
        tool="Charon",
        source="",
        rows="its own clusters",
        error="time 5.35 % overall, 3.74 % training",
        how="claimed",
        citation="Yang et al., MLSys 2026, arXiv 2605.17164",
    ),
    Peer(
        tool="Maya",
        source="",
        rows="its own, up to 64 H100",
        error="time below 5 %; choices within 5 % of the measured best",
        how="claimed",
        citation="Yarlagadda et al., EuroSys 2026, arXiv 2503.20191",
    ),
)
