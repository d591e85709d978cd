"""`tested`: evaluates one test of a script with known values, `[ A = B ]` or `[[ -z $A ]]`."""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwright_frameworks.shell.expansion import expand_text
from shardwright_frameworks.shell.text_marks import (
    is_unknown,
    unknown_numbers,
    without_place_marks,
    without_unknowns,
)
from shardwright_frameworks.shell.tokens import Token
from shardwright_frameworks.shell.variables import Scope

_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Tested:
    """The result of a test, None if it is unknown.

    empty_if_unset  whether an unset variable was assumed empty, or the script started without
                    arguments
    """

    truth: bool | None
    empty_if_unset: bool = False


def tested(tokens: Sequence[Token], scope: Scope) -> Tested:
    """The result of the test between `[` and `]`."""
    if any(token.is_operator for token in tokens):
        return Tested(None)
    negated = bool(tokens) and tokens[0].text == "!"
    tokens = tokens[negated:]
    values = [without_place_marks(expand_text(token, scope)) for token in tokens]
    signs = [token.text for token in tokens]
    if len(values) == 3 and signs[1] in ("=", "==", "!=") and "" in (values[0], values[2]):
        # A comparison with an empty text.
        signs = ["-n" if signs[1] == "!=" else "-z"]
        values = [values[0] or values[2]]
    if len(values) == 1 or (len(values) == 2 and signs[0] in ("-z", "-n")):
        found = _empty(values[-1], scope)
        is_expected = signs[0] == "-z"
        truth = None if found.truth is None else (found.truth == is_expected) != negated
        return Tested(truth, found.empty_if_unset)
    if len(values) == 2 and signs[0] in ("-f", "-e", "-r", "-s") and not negated:
        scope.optional.add(without_unknowns(values[1]))
    if len(values) == 3 and signs[1] == "=~":
        truth = _contains(values[0], values[2], scope)
        return Tested(None if truth is None else truth != negated)
    if len(values) != 3:
        return Tested(None)
    left, right = values[0].strip(), values[2].strip()
    counted = [scope.unknowns[number].name for number in unknown_numbers(left)] == ["$#"]
    left = "0" if counted else left
    if unknown_numbers(left + right):
        return Tested(None)
    truth = _compared(left, signs[1], right)
    return Tested(None if truth is None else truth != negated, counted)


def _contains(left: str, right: str, scope: Scope) -> bool | None:
    """Whether options contain an option; None if an unknown word might contain it."""
    if not re.fullmatch(r"--[\w-]+", right):
        return None
    if right in left:
        return True
    open_ = [word for word in left.split() if is_unknown(word) and not scope.is_defaulted(word)]
    return None if open_ else False


def _compared(left: str, sign: str, right: str) -> bool | None:
    if sign in ("=", "==", "!="):
        return fnmatch.fnmatchcase(left, right) == (sign != "!=")
    compare = _COMPARED.get(sign)
    if compare is None or not all(re.fullmatch(r"-?\d+", one) for one in (left, right)):
        return None
    return compare(int(left), int(right))


def _empty(text: str, scope: Scope) -> Tested:
    if not unknown_numbers(text):
        # A file that leaves a variable empty and ends without it is completed by its user.
        return Tested(not text, not text)
    # A script is started without the variables and arguments that nothing sets.
    unset = all(kind in ("unset", "argument") for kind in scope.kinds(text))
    return Tested(True, True) if unset and scope.is_defaulted(text) else Tested(None)
