"""`Finding`: one fault of a configuration, and the change that fixes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Kinds of findings, most severe first."""

    CANNOT_START = "cannot start"
    DOES_NOT_FIT = "does not fit"
    SLOWER = "slower than the best"
    NO_EFFECT = "no effect"
    CONTRADICTION = "contradiction"
    MAY_NOT_FIT = "may not fit"
    UNKNOWN = "unknown key"
    NOT_READ = "not read"
    NOT_JUDGED = "not judged"


# Exit codes of the project (profiles/errors.py); other verdicts are remarks.
_CODES = {Verdict.CANNOT_START: 2, Verdict.DOES_NOT_FIT: 3, Verdict.SLOWER: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A verdict with its reason.

    where   `file:line`, "" if there is no line
    patch   change in the file's syntax: `parallelism.pipeline_parallel_degree: 8 -> 4`
    """

    verdict: Verdict
    text: str
    where: str = ""
    patch: str = ""

    @property
    def exit_code(self) -> int:
        """Exit code of the command; 0 for a remark."""
        return _CODES.get(self.verdict, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRecipe:
    """A configuration with its findings, most severe first.

    summary  one line: layout, and predicted step and peak with intervals
    """

    recipe: str
    framework: str
    summary: str
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """Exit code of the most severe finding, 0 without any."""
        codes = [each.exit_code for each in self.findings if each.exit_code]
        return min(codes, default=0)
