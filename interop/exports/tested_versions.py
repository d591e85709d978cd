"""Versions whose own code has read what is exported (tests/interop/frameworks, by
`make frameworks`)."""

from __future__ import annotations

from collections.abc import Mapping

TESTED_ON = "2026-11-22"
TESTED_VERSIONS: Mapping[str, tuple[str, ...]] = {}
"""By target or launcher: `package version`, and what of it read the files."""


def version_words(name: str) -> str:
    """One line on what was tested; says so where nothing was."""
    found = TESTED_VERSIONS.get(name, ())
    if not found:
        return "Not read by the target's own code here: written from its sources."
    return f"Read by {', '.join(found)} on {TESTED_ON}; other versions may name options otherwise."
