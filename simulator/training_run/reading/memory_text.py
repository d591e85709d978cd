"""`memory_kind_of`: what a row's peak memory is a peak of, from its words."""

from __future__ import annotations

import re

# Tools that read the device, context and NCCL with everything that the allocator holds.
_DEVICE = re.compile(
    r"\b(nvidia|rocm|hl|amd|npu)-smi\b|memory\.used|\bnvml\b|\bdcgm\b|\bdevice\b", re.I
)
_RESERVED = re.compile(r"reserved|cached", re.I)
_ALLOCATED = re.compile(r"allocated|tensors", re.I)


def memory_kind_of(text: str, said: list[str]) -> str:
    """`allocated`, `reserved` or `device` (simulator/memory/footprint.py).

    "" where the words are silent, or name two: what the framework's own report prints. A peak of
    which the source names no tool is taken as the device's, which every tool prints; that goes to
    `said`.
    """
    if not text.strip():
        return ""
    reserved, allocated = bool(_RESERVED.search(text)), bool(_ALLOCATED.search(text))
    if _DEVICE.search(text):
        return "device"
    if reserved != allocated:
        return "reserved" if reserved else "allocated"
    if reserved:
        return ""
    said.append(f"peak memory {text!r} taken as what the device shows")
    return "device"
