"""Parse quantities with units into SI numbers, and format SI numbers.

In the code all numbers are in SI base units, with the unit in their name. Only this module converts
to other units in text. Decimal prefixes are powers of 1000 (GB, Gb), binary ones of 1024 (GiB).
"""

from __future__ import annotations

import math
import re

from profiles.errors import UnitError

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_UNITS = {
    "bytes": {f"{prefix}B": factor for prefix, factor in {**_DECIMAL, **_BINARY}.items()},
    "time": {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400},
    "count": {**_DECIMAL, "B": 1e9},
    "money": {"$": 1.0, "k$": 1e3, "K$": 1e3, "M$": 1e6, "B$": 1e9},
}
# Groups of three digits may have commas, as in printed numbers: `1,000 d`.
_NUMBER = re.compile(
    r"^\s*([+-]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"\s*([^\s\d]*)\s*$"
)

_EXAMPLE = {
    "bytes": "80GiB or 80GB",
    "time": "30d, 4h or 12ms",
    "count": "1024, 4M or 2T",
    "money": "20M$, $20M or 750k$",
}
# `$20M` and `20 M USD` for `20M$`.
_DOLLARS_FIRST = re.compile(r"^\s*\$\s*(.*?)\s*$")


def parse_quantity(text: str, dimension: str, *, where: str = "", above_0: bool = False) -> float:
    """The SI value of `text` read as a quantity of `dimension`.

    dimension: `bytes`, `time`, `count` or `money` (US dollars). Only a `count` may have no unit.

    Raises UnitError, with `where`, for a missing, unknown or wrong unit and for values that are
    negative, not finite, or 0 with `above_0`.

    >>> parse_quantity("80GiB", "bytes")
    85899345920.0
    >>> parse_quantity("2T", "count")
    2000000000000.0
    >>> parse_quantity("5 M$", "money")
    5000000.0
    """
    place = f"{where}: " if where else ""
    match = _NUMBER.match(_dollars_last(text) if dimension == "money" else text)
    if match is None:
        raise UnitError(
            f"{place}{text!r} is not a quantity; write for example {_EXAMPLE[dimension]}"
        )
    number, unit = float(match.group(1).replace(",", "")), match.group(2)
    factor = _UNITS[dimension].get(unit)
    if factor is None:
        what = f"has the unit {unit!r}" if unit else "has no unit"
        raise UnitError(
            f"{place}{text!r} {what}, expected a quantity of {dimension}; "
            f"write for example {_EXAMPLE[dimension]}"
        )
    value = number * factor
    if not math.isfinite(value) or value < 0:
        raise UnitError(f"{place}{text!r} must be finite and not negative")
    if above_0 and not value:
        raise UnitError(f"{place}{text!r} must be above 0")
    return value


def parse_probability(text: str, *, where: str, example: str = "80%, or 0.8") -> float:
    """A probability between 0 and 1: `80%` or `0.8`; raises UnitError with `where` and `example`.

    >>> parse_probability("80%", where="--sure")
    0.8
    """
    try:
        found = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        raise UnitError(f"{where}: {text!r} is not a probability; write {example}") from None
    if not 0.0 < found < 1.0:
        raise UnitError(f"{where}: {text} must be above 0 and below 1; write {example}")
    return found


def _dollars_last(text: str) -> str:
    """`20M$` for `$20M` and for `20 M USD`."""
    text = re.sub(r"\s*USD\s*$", "$", text)
    found = _DOLLARS_FIRST.match(text)
    return f"{found.group(1)}$" if found else text


def format_bytes(memory_bytes: float) -> str:
    """Bytes in binary units: `71.3 GiB`.

    >>> format_bytes(1536)
    '1.50 KiB'
    """
    return _scaled(memory_bytes, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def format_time(time_s: float) -> str:
    """Seconds in the unit that keeps three digits: `3.42 s`, `12.0 ms`, `4.50 d`.

    >>> format_time(0.0123)
    '12.3 ms'
    """
    magnitude = abs(time_s)
    if magnitude >= 2 * 86400:
        return f"{format_days(time_s / 86400)} d"
    if magnitude >= 2 * 3600:
        return f"{time_s / 3600:.3g} h"
    if magnitude >= 999.5:
        return f"{time_s / 60:.3g} min"
    if magnitude >= 1.0:
        return f"{time_s:.3g} s"
    if magnitude >= 1e-3:
        return f"{time_s * 1e3:.3g} ms"
    return f"{time_s * 1e6:.3g} us"


def format_days(days: float) -> str:
    """Three digits, or whole days: `58.2`, `1,090`.

    >>> format_days(58.21), format_days(2080.4)
    ('58.2', '2,080')
    """
    return f"{days:.3g}" if abs(days) < 999.5 else f"{days:,.0f}"


def format_flop(work_flop: float) -> str:
    """Floating-point operations with a decimal prefix: `1.23 TFLOP`."""
    return _scaled(
        work_flop, 1000.0, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")
    )


def format_rate(bandwidth_bytes_per_s: float) -> str:
    """Bandwidth in decimal bytes: `50.0 GB/s`."""
    return _scaled(bandwidth_bytes_per_s, 1000.0, ("B/s", "kB/s", "MB/s", "GB/s", "TB/s"))


def format_count(count: float) -> str:
    """A count with a decimal prefix: `70.6 B`, `1.02 T`, `512`.

    >>> format_count(70_553_706_496)
    '70.6 B'
    """
    if abs(count) < 1e4:
        return f"{count:.0f}"
    return _scaled(count, 1000.0, ("", "k", "M", "B", "T", "Q"))


def format_usd(price_usd: float) -> str:
    """Dollars: `$0.94`, `$12.3 k`, `$3.10 M`."""
    if abs(price_usd) < 1e3:
        return f"${price_usd:.2f}" if abs(price_usd) >= 0.1 else f"${price_usd:.3g}"
    return "$" + _scaled(price_usd, 1000.0, ("", "k", "M", "B", "T"))


def format_energy(kwh: float) -> str:
    """Kilowatt-hours: `22.7 kWh`, `1.31 GWh`."""
    return _scaled(kwh * 1e3, 1000.0, ("Wh", "kWh", "MWh", "GWh", "TWh"))


def format_percent(fraction: float) -> str:
    """A fraction as per cent: `41 %`, `1.8 %`."""
    percent = fraction * 100.0
    return f"{percent:.0f} %" if abs(percent) >= 10 else f"{percent:.1f} %"


def format_probability(probability: float | None) -> str:
    """`91 %`, `> 99 %` and `< 1 %` beyond those, a dash for None."""
    if probability is None:
        return "-"
    if probability > 0.99:
        return "> 99 %"
    return "< 1 %" if probability < 0.01 else format_percent(probability)


def format_tonnes(tonnes: float) -> str:
    """Tonnes: `2.03 kt`, `155 t`, `9.6 kg`."""
    if tonnes < 1:
        return f"{tonnes * 1e3:.3g} kg"
    return f"{tonnes / 1e3:.3g} kt" if tonnes >= 1e3 else f"{tonnes:.3g} t"


def _scaled(value: float, base: float, suffixes: tuple[str, ...]) -> str:
    scaled, index = float(value), 0
    while abs(scaled) >= base * 0.9995 and index < len(suffixes) - 1:
        scaled, index = scaled / base, index + 1
    if index == 0:
        return f"{scaled:.0f} {suffixes[0]}".strip()
    digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
    return f"{scaled:.{digits}f} {suffixes[index]}".strip()
