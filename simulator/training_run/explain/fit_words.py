"""`fit_words`: one line of text with a run's required memory, its parts, and the usable memory."""

from __future__ import annotations

from profiles.hardware.catalogue.device import Device
from simulator.memory.footprint import Footprint

_GIB = 2**30


def fit_words(memory: Footprint, device: Device) -> str:
    """Required memory of the fullest rank by part, and the usable memory of its device.

    The parts add up to the required memory; parts below 0.05 GiB are omitted.

    `needs 71.2 of 77.4 GiB (rank 0: parameters 14.9, ...); 2.2 held by driver, context and NCCL`
    """
    rank, details = memory.fullest, memory.fullest_details
    parts = {
        "parameters": rank.parameters_bytes,
        "gradients": rank.gradients_bytes,
        "optimizer": rank.optimizer_bytes,
        "buffers": rank.communication_bytes,
        f"activations of {details.in_flight:g} micro-batches in flight": rank.activations_bytes,
        details.moment: rank.transient_bytes,
        "allocator overhead": rank.limiting_bytes - rank.peak_bytes,
    }
    counted = ", ".join(
        f"{name} {size / _GIB:.1f}" for name, size in parts.items() if size >= 0.05 * _GIB
    )
    needed, usable = rank.limiting_bytes / _GIB, device.usable_bytes / _GIB
    line = (
        f"needs {needed:.1f} of {usable:.1f} GiB (rank {rank.rank}: {counted}); "
        f"{device.reserved_bytes.value / _GIB:.1f} held by driver, context and NCCL"
    )
    return f"{line}; refused: {memory.refused}" if memory.refused else line
