"""The fingerprint of this machine: what must be equal for a measured profile to hold here.

Read from the operating system without loading torch, so that `run` can compare it with the
profile in a plan's cluster in milliseconds.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),  # cgroup v2
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),  # cgroup v1
)
_GPUS = Path("/proc/driver/nvidia/gpus")


def fingerprint_of_machine(*, threads_per_device: int = 1) -> dict[str, str]:
    """What identifies this machine to a profile: processor, cores, memory, torch and threads.

    Keys: `cpu`, `cores` (that this process may use), `memory_gib` (rounded, so that a kernel
    update does not change it), `torch` (installed version, or "none"), `threads_per_device`, and
    `gpus` (models, comma-separated) where the NVIDIA driver lists any.
    """
    fingerprint = {
        "cpu": cpu_model(),
        "cores": str(num_cores()),
        "memory_gib": str(round(machine_memory_bytes() / 2**30)),
        "torch": _torch_version(),
        "threads_per_device": str(threads_per_device),
    }
    gpus = (_entry(file, "Model") for file in sorted(_GPUS.glob("*/information")))
    if models := ", ".join(filter(None, gpus)):
        fingerprint["gpus"] = models
    return fingerprint


def fingerprint_differences(planned: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """One line per entry of `planned` that is another one in `found`; empty where all agree.

    >>> fingerprint_differences({"cores": "2"}, {"cores": "4", "torch": "2.13"})
    ['cores: planned 2, found 4']
    """
    return [
        f"{key}: planned {planned[key]}, found {found.get(key, 'nothing')}"
        for key in sorted(planned)
        if planned[key] != found.get(key)
    ]


def cpu_model() -> str:
    """The processor's model name, or its architecture where the kernel does not name it."""
    return _entry(_CPUINFO, "model name") or platform.machine() or "unknown CPU"


def cpu_vendor() -> str:
    """The processor's vendor as people write it: `AMD`, `Intel`, or what the kernel says."""
    vendor = _entry(_CPUINFO, "vendor_id")
    return {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}.get(vendor, vendor or "unknown")


def num_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_memory_bytes() -> int:
    """Main memory that this process may use: the machine's, or its container's limit if less."""
    total = _meminfo_bytes("MemTotal")
    for path in _CGROUP_LIMITS:
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total


def available_memory_bytes() -> int:
    """Main memory that is free for new allocations now (the kernel's own estimate)."""
    return min(_meminfo_bytes("MemAvailable"), machine_memory_bytes())


def _meminfo_bytes(key: str) -> int:
    """An entry of /proc/meminfo; elsewhere the physical memory that POSIX sysconf reports."""
    found = _entry(_MEMINFO, key)
    if found:
        return int(found.split()[0]) * 1024  # the kernel's "kB" is 1024 bytes
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _entry(path: Path, key: str) -> str:
    """The first `key: value` of a file of the kernel's, or ""."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    entries = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for name, _, value in entries if name.strip() == key), "")


def _torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "none"
