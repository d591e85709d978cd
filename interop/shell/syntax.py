"""The commands of a shell script as a tree (POSIX.1-2017, Shell Command Language, 2.10)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from interop.shell.lexer import REDIRECTIONS, Token, tokens

_NAME = re.compile(r"[A-Za-z_]\w*")
_ENDS = frozenset({"then", "fi", "elif", "else", "do", "done", "esac", "}", ";;", ")"})
_MOST_NESTED = 60


@dataclass(frozen=True, slots=True)
class Redirection:
    """Where a command's output goes or its input comes from; `here` is a here-document's token."""

    operator: str
    target: Token | None = None


@dataclass(frozen=True, slots=True)
class Simple:
    """A command with its words (assignments and arrays among them) and redirections."""

    words: tuple[Token, ...]
    redirections: tuple[Redirection, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Test:
    """`[[ ... ]]`: its words and operators; or `(( ... ))`, an expression."""

    words: tuple[Token, ...]
    expression: str
    line: int


@dataclass(frozen=True, slots=True)
class Piped:
    """Commands joined by `|`."""

    parts: tuple[Node, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """Commands joined by `&&` and `||`: the first, then pairs of operator and command."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Commands one after the other; `own` where a subshell has variables of its own."""

    commands: tuple[Node, ...]
    own: bool = False


@dataclass(frozen=True, slots=True)
class If:
    """Pairs of condition and commands; a condition of None is `else`."""

    branches: tuple[tuple[Block | None, Block], ...]
    line: int


@dataclass(frozen=True, slots=True)
class For:
    """A loop over words; () and `all_given` without `in`. C-like loops have an `expression`."""

    name: str
    words: tuple[Token, ...]
    body: Block
    line: int
    expression: str = ""


@dataclass(frozen=True, slots=True)
class While:
    """A loop while a condition holds, or (`until`) does not."""

    condition: Block
    body: Block
    until: bool


@dataclass(frozen=True, slots=True)
class Case:
    """Commands by pattern of a word."""

    word: Token
    branches: tuple[tuple[tuple[Token, ...], Block], ...]
    line: int


@dataclass(frozen=True, slots=True)
class Function:
    """A function's name and body."""

    name: str
    body: Node


Node = Simple | Test | Piped | Chain | Block | If | For | While | Case | Function


@dataclass(slots=True)
class _Script:
    commands: list[Node] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)


def parse(text: str, line: int = 1) -> tuple[Block, tuple[int, ...]]:
    """The commands of a script that begins in `line`, and the lines that are none."""
    parser = _Parser(tokens(text, line))
    script = _Script()
    while not parser.at_end():
        before = parser.place
        try:
            script.commands += parser.block().commands
            if not parser.at_end():
                raise _NotShellError
        except (_NotShellError, RecursionError):
            script.faults.append(parser.line())
            parser.skip_line()
        if parser.place == before:
            parser.skip_line()
    return Block(tuple(script.commands)), tuple(script.faults)


class _NotShellError(Exception):
    """Tokens in an order that no command has."""


