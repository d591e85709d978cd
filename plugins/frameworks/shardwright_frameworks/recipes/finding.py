"""`Finding`: one fault of a configuration, and the change that fixes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Kinds of findings, the gravest first."""

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
    patch   in the file's own words: `parallelism.pipeline_parallel_degree: 8 -> 4`
    """

    verdict: Verdict
    text: str
    where: str = ""
    patch: str = ""

    @property
    def exit_code(self) -> int:
        """Of the command; 0 for a remark."""
        return _CODES.get(self.verdict, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRecipe:
    """A configuration with its findings, the gravest first.

    summary  layout, and the predicted step and peak with their intervals, in a line
    """

    recipe: str
    framework: str
    summary: str
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """That of the gravest finding, 0 without any."""
        codes = [each.exit_code for each in self.findings if each.exit_code]
        return min(codes, default=0)
