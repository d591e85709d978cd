"""The prices of a SkyPilot catalog (github.com/skypilot-org/skypilot-catalog) as offers.

Its folder has one `<cloud>/vms.csv` per cloud, with `AcceleratorName`, `AcceleratorCount`, `Price`,
`SpotPrice` ($ per hour of the whole instance), `Region` and `GpuInfo` (a Python dictionary as
text), in varying order. Rows have no date; the caller gives that of the commit. Only the cheapest
instance per region, device and kind is used.
"""

from __future__ import annotations

import ast
import csv
import io
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from profiles.errors import DocumentError, InputError
from profiles.hardware.catalogue.catalog import base_of
from profiles.hardware.prices.offer import Offer
from profiles.text_file import read_text

_NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")
# SkyPilot's names that the catalog does not have or has for another device, in lower case.
_DEVICES = {
    "a100": "a100-sxm-40gb",
    "a100-80gb-sxm": "a100-sxm-80gb",
    "h100-mega": "h100-sxm-80gb",
    "h100-nvlink": "h100-sxm-80gb",
    "rtxpro6000s": "rtx-pro-6000",
    "v100-32gb": "v100-sxm2-32gb",
}
# (Name without a form factor, form factor in GpuInfo) -> device.
_FORMS = {
    ("a100", "pcie"): "a100-pcie-40gb",
    ("a100-80gb", "pcie"): "a100-pcie-80gb",
    ("h100", "pcie"): "h100-pcie-80gb",
    ("h100-80gb", "pcie"): "h100-pcie-80gb",
    ("h100", "nvl"): "h100-nvl-94gb",
}
# Names without a form factor; the usual one is assumed, with a note.
_FORM_GUESSED = ("a100", "a100-80gb", "a800", "h100", "h100-80gb", "v100", "v100-32gb")
# TPU slice: device, and units per chip of the number in its name (cores of v4 and v5p, chips of the
# others: cloud.google.com/tpu/docs/v5p and related pages).
_TPUS = {"v4": ("tpu-v4", 2), "v5p": ("tpu-v5p", 2), "v5litepod": ("tpu-v5e", 1)}
_TPUS["v6e"] = ("tpu-v6e", 1)
_SLICE = re.compile(r"^tpu-(\w+)-(\d+)$")
_MEMORY_SLACK = 0.1  # GpuInfo rounds: 81920 MiB for 81559
_LEAST_MIB = 1024.0  # RunPod writes 80 for 80 GiB
_MOST_INFO = 10_000  # characters; a real one has about 130
_SPLIT = re.compile(r"^([a-z]+)(\d.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The offers of a catalog.

    ignored  number of ignored rows by reason;  guessed  notes on assumed form factors
    """

    offers: tuple[Offer, ...]
    ignored: Mapping[str, int]
    guessed: tuple[str, ...] = ()

    @property
    def providers(self) -> tuple[str, ...]:
        """Names of the clouds with an offer."""
        return tuple(sorted({offer.provider for offer in self.offers}))


def read_skypilot(folder: Path, date: str) -> Imported:
    """The offers of a folder such as `catalogs/v8`; `date` is the ISO day of its commit.

    Raises DocumentError for a folder without `vms.csv` and, with file and line, for an unreadable
    row.
    """
    paths = sorted(folder.glob("*/vms.csv"))
    if not paths:
        raise DocumentError(
            f"{folder} has no <cloud>/vms.csv; name the folder of one schema version of a "
            "SkyPilot catalog, for example skypilot-catalog/catalogs/v8"
        )
    offers: dict[tuple[str, ...], Offer] = {}
    ignored: Counter[str] = Counter()
    guessed: dict[str, None] = {}
    for path in paths:
        reader = csv.DictReader(io.StringIO(read_text(path)))
        missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
        if missing:
            raise DocumentError(f"{path}, line 1: the column {missing[0]!r} is missing")
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            try:
                found = _offers(row, path, date, where, guessed)
            except InputError as error:
                if str(error).startswith(where):
                    raise
                raise DocumentError(f"{where}: {error}") from error
            if isinstance(found, str):
                ignored[found] += 1
                continue
            for offer in found:
                key = (offer.provider, offer.region, offer.device, offer.kind)
                known = offers.get(key)
                if known is None or offer.usd_per_device_hour < known.usd_per_device_hour:
                    offers[key] = offer
    return Imported(offers=tuple(offers.values()), ignored=ignored, guessed=tuple(guessed))


def _offers(
    row: Mapping[str, str | None], path: Path, date: str, where: str, guessed: dict[str, None]
) -> list[Offer] | str:
    """The offers of a row, or the reason why it has none; `guessed` collects notes."""
    name = (row["AcceleratorName"] or "").strip()
    instance = (row["InstanceType"] or "").strip()
    count = _number(row, "AcceleratorCount", where)
    if not name or not count:
        return "no accelerator"
    sliced = _SLICE.match(name.lower())
    if sliced:
        device, per_chip = _TPUS.get(sliced.group(1), ("", 1))
        count *= int(sliced.group(2)) / per_chip
    else:
        device = _device(name, row.get("GpuInfo") or "", where, guessed)
    if not device:
        return f"{name} is not in the catalog"
    if not instance and not sliced:
        return "a device without its host, which has a separate row"
    prices = {"on-demand": _number(row, "Price", where), "spot": _number(row, "SpotPrice", where)}
    cloud = path.parent
    return [
        Offer(
            provider=cloud.name,
            region=(row["Region"] or "").strip(),
            instance=instance or name,
            kind=kind,
            device=device,
            usd_per_device_hour=price / count,
            date=date,
            address=f"skypilot-catalog {cloud.parent.name}/{cloud.name}/{path.name}",
        )
        for kind, price in prices.items()
        if price
    ] or "no price"


def _number(row: Mapping[str, str | None], name: str, where: str) -> float:
    """The number of a cell, 0 if the cell is empty or the column is missing."""
    text = (row.get(name) or "").strip()
    if not text:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (math.isfinite(value) and value >= 0):
        raise DocumentError(f"{where}: {name}: expected a number of 0 or more, found {text!r}")
    return value


def _device(name: str, info: str, where: str, guessed: dict[str, None]) -> str:
    """The catalog's name of a GPU, or "" if there is none."""
    key = name.lower()
    if key not in _FORM_GUESSED:
        return _DEVICES.get(key) or _by_alias(key)
    board, memory_mib = _gpu_info(info, where)
    if key == "a100" and memory_mib > 40960 * (1 + _MEMORY_SLACK):
        key = "a100-80gb"
    if key == "v100" and memory_mib > 16384 * (1 + _MEMORY_SLACK):
        key = "v100-32gb"
    for (model, form), device in _FORMS.items():
        if model == key and form in board.lower():
            return device
    found = _DEVICES.get(key) or _by_alias(key)
    if found and "sxm" not in board.lower():
        guessed[f"{name} is taken as {found}: the catalog has no form factor"] = None
    return found


def _by_alias(name: str) -> str:
    """The catalog's name: `rtx-4090` for `RTX4090`, `a6000` for `RTXA6000`."""
    split = _SPLIT.match(name)
    dashed = f"{split.group(1)}-{split.group(2)}" if split else name
    for spelled in (name, dashed, name.removeprefix("rtx")):
        try:
            return base_of(spelled)
        except InputError:
            continue
    return ""


def _gpu_info(info: str, where: str) -> tuple[str, float]:
    """Name and MiB of one device from GpuInfo; "" and 0 if that is empty.

    The text is a Python literal; `ast.literal_eval` reads literals only and runs nothing.
    """
    if not info:
        return "", 0.0
    try:
        if len(info) > _MOST_INFO:
            raise ValueError
        first = ast.literal_eval(info)["Gpus"][0]
        memory = float(first["MemoryInfo"]["SizeInMiB"])
        return str(first["Name"]), memory if memory >= _LEAST_MIB else memory * 1024.0
    except (ValueError, SyntaxError, KeyError, IndexError, TypeError, RecursionError, MemoryError):
        raise DocumentError(
            f"{where}: GpuInfo: expected a dictionary with Gpus[0].Name and MemoryInfo.SizeInMiB, "
            f"found {info[:60]!r}"
        ) from None