class _Parser:
    def __init__(self, found: list[Token]) -> None:
        # A here-document's token moves to its operator.
        bodies = [token for token in found if token.kind == "here"]
        self._tokens: list[Token] = []
        for token in found:
            if token.kind == "here":
                continue
            if token.kind == "op" and token.text in ("<<", "<<-") and bodies:
                token = replace(token, items=(bodies.pop(0),))
            self._tokens.append(token)
        self.place = 0
        self._depth = 0

    def at_end(self) -> bool:
        while self.place < len(self._tokens) and self._tokens[self.place].kind == "newline":
            self.place += 1
        return self.place >= len(self._tokens)

    def line(self) -> int:
        return self._tokens[min(self.place, len(self._tokens) - 1)].line

    def skip_line(self) -> None:
        while self.place < len(self._tokens) and self._tokens[self.place].kind != "newline":
            self.place += 1
        self.place += 1

    def _peek(self) -> Token:
        if self.place >= len(self._tokens):
            return Token("newline", "", self.line())
        return self._tokens[self.place]

    def _take(self) -> Token:
        token = self._peek()
        if self.place >= len(self._tokens):
            raise _NotShellError
        self.place += 1
        return token

    def _is(self, *texts: str) -> bool:
        token = self._peek()
        return token.kind in ("word", "op") and token.text in texts

    def _need(self, text: str) -> None:
        self._skip_newlines()
        if not self._is(text):
            raise _NotShellError
        self._take()

    def _skip_newlines(self) -> None:
        while self._peek().kind == "newline" and self.place < len(self._tokens):
            self.place += 1

    def block(self) -> Block:
        """Commands up to a word that ends them."""
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise _NotShellError
        commands: list[Node] = []
        while True:
            self._skip_newlines()
            while self._is(";", "&"):
                self._take()
                self._skip_newlines()
            if self.place >= len(self._tokens) or self._is(*_ENDS):
                self._depth -= 1
                return Block(tuple(commands))
            commands.append(self._chain())

    def _chain(self) -> Node:
        first = self._piped()
        rest = []
        while self._is("&&", "||"):
            operator = self._take().text
            self._skip_newlines()
            rest.append((operator, self._piped()))
        return Chain(first, tuple(rest)) if rest else first

    def _piped(self) -> Node:
        negated = False
        while self._is("!"):
            self._take()
            negated = not negated
        parts = [self._command()]
        while self._is("|", "|&"):
            self._take()
            self._skip_newlines()
            parts.append(self._command())
        return Piped(tuple(parts), negated) if negated or len(parts) > 1 else parts[0]

    def _command(self) -> Node:
        token = self._peek()
        if token.kind == "arith":
            self._take()
            return Test((), token.text, token.line)
        if token.kind == "word":
            kinds: dict[str, Callable[[], Node]] = {
                "if": self._if,
                "for": self._for,
                "select": self._for,
                "while": self._while,
                "until": self._while,
                "case": self._case,
                "[[": self._test,
                "{": self._group,
                "function": self._function,
            }
            if token.text in kinds:
                return kinds[token.text]()
            if self._calls_function():
                return self._function()
        if self._is("("):
            self._take()
            body = self.block()
            self._need(")")
            self._redirections()
            return Block(body.commands, own=True)
        return self._simple()

    def _calls_function(self) -> bool:
        ahead = self._tokens[self.place + 1 : self.place + 3]
        texts = [token.text for token in ahead]
        return bool(_NAME.match(self._peek().text)) and texts == ["(", ")"]

    def _simple(self) -> Simple:
        line = self._peek().line
        words: list[Token] = []
        redirections: list[Redirection] = []
        while True:
            token = self._peek()
            if token.kind in ("word", "array"):
                words.append(self._take())
            elif token.kind == "op" and token.text in REDIRECTIONS:
                redirections.append(self._redirection())
            else:
                break
        if not words and not redirections:
            raise _NotShellError
        return Simple(tuple(words), tuple(redirections), line)

    def _redirection(self) -> Redirection:
        token = self._take()
        if token.text in ("<<", "<<-"):
            return Redirection("<<", token.items[0] if token.items else None)
        return Redirection(token.text, self._take() if self._peek().kind == "word" else None)

    def _redirections(self) -> None:
        while self._peek().kind == "op" and self._peek().text in REDIRECTIONS:
            self._redirection()

    def _if(self) -> If:
        line = self._take().line
        branches: list[tuple[Block | None, Block]] = []
        while True:
            condition = self.block()
            self._need("then")
            branches.append((condition, self.block()))
            if self._is("elif"):
                self._take()
                continue
            if self._is("else"):
                self._take()
                branches.append((None, self.block()))
            self._need("fi")
            self._redirections()
            return If(tuple(branches), line)

    def _body(self) -> Block:
        if self._is("{"):
            return self._group()
        self._need("do")
        body = self.block()
        self._need("done")
        self._redirections()
        return body

    def _for(self) -> For:
        line = self._take().line
        head = self._take()
        words: list[Token] = []
        if head.kind == "arith":
            name = ""
        else:
            name = head.text
            self._skip_newlines()
            if self._is("in"):
                self._take()
                while self._peek().kind == "word":
                    words.append(self._take())
            else:
                words = [Token("word", '"$@"', line)]
        self._skip_newlines()
        if self._is(";"):
            self._take()
        self._skip_newlines()
        expression = head.text if head.kind == "arith" else ""
        return For(name, tuple(words), self._body(), line, expression)

    def _while(self) -> While:
        until = self._take().text == "until"
        condition = self.block()
        return While(condition, self._body(), until)

    def _case(self) -> Case:
        line = self._take().line
        word = self._take()
        self._need("in")
        branches: list[tuple[tuple[Token, ...], Block]] = []
        while True:
            self._skip_newlines()
            if self._is("esac"):
                self._take()
                return Case(word, tuple(branches), line)
            if self._is("("):
                self._take()
            patterns = []
            while not self._is(")"):
                token = self._take()
                if token.kind == "newline":
                    raise _NotShellError
                if token.kind == "word":
                    patterns.append(token)
            self._take()
            body = self.block()
            branches.append((tuple(patterns), body))
            if self._is(";;"):
                self._take()

    def _test(self) -> Test:
        line = self._take().line
        words = []
        while not self._is("]]"):
            token = self._take()
            if token.kind != "newline":
                words.append(token)
        self._take()
        return Test(tuple(words), "", line)

    def _group(self) -> Block:
        self._need("{")
        body = self.block()
        self._need("}")
        self._redirections()
        return body

    def _function(self) -> Function:
        if self._is("function"):
            self._take()
        name = self._take().text
        if self._is("("):
            self._take()
            self._need(")")
        self._skip_newlines()
        return Function(name, self._command())
