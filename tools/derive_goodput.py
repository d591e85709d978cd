"""Makes profiles/data/calibration/goodput.toml: failure rates and the contingency of whole runs.

    python -m tools.derive_goodput CASES.csv

Failure rates are from the published clusters below. The contingency is from a table of whole runs
that measures their device-hours: published over predicted without any contingency, of those whose
hours count all that happened, one vote per organisation and model; its middle is the median, its
spread that of the logarithms. Each run is also predicted from the others.
"""

from __future__ import annotations

import csv
import datetime
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from profiles.document import write_text
from profiles.published.case import read_cases
from shardwright.findings.case_answer import answer_cases
from simulator.goodput.learned import GOODPUT_FILE, GOODPUT_SCHEMA
from simulator.goodput.reliability_inputs import DEFAULT

_HALF_90 = 1.6448536269514722
# (device, device-hours per unexpected interruption of a job, source).
CLUSTERS = (
    ("h100", 54 * 24 * 16384 / 419, "16,384 H100 (arXiv 2407.21783, section 3.3.4)"),
    ("a100", math.sqrt(12.3e3 * 13.6e3), "992 A100 of OPT (arXiv 2205.01068, and its logbook)"),
    ("a100", 7 * 24 * 384 / math.sqrt(2), "384 A100 of BLOOM (1 to 2 a week, BigScience)"),
    ("a100", 8 * 24 * 1e3 / 6.50, "RSC-1 of A100 (arXiv 2410.21680)"),
    ("a100", 8 * 24 * 1e3 / 2.34, "RSC-2 of A100 (arXiv 2410.21680)"),
    ("h200", 14 * 1600, "1,600 H200 (Crusoe)"),
)
# A device's own clusters count beside so many of any kind: types differ less than clusters.
_PRIOR = 2
_SAME_CHIP = {"a800": "a100", "h800": "h100"}
# Counts of table 5 of arXiv 2407.21783 by class.
ROOT_CAUSES = {"device": 268, "network": 49, "software": 56, "host": 46}


def main() -> None:
    """Derives both and writes the file."""
    (path,) = sys.argv[1:]
    ratios = contingency_ratios(Path(path))
    today = datetime.date.today().isoformat()
    write_text(GOODPUT_FILE, goodput_text(ratios, today))
    print(f"{len(ratios)} runs: " + ", ".join(f"{k} {v:.3f}" for k, v in ratios.items()))
    print(f"left out in turn: {left_out_error(tuple(ratios.values())):.1%}")


def contingency_ratios(path: Path) -> dict[str, float]:
    """Published over predicted device-hours, by case, of the runs that count all that happened."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = {row["id"]: row for row in csv.DictReader(stream)}
    measured = {name: row["accel_hours"] for name, row in rows.items()}
    # Some hours turn out to be the steady rate times the tokens, whatever their source calls them.
    steady = {name for name, row in rows.items() if "no downtime" in row["flag"]}
    cases = [case for case in read_cases(path) if case.counts_downtime and case.id not in steady]
    plain = replace(DEFAULT, contingency=1.0, contingency_spread=1.0)
    answers = answer_cases(cases, clock=time.monotonic, inputs=plain)
    return {
        answer.prediction.id: float(measured[answer.prediction.id])
        / answer.prediction.device_hours.value
        for answer in answers
        if answer.prediction.device_hours is not None and measured[answer.prediction.id]
    }


def left_out_error(ratios: Sequence[float]) -> float:
    """Mean absolute error of each from the median of the others."""
    errors = []
    for place, ratio in enumerate(ratios):
        others = [*ratios[:place], *ratios[place + 1 :]]
        errors.append(abs(statistics.median(others) / ratio - 1))
    return statistics.mean(errors)


def failure_rates() -> tuple[float, float, float, dict[str, float]]:
    """The middle of all clusters, the factor that 90 % lie within, the factor by which the others
    miss one on average, and the middle by device."""
    logs = [math.log(hours) for _, hours, _ in CLUSTERS]
    middle = statistics.mean(logs)
    misses = [abs(x - statistics.mean(logs[:i] + logs[i + 1 :])) for i, x in enumerate(logs)]
    devices = {}
    for name in dict.fromkeys(name for name, _, _ in CLUSTERS):
        own = [math.log(hours) for device, hours, _ in CLUSTERS if device == name]
        devices[name] = math.exp((sum(own) + _PRIOR * middle) / (len(own) + _PRIOR))
    devices |= {name: devices[chip] for name, chip in _SAME_CHIP.items()}
    spread = math.exp(_HALF_90 * statistics.stdev(logs))
    return math.exp(middle), spread, math.exp(statistics.mean(misses)), devices


def goodput_text(ratios: Mapping[str, float], today: str) -> str:
    """The file."""
    hours, spread, miss, devices = failure_rates()
    logs = [math.log(ratio) for ratio in ratios.values()]
    total = sum(ROOT_CAUSES.values())
    middle = max(1.0, statistics.median(ratios.values()))
    error = left_out_error(tuple(ratios.values()))
    rates = "\n".join(f"{name} = {value:.4g}" for name, value in sorted(devices.items()))
    shares = "\n".join(f"{name} = {count / total!r}" for name, count in ROOT_CAUSES.items())
    named = "; ".join(source for _, _, source in CLUSTERS)
    return f"""# What interrupts long training runs, and what whole runs took beyond that; read by
# simulator/goodput/learned.py. Made by tools/derive_goodput.py.
schema = "{GOODPUT_SCHEMA}"
date = "{today}"

# Device-hours per unexpected interruption of a job. Each cluster left out, the others miss it by a
# factor of {miss:.1f} on average.
[failure_rate]
device_hours = {hours:.4g}
spread = {spread:.3g}
clusters = {len(CLUSTERS)}
method = "geometric mean of published clusters, and the factor that 90 % of them lie within; \
a device's own are drawn towards it as if it had {_PRIOR} more"
source = "{named}"

[failure_rate.devices]
{rates}

# Shares of the unexpected interruptions by class of root cause.
[failure_shares]
source = "arXiv 2407.21783, table 5: {total} interruptions of 16,384 H100 in 54 days"
date = "2024-07-31"

[failure_shares.shares]
{shares}

[contingency]
middle = {middle:.3g}
spread = {math.exp(_HALF_90 * statistics.stdev(logs)):.3g}
runs = {len(ratios)}
error = {error:.3g}
method = "median of published over predicted device-hours of whole runs that count all their time, \
and the factor that 90 % of them lie within; error: each run from the others"
source = "whole runs that print their device-hours: {", ".join(ratios)}"
"""


if __name__ == "__main__":
    main()
