"""Groups of runs: by source, device, family, precision and size."""

from __future__ import annotations

import re

from profiles.errors import UnknownNameError
from profiles.hardware.catalogue.catalog import get_device
from shardwright.runs.run import PublishedRun

SILENT = "not stated"
_WORD = re.compile(r"[-_]")
_DIGITS = re.compile(r"\d")
# Sources with more than one table: the second word is part of the name.
_TWO_WORDS = frozenset({"simumax", "vtrain", "megatron", "korthikanti"})
_SIZES = (1, 8, 64, 512, 4096)


def source_of(run_id: str) -> str:
    """The source of a run: the first word of its id, or the first two.

    >>> source_of("vtrain-multi-007"), source_of("zb_t4_1.5B_ZB-1p_m24"), source_of("ultra-1B-0001")
    ('vtrain-multi', 'zb', 'ultra')
    """
    words = _WORD.split(run_id)
    if words[0] in _TWO_WORDS and len(words) > 1:
        return f"{words[0]}-{words[1]}"
    return _DIGITS.split(words[0], maxsplit=1)[0] or words[0]


def device_of(run: PublishedRun) -> str:
    """The device by its name in the catalogue, or as published if it is not there."""
    if not run.device:
        return SILENT
    try:
        return get_device(run.device).name
    except UnknownNameError:
        return run.device


def precision_of(run: PublishedRun) -> str:
    """The precision as published."""
    return run.precision or SILENT


def family_of(run: PublishedRun) -> str:
    """`dense`, `moe` or `lora`, as published."""
    return run.family or SILENT


def size_of(run: PublishedRun) -> str:
    """The range of the number of devices, sortable as text.

    >>> size_of(PublishedRun(row=1, id="a", num_devices=96))
    '65 to 512 devices'
    """
    if run.num_devices is None:
        return SILENT
    least = 1
    for most in _SIZES:
        if run.num_devices <= most:
            return "1 device" if most == 1 else f"{least} to {most} devices"
        least = most + 1
    return f"{least} or more devices"
