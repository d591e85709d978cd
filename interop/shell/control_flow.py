"""Which commands of a script are read, and how often: conditions, cases, loops.

A condition that the files do not decide is read both ways, and what the ways disagree on has no
value; a way that ends the script is not taken where another goes on.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import Protocol

from interop.shell.conditions import any_of, both, negated
from interop.shell.expansion import Substitute, compute, expand_text, expand_words
from interop.shell.syntax import Block, Case, Chain, For, Node, While
from interop.shell.text_places import Place, hole_numbers, without_holes
from interop.shell.variables import Scope, merged

_MOST_ROUNDS = 64


class LeaveError(Exception):
    """`exit`, `return`, `break` or `continue`."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


class Runner(Protocol):
    """What reads the commands themselves.

    asked_unknown    whether the last condition asked for something that is not set
    decided          whether what is read now is read in any case
    """

    asked_unknown: bool
    decided: bool

    @property
    def substitute(self) -> Substitute:
        """The output of a command in a word."""

    def node(self, node: Node, scope: Scope) -> bool | None:
        """Reads a command; whether it succeeds, None where the files do not tell."""

    @property
    def is_worn_out(self) -> bool:
        """Whether too much was read already."""


def read_chain(runner: Runner, node: Chain, scope: Scope) -> bool | None:
    """Commands joined by `&&` and `||`."""
    runner.asked_unknown = False
    status = runner.node(node.first, scope)
    unknown = runner.asked_unknown
    for operator, part in node.rest:
        if operator == "&&":
            if status is False:
                continue
            status = both(status, _maybe(runner, part, scope, None if unknown else status))
        else:
            if status is True:
                continue
            status = any_of(status, _maybe(runner, part, scope, None if unknown else status))
    return status


def _maybe(runner: Runner, part: Node, scope: Scope, status: bool | None) -> bool | None:
    """A command behind `&&` or `||`; where nobody knows whether it runs, an exit does not."""
    try:
        return runner.node(part, scope)
    except LeaveError:
        if status is not None:
            raise
        return None


def read_if(
    runner: Runner, branches: Sequence[tuple[Block | None, Block]], scope: Scope, place: Place
) -> None:
    """The branch whose condition holds, or all that may be meant."""
    if not branches:
        return
    (asked, body), rest = branches[0], branches[1:]
    runner.asked_unknown = False
    truth = True if asked is None else runner.node(asked, scope)
    if truth is True and asked is not None and runner.asked_unknown:
        _unless_it_ends(runner, body, scope)
    elif truth is True:
        runner.node(body, scope)
    elif truth is False:
        read_if(runner, rest, scope, place)
    else:
        _fork(
            runner,
            (lambda own: runner.node(body, own), lambda own: read_if(runner, rest, own, place)),
            scope,
            place,
        )


def _unless_it_ends(runner: Runner, body: Node, scope: Scope) -> None:
    """Commands for when something is not set. Where they end the script it has to be set by who
    starts it: then the script goes on."""
    own = scope.copy()
    try:
        runner.node(body, own)
    except LeaveError as leave:
        if leave.how == "exit":
            return
        scope.variables = own.variables
        raise
    scope.variables = own.variables


def _fork(
    runner: Runner, ways: Sequence[Callable[[Scope], object]], scope: Scope, place: Place
) -> None:
    """Several ways of which the files do not say which is taken."""
    decided, runner.decided = runner.decided, False
    ended: LeaveError | None = None
    found: list[Scope] = []
    for way in ways:
        own = scope.copy()
        try:
            way(own)
            found.append(own)
        except LeaveError as leave:
            ended = leave
    runner.decided = decided
    if not found:
        assert ended is not None
        raise ended
    after = found[0]
    for other in found[1:]:
        after = merged(after, other, place)
    scope.variables = after.variables


def read_case(runner: Runner, node: Case, scope: Scope) -> None:
    """The commands of the pattern that matches, or all where the word is not told."""
    place = Place(scope.script, node.line)
    text = expand_text(node.word.text, place, scope, runner.substitute)
    if any(scope.holes[n].kind != "unset" for n in hole_numbers(text)):
        ways = [(lambda own, body=body: runner.node(body, own)) for _, body in node.branches]
        _fork(runner, [*ways, lambda own: None], scope, place)
        return
    asked = without_holes(text)
    for patterns, body in node.branches:
        for pattern in patterns:
            known = without_holes(expand_text(pattern.text, place, scope, runner.substitute))
            if fnmatch.fnmatchcase(asked, known):
                if hole_numbers(text):
                    _unless_it_ends(runner, body, scope)
                else:
                    runner.node(body, scope)
                return


def read_for(runner: Runner, node: For, scope: Scope) -> None:
    """A loop over words, or a counted one."""
    place = Place(scope.script, node.line)
    if node.expression:
        _counted(runner, node, scope, place)
        return
    words = expand_words(node.words, scope, runner.substitute)
    for word in words[:_MOST_ROUNDS]:
        scope.assign(node.name, word.text, word.place)
        if not _round(runner, node.body, scope):
            return


def _counted(runner: Runner, node: For, scope: Scope, place: Place) -> None:
    begin, _, rest = node.expression.partition(";")
    test, _, step = rest.partition(";")
    compute(begin, place, scope, runner.substitute)
    for _ in range(_MOST_ROUNDS):
        truth = compute(test, place, scope, runner.substitute)
        if truth == "0" or not _round(runner, node.body, scope) or hole_numbers(truth):
            return
        compute(step, place, scope, runner.substitute)


def read_while(runner: Runner, node: While, scope: Scope) -> None:
    """A loop while a condition holds; once where nobody knows."""
    for number in range(_MOST_ROUNDS):
        before = len(scope.holes)
        truth = runner.node(node.condition, scope)
        asked = [hole.kind for hole in scope.holes[before:]]
        if truth is None and number == 0 and "argument" in asked:
            return  # a loop over arguments: started as it stands, the script has none
        truth = negated(truth) if node.until else truth
        if truth is False or not _round(runner, node.body, scope) or truth is None:
            return


def _round(runner: Runner, body: Block, scope: Scope) -> bool:
    """One round of a loop; whether there is another."""
    if runner.is_worn_out:
        return False
    try:
        runner.node(body, scope)
    except LeaveError as leave:
        if leave.how == "continue":
            return True
        if leave.how == "break":
            return False
        raise
    return True
