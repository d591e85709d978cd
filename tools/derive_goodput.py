"""Makes profiles/data/calibration/goodput.toml: failure rates and the contingency of whole runs.

    python -m tools.derive_goodput CASES.csv

Failure rates are from the published clusters below. The contingency is from a table of whole runs
that measures their device-hours: published over predicted without any contingency, of those whose
hours count all that happened, one vote per run; its middle is the median. Runs on the TPUs of
before 2022 have one of their own, drawn towards it as if there were two more such runs at it: their
stacks are older than any that coefficients were fitted on. Each run is also predicted from the
others: the spread and the error are those of that.
"""

from __future__ import annotations

import csv
import datetime
import math
import statistics
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evidence.case_answer import answer_cases
from evidence.published_case import read_cases
from profiles.document import write_text
from simulator.goodput.reliability_inputs import DEFAULT, GOODPUT_FILE, GOODPUT_SCHEMA

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
# Whose whole runs are of other stacks than the fitted ones (Mesh TensorFlow, Pax).
_OLDER = ("tpu-v3", "tpu-v4")
_SAME_CHIP = {"a800": "a100", "h800": "h100"}
# Counts of table 5 of arXiv 2407.21783 by class.
ROOT_CAUSES = {"device": 268, "network": 49, "software": 56, "host": 46}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Published over predicted device-hours of a run;  older  on one of _OLDER."""

    ratio: float
    older: bool


def main() -> None:
    """Derives both and writes the file."""
    (path,) = sys.argv[1:]
    ratios = contingency_ratios(Path(path))
    today = datetime.date.today().isoformat()
    write_text(GOODPUT_FILE, goodput_text(ratios, today))
    print(f"{len(ratios)} runs: " + ", ".join(f"{k} {v.ratio:.3f}" for k, v in ratios.items()))
    print(f"left out in turn: {mean_error(left_out(ratios)):.1%}")


def contingency_ratios(path: Path) -> dict[str, Ratio]:
    """Published over predicted device-hours, by case, of the runs that count all that happened."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = {row["id"]: row for row in csv.DictReader(stream)}
    measured = {name: row["accel_hours"] for name, row in rows.items()}
    # Some hours turn out to be the steady rate times the tokens, whatever their source calls them.
    steady = {name for name, row in rows.items() if "no downtime" in row["flag"]}
    cases = [
        case for case in read_cases(path) if case.counts_downtime and case.run.id not in steady
    ]
    plain = replace(DEFAULT, contingency=1.0, contingency_spread=1.0)
    answers = answer_cases(cases, clock=time.monotonic, inputs=plain)
    found = {}
    for answer in answers:
        made = answer.prediction
        if made.device_hours is not None and made.run is not None and measured[made.id]:
            ratio = float(measured[made.id]) / made.device_hours.value
            found[made.id] = Ratio(ratio=ratio, older=made.run.device.startswith(_OLDER))
    return found


def middles(ratios: Collection[Ratio]) -> tuple[float, float]:
    """The contingency of all but the older runs, and that of those."""
    others = [each.ratio for each in ratios if not each.older]
    middle = max(1.0, statistics.median(others))
    older = [math.log(each.ratio) for each in ratios if each.older]
    return middle, math.exp((sum(older) + _PRIOR * math.log(middle)) / (len(older) + _PRIOR))


def left_out(ratios: Mapping[str, Ratio]) -> list[float]:
    """Each ratio over what the others say of it."""
    found = []
    for name, each in ratios.items():
        others = [other for key, other in ratios.items() if key != name]
        found.append(each.ratio / middles(others)[each.older])
    return found


def mean_error(missed: Sequence[float]) -> float:
    """Mean absolute error of what was predicted of them."""
    return statistics.mean(abs(1.0 / ratio - 1.0) for ratio in missed)


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


def goodput_text(ratios: Mapping[str, Ratio], today: str) -> str:
    """The file."""
    hours, spread, miss, devices = failure_rates()
    missed = left_out(ratios)
    spread_90 = math.exp(_HALF_90 * math.sqrt(statistics.mean(math.log(x) ** 2 for x in missed)))
    total = sum(ROOT_CAUSES.values())
    middle, older = middles(ratios.values())
    error = mean_error(missed)
    old = "\n".join(f"{name} = {older:.3g}" for name in _OLDER)
    rates = "\n".join(f"{name} = {value:.4g}" for name, value in sorted(devices.items()))
    shares = "\n".join(f"{name} = {count / total!r}" for name, count in ROOT_CAUSES.items())
    named = "; ".join(source for _, _, source in CLUSTERS)
    return f"""# What interrupts long training runs, and what whole runs took beyond that; read by
# simulator/goodput/reliability_inputs.py. Made by tools/derive_goodput.py.
schema = "{GOODPUT_SCHEMA}"
date = "{today}"

# Device-hours per unexpected interruption of a job. Each cluster left out, the others miss it by a
# factor of {miss:.1f} on average.
[failure_rate]
middle = {hours:.4g}
spread = {spread:.3g}
count = {len(CLUSTERS)}
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
spread = {spread_90:.3g}
count = {len(ratios)}
error = {error:.3g}
method = "median of published over predicted device-hours of whole runs that count all their \
time; of TPUs of before 2022, whose stacks are older than the fitted ones, their own, drawn \
towards it as if there were {_PRIOR} more; spread and error: each run from the others"
source = "whole runs that print their device-hours: {", ".join(ratios)}"

[contingency.devices]
{old}
"""


if __name__ == "__main__":
    main()
