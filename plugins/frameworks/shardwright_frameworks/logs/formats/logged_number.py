"""Numbers as logs print them: decimal points or commas, thousands separators, suffixes K and M."""

from __future__ import annotations

import math

NUMBER = r"[-+]?(?:\d[\d.,]*(?:[eE][-+]?\d+)?|nan|NaN|inf|Infinity)"
"""Regular expression of the numbers that `number` reads, without a suffix."""

_SUFFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


def number(text: str, *, grouped: bool = False) -> float | None:
    """The number in a text, None if there is none.

    A comma alone is a decimal comma (`5361,6`), unless there are several (`1,234,567`) or `grouped`
    marks frameworks that write thousands with commas (`3,210`). With a point after it (`1,234.5`)
    it groups thousands, with a point before it (`1.234,5`) it is decimal. A last K, M, G, B or T
    multiplies, as nanotron writes (`11.5K`).

    >>> number("5361,6"), number("3,210", grouped=True), number("1.234,5"), number("11.5K")
    (5361.6, 3210.0, 1234.5, 11500.0)
    """
    text = text.strip().rstrip(",;")
    factor = 1.0
    if text[-1:] in _SUFFIXES and text[:1].isdigit():
        factor, text = _SUFFIXES[text[-1]], text[:-1]
    commas, points = text.count(","), text.count(".")
    if commas and points:
        decimal = max(text.rfind(","), text.rfind("."))
        whole = text[:decimal].replace(",", "").replace(".", "")
        text = f"{whole}.{text[decimal + 1 :]}"
    elif commas:
        text = text.replace(",", "" if grouped or commas > 1 else ".")
    elif points > 1:
        text = text.replace(".", "")
    try:
        return float(text) * factor
    except ValueError:
        return None


def above_zero(text: str | None, *, grouped: bool = False) -> float | None:
    """The number in a text if it is finite and above 0, as times and rates are; otherwise None."""
    found = None if text is None else number(text, grouped=grouped)
    return found if found is not None and found > 0 and math.isfinite(found) else None
