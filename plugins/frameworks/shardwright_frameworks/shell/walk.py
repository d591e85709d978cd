"""`Walk`: reads the commands of a script in order, including undecided branches.

A condition is decided only if it is one test of known values. The branches of other conditions are
all read and merged (`variables.merge`); the body of a loop is read once and merged with the
variables before it. A branch that ends the script is ignored.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shardwright_frameworks.shell.condition import tested
from shardwright_frameworks.shell.expansion import expand_text, expand_words
from shardwright_frameworks.shell.text_marks import Place, unknown_numbers, without_place_marks
from shardwright_frameworks.shell.tokens import Token
from shardwright_frameworks.shell.variables import Scope, merge

_MOST_DEEP = 60
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=$")
_ENDS_COMMAND = frozenset({";", "\n", "&", "&&", "||", "|", "|&", ")", ";;", ";&", ";;&", "("})
_REDIRECTIONS = frozenset({">", ">>", "<", "<<", "<<<", "&>", "&>>", ">&", "<&", ">|"})
# Items of a loop that are read one after the other.
_MOST_TURNS = 12
_ENDS_CASE = (";;", ";&", ";;&", "esac")


@dataclass(frozen=True, slots=True)
class Array:
    """`NAME=(...)`, or `NAME+=(...)` with `add`."""

    name: str
    add: bool
    tokens: tuple[Token, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Simple:
    """A command of one program, and its redirections: operator and following word."""

    words: tuple[Token | Array, ...]
    redirections: tuple[tuple[str, Token], ...]
    place: Place


class Commands(Protocol):
    """Reads simple commands; `functions` are the bodies of functions by name."""

    functions: dict[str, tuple[Token, ...]]

    def run(self, simple: Simple, scope: Scope) -> bool | None:
        """Whether the command succeeds; None if that is unknown."""


class Walk:
    """One pass over the tokens of a script, with the commands of its branches and loops."""

    def __init__(
        self, tokens: Sequence[Token], scope: Scope, commands: Commands, depth: int = 0
    ) -> None:
        self._tokens, self._scope, self._commands = tokens, scope, commands
        self._at, self._depth, self._skips = 0, depth, False
        # Whether the last test found an unset variable empty.
        self._empty_if_unset = False

    def all(self) -> None:
        """Reads all tokens."""
        while self._at < len(self._tokens):
            self._block(())
            self._at += 1

    # -- tokens

    def _is(self, *texts: str) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at].text in texts

    def _next(self) -> Token:
        last = self._tokens[min(self._at, len(self._tokens) - 1)]
        self._at += 1
        return last if self._at <= len(self._tokens) else Token("", last.place)

    def _pass(self, *texts: str) -> None:
        while self._is(*texts):
            self._at += 1

    def _until(self, *texts: str) -> list[Token]:
        found = []
        while self._at < len(self._tokens) and not self._is(*texts):
            found.append(self._next())
        return found

    @property
    def _reads(self) -> bool:
        return not self._skips and not self._scope.ended

    # -- commands

    def _block(self, ends: tuple[str, ...]) -> bool | None:
        status: bool | None = True
        while self._at < len(self._tokens) and not self._is(*ends):
            begin = self._at
            if self._is(";", "\n", "&"):
                self._at += 1
                continue
            status = self._chain()
            if self._at == begin:
                return status
        return status

    def _skipped(self, ends: tuple[str, ...]) -> None:
        before, self._skips = self._skips, True
        self._block(ends)
        self._skips = before

    def _chain(self) -> bool | None:
        """Commands joined by `&&` and `||`."""
        self._empty_if_unset = False
        status = self._pipeline()
        while self._is("&&", "||"):
            runs_if = self._next().text == "&&"
            self._pass("\n")
            by_unset = self._empty_if_unset
            if status is None or (by_unset and status == runs_if):
                before, branch = self._scope, self._scope.copy()
                self._scope = branch
                result = self._pipeline()
                self._scope = before
                if self._reads:
                    alive = [before.copy()] if status is None else []
                    alive += [] if branch.ended else [branch]
                    merge(before, alive, self._place)
                status = result if status is not None else None
            elif status == runs_if:
                status = self._pipeline()
            else:
                before_skips, self._skips = self._skips, True
                self._pipeline()
                self._skips = before_skips
        return status

    @property
    def _place(self) -> Place:
        return self._tokens[min(self._at, len(self._tokens)) - 1].place

    def _pipeline(self) -> bool | None:
        negated = self._is("!")
        self._pass("!")
        status, piped = self._command(), False
        while self._is("|", "|&"):
            self._at += 1
            self._pass("\n")
            self._command()
            piped = True
        if piped or status is None:
            return None
        return status != negated

    def _command(self) -> bool | None:
        if self._depth > _MOST_DEEP:
            self._at += 1
            return None
        self._depth += 1
        try:
            return self._read()
        finally:
            self._depth -= 1

    def _read(self) -> bool | None:
        if self._is("if"):
            self._if()
        elif self._is("for", "select"):
            self._for()
        elif self._is("while", "until"):
            ends = self._next().text == "until"
            self._loop(runs=self._block(("do",)) is not ends)
        elif self._is("case"):
            self._case()
        elif self._is("{"):
            self._at += 1
            status = self._block(("}",))
            self._close()
            return status
        elif self._is("("):
            self._at += 1
            outer, self._scope = self._scope, self._scope.copy()
            self._block((")",))
            self._scope = outer
            self._close()
        elif self._is("function") or self._defines_function():
            self._function()
        else:
            return self._simple()
        return None

    def _close(self) -> None:
        """Passes the end of a compound command and its redirections."""
        self._at += 1
        while self._is(*_REDIRECTIONS):
            self._at += 2

    def _defines_function(self) -> bool:
        name, *following = self._tokens[self._at : self._at + 3]
        brackets = [token.text for token in following if token.is_operator] == ["(", ")"]
        return brackets and not name.is_operator and "=" not in name.text

    def _function(self) -> None:
        self._pass("function")
        name = self._next().text
        self._pass("(", ")", "\n")
        begin = self._at
        before, self._skips = self._skips, True
        self._command()
        self._skips = before
        if self._reads:
            self._commands.functions[name] = tuple(self._tokens[begin : self._at])

    def _simple(self) -> bool | None:
        place = self._tokens[self._at].place
        if self._is("[["):
            self._at += 1
            words = self._until("]]")
            self._at += 1
            return self._test(words) if self._reads else None
        words_: list[Token | Array] = []
        redirections: list[tuple[str, Token]] = []
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            array = None if token.is_operator else _ARRAY.match(token.text)
            if array and [t.text for t in self._tokens[self._at + 1 : self._at + 2]] == ["("]:
                self._at += 2
                inner = tuple(t for t in self._until(")") if not t.is_operator)
                words_.append(Array(array[1], bool(array[2]), inner, token.place))
                self._at += 1
            elif token.is_operator and token.text in _REDIRECTIONS:
                self._at += 1
                redirections.append((token.text, self._next()))
            elif token.is_operator:
                break
            else:
                words_.append(self._next())
        if not words_ and not redirections:
            # A bracket that nothing opened.
            self._pass(*_ENDS_COMMAND)
            return None
        if not self._reads:
            return None
        first = words_[0] if words_ else None
        if isinstance(first, Token) and first.text in ("[", "test"):
            tokens = [token for token in words_[1:] if isinstance(token, Token)]
            return self._test(tokens[:-1] if first.text == "[" else tokens)
        return self._commands.run(Simple(tuple(words_), tuple(redirections), place), self._scope)

    def _test(self, tokens: Sequence[Token]) -> bool | None:
        test = tested(tokens, self._scope)
        self._empty_if_unset |= test.empty_if_unset
        return test.truth

    # -- branches and loops

    def _if(self) -> None:
        branches = _Branches(self._scope, self._next().place)
        while True:
            self._empty_if_unset = False
            truth = self._block(("then",)) if self._reads and not branches.is_decided else None
            if not self._reads or branches.is_decided:
                self._skipped(("then",))
            self._at += 1
            self._branch(branches, truth, ("elif", "else", "fi"))
            word = self._next().text
            if word == "elif":
                continue
            if word == "else":
                self._empty_if_unset = False
                self._branch(branches, True, ("fi",))
                self._at += 1
            break
        self._close_branches(branches)

    def _branch(self, branches: _Branches, truth: bool | None, ends: tuple[str, ...]) -> None:
        if not self._reads or branches.is_decided or truth is False:
            self._skipped(ends)
            return
        by_unset = self._empty_if_unset
        before, self._scope = self._scope, self._scope.copy()
        self._block(ends)
        branches.add(self._scope, decided=truth is True, by_unset=by_unset)
        self._scope = before

    def _close_branches(self, branches: _Branches) -> None:
        self._at -= 1
        self._close()
        if self._reads:
            branches.close()

    def _case(self) -> None:
        branches = _Branches(self._scope, self._next().place)
        word = self._next()
        self._pass("\n", "in")
        text = expand_text(word, self._scope) if self._reads else ""
        is_known = not unknown_numbers(text)
        while self._at < len(self._tokens):
            self._pass("\n", ";;", ";&", ";;&", "(")
            if self._is("esac"):
                break
            patterns = [token for token in self._until(")") if not token.is_operator]
            self._at += 1
            truth: bool | None = None
            if is_known and self._reads:
                known = [without_place_marks(expand_text(each, self._scope)) for each in patterns]
                plain = without_place_marks(text)
                truth = any(fnmatch.fnmatchcase(plain, pattern) for pattern in known)
            self._empty_if_unset = False
            self._branch(branches, truth, _ENDS_CASE)
        self._at += 1
        self._close_branches(branches)

    def _for(self) -> None:
        place = self._next().place
        header = [token for token in self._until("do", "{") if not token.is_operator]
        if self._reads and header:
            words = expand_words(header[2:], self._scope)
            name = header[0].text
            known = [word for word in words if word.plain and not unknown_numbers(word.text)]
            if known != words or not 1 <= len(words) <= _MOST_TURNS:
                self._scope.assign(name, self._scope.unknown("loop", name, place), place)
            else:
                begin = self._at
                for word in words[:-1]:
                    self._scope.assign(name, word.text, word.place)
                    self._loop()
                    self._at = begin
                self._scope.assign(name, words[-1].text, words[-1].place)
        self._loop()

    def _loop(self, *, runs: bool = True) -> None:
        """The body of a loop, read once; after it the variables that it changes are unknown."""
        end = "}" if self._next().text == "{" else "done"
        place = self._place
        if not self._reads or not runs:
            self._skipped((end,))
        else:
            before, self._scope = self._scope, self._scope.copy()
            self._block((end,))
            outcomes = [before.copy(), self._scope]
            self._scope = before
            merge(before, outcomes, place, "loop")
        self._close()


class _Branches:
    """The variables after each branch of a condition.

    is_decided  whether a branch was certainly taken, so that later ones are not
    """

    def __init__(self, scope: Scope, place: Place) -> None:
        self._scope, self._place = scope, place
        self._outcomes: list[Scope] = []
        self.is_decided = False

    def add(self, outcome: Scope, *, decided: bool, by_unset: bool) -> None:
        """Add a branch, unless it ends the script because a variable is unset: it is assumed
        set."""
        if decided and by_unset and outcome.ended:
            return
        self._outcomes.append(outcome)
        self.is_decided |= decided

    def close(self) -> None:
        """Sets the variables on which the branches agree."""
        if not self.is_decided:
            self._outcomes.append(self._scope.copy())
        alive = [each for each in self._outcomes if not each.ended]
        if alive:
            merge(self._scope, alive, self._place)
        else:
            self._scope.ended = self._outcomes[0].ended
