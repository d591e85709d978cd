"""The fingerprint of this machine: the properties for which a measured profile is valid.

Read from the operating system without loading torch, so that `run` can compare it with a plan's
profile in milliseconds.
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
    """Processor, cores, memory, torch and threads of this machine.

    Keys: `cpu`, `cores` (usable by this process), `memory_gib` (rounded, so that a kernel update
    does not change it), `torch` (installed version, or "none"), `threads_per_device`, and `gpus`
    (models, comma-separated) if the NVIDIA driver lists any.
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


def fingerprint_differences(planned: Mapping[str, str], actual: Mapping[str, str]) -> list[str]:
    """One line per entry of `planned` that differs in `actual`.

    >>> fingerprint_differences({"cores": "2"}, {"cores": "4", "torch": "2.13"})
    ['cores: planned 2, found 4']
    """
    return [
        f"{key}: planned {planned[key]}, found {actual.get(key, 'nothing')}"
        for key in sorted(planned)
        if planned[key] != actual.get(key)
    ]


def cpu_model() -> str:
    """The processor's model name, or its architecture if the kernel does not report it."""
    return _entry(_CPUINFO, "model name") or platform.machine() or "unknown CPU"


def cpu_vendor() -> str:
    """The processor's vendor: `AMD`, `Intel`, or the kernel's name for it."""
    vendor = _entry(_CPUINFO, "vendor_id")
    return {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}.get(vendor, vendor or "unknown")


def num_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_memory_bytes() -> int:
    """Main memory of the machine, or the container's limit if lower."""
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
    """Main memory available for new allocations (the kernel's estimate)."""
    return min(_meminfo_bytes("MemAvailable"), machine_memory_bytes())


def _meminfo_bytes(key: str) -> int:
    """An entry of /proc/meminfo; without that file, the physical memory from POSIX sysconf."""
    found = _entry(_MEMINFO, key)
    if found:
        return int(found.split()[0]) * 1024  # the kernel's "kB" is 1024 bytes
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _entry(path: Path, key: str) -> str:
    """The value of the first `key: value` line of a kernel file, or ""."""
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
