"""Checks before ranks start or memory is allocated: torch version, devices, free memory.

Imports torch only inside a function, and only to count devices.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import signal
import sys

from profiles.errors import InputError
from profiles.hardware.probe.fingerprint import available_memory_bytes
from profiles.units import format_bytes
from simulator.values.plan import Plan
from simulator.values.prediction import Prediction

OLDEST_TORCH = (2, 11)
LESS_MEMORY = (
    "plan with less memory per rank: a smaller --micro-batch, --recompute full, a higher --zero"
)


def check_devices(path: str, plan: Plan, *, device: str) -> None:
    """Raises InputError if torch is too old or this machine has too few devices."""
    version = importlib.metadata.version("torch")
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if numbers < OLDEST_TORCH:
        raise InputError(
            f"{path} needs torch 2.11 or later, but torch {version} is installed; install 2.13"
        )
    if device == "cpu":
        return
    degrees = plan.degrees
    asked = (
        f"--device {device} asks for {degrees.num_devices} devices (pp {degrees.pp} x dp "
        f"{degrees.dp} x tp {degrees.tp} in {path})"
    )
    if version.endswith("+cpu"):
        raise InputError(
            f"{asked}, and torch {version} is built without CUDA; install a CUDA build of torch, "
            "or use --device cpu"
        )
    import torch

    found = torch.accelerator.device_count()
    kind = torch.accelerator.current_accelerator()
    if kind is None or kind.type != device or found < degrees.num_devices:
        here = f"{found} of type {kind.type}" if kind is not None and found else "none"
        raise InputError(
            f"{asked}, and torch {version} finds {here} on this machine (nvidia-smi lists what the "
            "driver sees, CUDA_VISIBLE_DEVICES hides devices); run it where they are, plan for "
            "fewer devices, or use --device cpu"
        )


def predicted_bytes(prediction: Prediction | None, pp_rank: int) -> float:
    """The predicted peak of a pipeline rank in bytes; 0 without a prediction."""
    ranks = {} if prediction is None else {rank.rank: rank for rank in prediction.ranks}
    return ranks[pp_rank].limiting_bytes if pp_rank in ranks else 0.0


def check_main_memory(
    path: str, plan: Plan, prediction: Prediction | None, *, device: str = "cpu"
) -> None:
    """Raises InputError if the ranks need more main memory than is free: on a CPU for all their
    tensors, on other devices for offloaded ones."""
    each = [predicted_bytes(prediction, rank) for rank in range(plan.degrees.pp)]
    where, less = f"main memory on {plan.degrees.num_devices} ranks", LESS_MEMORY
    if device != "cpu":
        each = [rank.host_bytes for rank in prediction.ranks] if prediction else []
        where, less = f"{where} for offloaded states", "plan without --optimizer-offload"
    needed = plan.degrees.dp * plan.degrees.tp * sum(each)
    check_free(path, needed, where, available_memory_bytes(), less)


def check_free(path: str, needed: float, where: str, free: float, less: str = LESS_MEMORY) -> None:
    """Raises InputError if more bytes are `needed` than `free`.

    less  advice in the message on how to need fewer
    """
    if needed > free:
        raise InputError(
            f"{path} is predicted to take {format_bytes(needed)} of {where}, and "
            f"{format_bytes(free)} are free; {less}, or end other programs"
        )


def die_with_parent(parent: int | None = None) -> None:
    """End this process when its parent ends (Linux, prctl(2)), so that no rank outlives its
    launcher.

    parent  process id of the parent, None if unknown. Orphans get process 1 as parent, which in a
            container may be the launcher itself
    """
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL, 0, 0, 0)
        now = os.getppid()
        if now == 1 if parent is None else now != parent:  # the parent had already ended
            os._exit(1)
