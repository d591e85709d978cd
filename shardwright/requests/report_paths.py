"""`ReportPaths`: paths of the reports of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPaths:
    """None for no report; `-` is stdout, except for the figure."""

    html: Path | None = None
    markdown: Path | None = None
    csv: Path | None = None
    figure: Path | None = None

    @property
    def asked(self) -> bool:
        """Whether a report is requested."""
        return any((self.html, self.markdown, self.csv, self.figure))
