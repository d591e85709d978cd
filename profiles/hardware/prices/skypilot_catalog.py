"""The prices of a SkyPilot catalogue (github.com/skypilot-org/skypilot-catalog) as offers.

Its folder holds one `<cloud>/vms.csv` per cloud, with `AcceleratorName`, `AcceleratorCount`,
`Price`, `SpotPrice` ($ per hour of the whole instance), `Region` and `GpuInfo` (a Python dictionary
as text); the order of the columns differs, so they are read by their names. A row has no date: it
is that of the commit that was checked out, which the caller must say. Of a region the cheapest
instance of each device and kind is taken.
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
# SkyPilot's names that are no names of ours, or another device's, in lower case.
_DEVICES = {
    "a100": "a100-sxm-40gb",
    "a100-80gb-sxm": "a100-sxm-80gb",
    "h100-mega": "h100-sxm-80gb",
    "h100-nvlink": "h100-sxm-80gb",
    "rtxpro6000s": "rtx-pro-6000",
    "v100-32gb": "v100-sxm2-32gb",
}
# What GpuInfo may say of the form of a board, where its name in the catalogue says none.
_FORMS = {
    ("a100", "pcie"): "a100-pcie-40gb",
    ("a100-80gb", "pcie"): "a100-pcie-80gb",
    ("h100", "pcie"): "h100-pcie-80gb",
    ("h100-80gb", "pcie"): "h100-pcie-80gb",
    ("h100", "nvl"): "h100-nvl-94gb",
}
# Names that say no form factor; the usual one is taken, and said.
_FORM_GUESSED = ("a100", "a100-80gb", "a800", "h100", "h100-80gb", "v100", "v100-32gb")
# A TPU's slice: our device and how many of the number behind its name make a chip (cores of v4 and
# v5p, chips of the others: cloud.google.com/tpu/docs/v5p and the pages beside it).
_TPUS = {"v4": ("tpu-v4", 2), "v5p": ("tpu-v5p", 2), "v5litepod": ("tpu-v5e", 1)}
_TPUS["v6e"] = ("tpu-v6e", 1)
_SLICE = re.compile(r"^tpu-(\w+)-(\d+)$")
_MEMORY_SLACK = 0.1  # GpuInfo rounds: 81920 MiB for 81559
_LEAST_MIB = 1024.0  # RunPod writes 80 for 80 GiB
_MOST_INFO = 10_000  # characters; a real one has about 130
_SPLIT = re.compile(r"^([a-z]+)(\d.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What a catalogue holds.

    ignored  rows that were left out, by reason;  guessed  what its names leave open
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

    Raises DocumentError where the folder holds no `vms.csv`, and, naming file and line, for a row
    that cannot be read.
    """
    paths = sorted(folder.glob("*/vms.csv"))
    if not paths:
        raise DocumentError(
            f"{folder} holds no <cloud>/vms.csv; name the folder of one schema version of a "
            "SkyPilot catalogue, for example skypilot-catalog/catalogs/v8"
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
    """The offers of a row, or why it has none; `guessed` collects what its name leaves open."""
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
        return f"{name} is not in the catalogue"
    if not instance and not sliced:
        return "a device without its host, which is billed in a row of its own"
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
    """0 where the cell is empty or the column is missing."""
    text = (row.get(name) or "").strip()
    if not text:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (math.isfinite(value) and value >= 0):
        raise DocumentError(f"{where}: {name}: a number that is not negative is wanted: {text!r}")
    return value


def _device(name: str, info: str, where: str, guessed: dict[str, None]) -> str:
    """Our name of a GPU, or "" where the catalogue has none."""
    asked = name.lower()
    if asked not in _FORM_GUESSED:
        return _DEVICES.get(asked) or _by_alias(asked)
    said, memory_mib = _said(info, where)
    if asked == "a100" and memory_mib > 40960 * (1 + _MEMORY_SLACK):
        asked = "a100-80gb"
    if asked == "v100" and memory_mib > 16384 * (1 + _MEMORY_SLACK):
        asked = "v100-32gb"
    for (model, form), device in _FORMS.items():
        if model == asked and form in said.lower():
            return device
    found = _DEVICES.get(asked) or _by_alias(asked)
    if found and "sxm" not in said.lower():
        guessed[f"{name} is taken as {found}: the catalogue does not say the form factor"] = None
    return found


def _by_alias(name: str) -> str:
    """`RTX4090` is our `rtx-4090`, `RTXA6000` our `a6000`."""
    split = _SPLIT.match(name)
    dashed = f"{split.group(1)}-{split.group(2)}" if split else name
    for spelled in (name, dashed, name.removeprefix("rtx")):
        try:
            return base_of(spelled)
        except InputError:
            continue
    return ""


def _said(info: str, where: str) -> tuple[str, float]:
    """Name and MiB of one device by GpuInfo; nothing where that is empty.

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
            f"{where}: GpuInfo: a dictionary with Gpus[0].Name and MemoryInfo.SizeInMiB is wanted, "
            f"found {info[:60]!r}"
        ) from None
