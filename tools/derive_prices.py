"""Derives our small price table from a table of dated offers.

    python -m tools.derive_prices PRICES.csv

Only dated rows are used (an undated snapshot must not be pooled with them); per device and kind of
price: median, half the inter-quartile range over the median, offers, providers, first and last
date.
"""

from __future__ import annotations

import csv
import io
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from profiles.document import write_text
from profiles.hardware.catalogue.catalog import device_names
from profiles.hardware.catalogue.prices import PRICE_FILE

COLUMNS: tuple[str, ...] = (
    "device",
    "kind",
    "median_usd_per_hour",
    "half_spread",
    "offers",
    "providers",
)
COLUMNS += ("first_date", "last_date", "source")
_YEAR = "2026"


def derive(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """One row per device of ours and kind of price, from this year's dated offers."""
    known = set(device_names())
    offers: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        if row["device"] in known and row["date"].startswith(_YEAR):
            offers[(row["device"], row["kind"])].append(row)
    table = []
    for (device, kind), found in sorted(offers.items()):
        prices = np.asarray([float(row["usd_per_device_hour"]) for row in found])
        low, median, high = (float(q) for q in np.quantile(prices, (0.25, 0.5, 0.75)))
        dates = sorted(row["date"] for row in found)
        providers = sorted({row["provider"] for row in found})
        table.append(
            {
                "device": device,
                "kind": kind,
                "median_usd_per_hour": f"{median:.4g}",
                "half_spread": f"{(high - low) / 2 / median:.3f}",
                "offers": str(len(found)),
                "providers": str(len(providers)),
                "first_date": dates[0],
                "last_date": dates[-1],
                "source": f"price lists of {' '.join(providers)}",
            }
        )
    return table


def main(path: Path) -> None:
    """Write the price table."""
    with path.open(encoding="utf-8", newline="") as stream:
        table = derive(list(csv.DictReader(stream)))
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    write_text(PRICE_FILE, text.getvalue())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
