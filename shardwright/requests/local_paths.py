"""Paths of Shardwright's own files: caches of traces and answers, profile of this machine."""

from __future__ import annotations

from pathlib import Path


def trace_cache() -> Path:
    """Folder of cached traces."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("shardwright")) / "traces"


def answer_cache() -> Path:
    """Folder of cached answers."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("shardwright")) / "answers"


def local_profile() -> Path:
    """The profile that `--on local` reads and `profile` writes."""
    import platformdirs

    return Path(platformdirs.user_data_dir("shardwright")) / "local.json"
