"""`read_script`: the commands that a shell script would start, with their words expanded.

The script is read, never run: assignments, conditions, loops, functions and sourced files are
followed as a shell would; programs are only written down. Where the files do not decide a condition
both branches are read, and what they disagree on has no value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from interop.shell import own_commands
from interop.shell.conditions import condition, negated
from interop.shell.control_flow import (
    LeaveError,
    read_case,
    read_chain,
    read_for,
    read_if,
    read_while,
)
from interop.shell.expansion import Substitute, compute, expand_text, expand_words
from interop.shell.folder import ConfigFolder
from interop.shell.here_document import document, write_file
from interop.shell.lexer import Token
from interop.shell.own_commands import Sourced
from interop.shell.script_reading import HERE, Command, ScriptReading
from interop.shell.stream_edit import write_edited
from interop.shell.substitution import substitute
from interop.shell.syntax import (
    Block,
    Case,
    Chain,
    For,
    If,
    Node,
    Piped,
    Redirection,
    Simple,
    Test,
    While,
    parse,
)
from interop.shell.text_places import Place, Word, hole_numbers, without_holes
from interop.shell.variables import Scope, Variable

_MOST_STEPS = 60_000
_MOST_DEEP = 40
_SHELLS = ("bash", "sh", "zsh", "ksh", "dash")
# Options of what submits a job that hold its commands.
_TEXT_OPTIONS = ("--command", "--wrap", "--cmd")
_SUBMITS = ("xpk", "sbatch", "srun", "gcloud", "runai", "mcli", "ngc")


def read_script(
    name: str,
    folder: ConfigFolder,
    *,
    header: Callable[[str, str], dict[str, str]],
    shown: str = "",
) -> ScriptReading:
    """Read a script of the folder.

    shown   the file that holds it, where it is a text in another one
    header  what a scheduler sets for a script (its name, its text), from its first lines
    """
    reading = ScriptReading()
    runner = _Runner(folder, reading, header)
    scope = Scope(holes=reading.holes, script=name)
    runner.file(name, scope, shown)
    return reading


class _Runner:
    def __init__(
        self,
        folder: ConfigFolder,
        reading: ScriptReading,
        header: Callable[[str, str], dict[str, str]],
    ) -> None:
        self._folder, self._reading, self._header = folder, reading, header
        self._functions: dict[str, tuple[Node, str]] = {}
        self._open: list[str] = []
        self._steps = 0
        self.decided = True
        self._deep = 0
        self.asked_unknown = False

    # -- files

    def file(self, name: str, scope: Scope, shown: str = "") -> Scope:
        """Reads a script into the scope; `exit` ends it.

        shown  the file that holds it, where it is a here-document
        """
        text = self._folder.text(name)
        if text is None:
            return scope
        self._open.append(name)
        self._reading.sourced.append(name)
        outer, scope.script = scope.script, shown or name
        for variable, value in self._header(name, text).items():
            scope.variables.setdefault(variable, Variable(value, Place(name, 1), exported=True))
        block, faults = parse(text)
        self._reading.faults += [Place(name, line) for line in faults]
        try:
            self._block(block, scope)
        except LeaveError as leave:
            if leave.how == "exit" and len(self._open) > 1 and scope.script != self._open[0]:
                scope.script = outer
                self._open.pop()
                self._reading.scopes[shown or name] = scope
                raise
        self._reading.scopes[shown or name] = scope
        self._open.pop()
        scope.script = outer
        return scope

    def _source(self, sourced: Sourced, scope: Scope, place: Place) -> None:
        name = self._folder.find(sourced.name, beside=scope.script)
        if name is None:
            self._reading.missing.append((place, without_holes(sourced.name)))
            return
        if name in self._open:
            self._reading.cycles.append((place, " -> ".join((*self._open, name))))
            return
        if sourced.own:
            inner = Scope(dict(scope.inherited()), sourced.arguments, scope.holes, name, True)
            for key, value in sourced.environment.items():
                inner.variables[key] = Variable(value.text, value.place, exported=True)
            functions = dict(self._functions)
            with contextlib.suppress(LeaveError):
                self.file(name, inner)
            self._functions = functions
            return
        outer = scope.arguments
        if sourced.arguments:
            scope.arguments = sourced.arguments
        try:
            self.file(name, scope)
        except LeaveError as leave:
            if leave.how != "return":
                raise
        finally:
            scope.arguments = outer

    @property
    def is_worn_out(self) -> bool:
        """Whether too much was read already."""
        return self._steps > _MOST_STEPS

    # -- commands

    def _block(self, block: Block, scope: Scope) -> bool | None:
        status: bool | None = True
        for command in block.commands:
            status = self.node(command, scope)
        return status

    def node(self, node: Node, scope: Scope) -> bool | None:
        """Reads a command; whether it succeeds, None where the files do not tell."""
        self._steps += 1
        if self._steps > _MOST_STEPS or self._deep > _MOST_DEEP:
            return None
        self._deep += 1
        try:
            return self._read(node, scope)
        finally:
            self._deep -= 1

    def _read(self, node: Node, scope: Scope) -> bool | None:
        if isinstance(node, Simple):
            return self._simple(node, scope)
        if isinstance(node, Test):
            return self._test(node, scope)
        if isinstance(node, Block):
            if not node.own:
                return self._block(node, scope)
            try:
                return self._block(node, scope.copy())
            except LeaveError:
                return None
        if isinstance(node, Piped):
            place = Place(scope.script, getattr(node.parts[0], "line", 1))
            write_edited(node.parts, scope, place, self._folder, self.substitute)
            status: bool | None = None
            for part in node.parts:
                status = self.node(part, scope)
            return negated(status) if node.negated else status
        if isinstance(node, Chain):
            return read_chain(self, node, scope)
        if isinstance(node, If):
            read_if(self, node.branches, scope, Place(scope.script, node.line))
            return None
        if isinstance(node, Case):
            read_case(self, node, scope)
            return None
        if isinstance(node, For):
            read_for(self, node, scope)
            return None
        if isinstance(node, While):
            read_while(self, node, scope)
            return None
        self._functions[node.name] = (node.body, scope.script)
        return True

    def _test(self, node: Test, scope: Scope) -> bool | None:
        place = Place(scope.script, node.line)
        if not node.words:
            value = compute(node.expression, place, scope, self.substitute)
            return None if hole_numbers(value) else value != "0"
        words = []
        for token in node.words:
            if token.kind == "word":
                words.append(expand_text(token.text, place, scope, self.substitute))
            else:
                words.append(token.text)
        self.asked_unknown |= any(hole_numbers(word) for word in words)
        return condition(words, scope.holes, patterns=True)

    @property
    def substitute(self) -> Substitute:
        """The output of a command in a word."""
        return substitute

    def _simple(self, node: Simple, scope: Scope) -> bool | None:
        place = Place(scope.script, node.line)
        set_here: dict[str, Variable] = {}
        begin = 0
        while begin < len(node.words):
            token = node.words[begin]
            own = scope.copy() if self._is_prefix(node.words, begin) else scope
            if not own_commands.assign(token, own, place, self.substitute):
                break
            if own is not scope:
                changed = own.variables.keys()
                set_here |= {
                    n: own.variables[n]
                    for n in changed
                    if own.variables[n] is not scope.variables.get(n)
                }
            begin += 1
        raw = node.words[begin:]
        if not raw:
            return True
        words = expand_words(_without_arrays(raw), scope, self.substitute)
        if not words:
            return True
        write_file(words, node.redirections, scope, place, self._folder, self.substitute)
        if words[0].plain == "sed":
            write_edited((node,), scope, place, self._folder, self.substitute)
        return self._started(words, raw, node.redirections, set_here, scope, place)

    def _is_prefix(self, words: Sequence[Token], begin: int) -> bool:
        """Whether an assignment is for a command behind it alone."""
        return any(
            token.kind == "word" and not own_commands.assigns(token) for token in words[begin:]
        )

    def _started(
        self,
        words: list[Word],
        raw: Sequence[Token],
        redirections: Sequence[Redirection],
        set_here: dict[str, Variable],
        scope: Scope,
        place: Place,
    ) -> bool | None:
        name = words[0].plain
        texts = [word.plain for word in words]
        if name in ("exit", "return", "break", "continue"):
            raise LeaveError(name)
        if name in ("[", "test"):
            end = -1 if name == "[" and texts[-1] == "]" else len(texts)
            self.asked_unknown |= any(hole_numbers(text) for text in texts)
            return condition(texts[1:end], scope.holes)
        if name in self._functions:
            return self._call(words, scope)
        if name == "eval":
            return self._text(" ".join(texts[1:]), scope, place)
        sourced = own_commands.sourced(words, set_here)
        if sourced is not None and (not sourced.own or self._folder.find(sourced.name)):
            self._source(sourced, scope, place)
            if not sourced.own:
                return None
        handled = own_commands.run(words, raw, redirections, scope, place, self.substitute)
        if handled is not None:
            return handled
        if self._runs_here_document(words, redirections, scope, place):
            return None
        quoted = _quoted_command(texts)
        if quoted:
            cut, begin = quoted
            text = words[begin].text
            if begin == cut:
                text = text.partition("=")[2]
            return self._text(text, scope, words[begin].place, words[:cut])
        environment = {**scope.inherited(), **set_here}
        self._reading.commands.append(
            Command(tuple(words), place, scope.script, environment, self.decided)
        )
        return None

    def _call(self, words: list[Word], scope: Scope) -> bool | None:
        body, script = self._functions[words[0].plain]
        outer, scope.arguments = scope.arguments, tuple(words[1:])
        own, scope.script = scope.script, script
        called, scope.called = scope.called, True
        try:
            return self.node(body, scope)
        except LeaveError as leave:
            if leave.how == "exit":
                raise
            return None
        finally:
            scope.arguments, scope.script, scope.called = outer, own, called

    def _text(
        self, text: str, scope: Scope, place: Place, launcher: Sequence[Word] = ()
    ) -> bool | None:
        """Commands in a text: `eval`, `bash -c`. Their lines are those that the text was in."""
        if self._deep > _MOST_DEEP // 2:
            return None
        before = len(self._reading.commands)
        block, _ = parse(text, place.line)
        inner = scope.copy() if launcher else scope
        try:
            status = self._block(block, inner)
        except LeaveError:
            status = None
        found = self._reading.commands
        found[before:] = [replace(c, words=(*launcher, *c.words)) for c in found[before:]]
        return status

    def _runs_here_document(
        self,
        words: list[Word],
        redirections: Sequence[Redirection],
        scope: Scope,
        place: Place,
    ) -> bool:
        """`sbatch <<EOF`, `bash <<EOF`: the document is a script."""
        name = words[0].plain.rsplit("/", 1)[-1]
        if name not in (*_SHELLS, "sbatch"):
            return False
        for redirection in redirections:
            if redirection.operator == "<<" and redirection.target is not None:
                text, line = document(redirection.target, scope, self.substitute)
                script = f"{scope.script}{HERE}"
                self._folder.texts[script] = "\n" * (line - 1) + text
                self._folder.written[script] = (scope.script, line)
                inner = Scope(dict(scope.inherited()), (), scope.holes, script)
                with contextlib.suppress(LeaveError):
                    self.file(script, inner, shown=scope.script)
                return True
        return False


def _without_arrays(raw: Sequence[Token]) -> tuple[Token, ...]:
    """The words but the arrays (`declare -a NAME=(...)`), which builtins look at themselves."""
    return tuple(token for token in raw if token.kind == "word")


def _quoted_command(texts: Sequence[str]) -> tuple[int, int] | None:
    """In `srun bash -x -c TEXT` and `xpk --command TEXT` where the launcher's words end, and where
    the text stands; one number twice for `--command=TEXT`."""
    for number, text in enumerate(texts):
        option, equals, value = text.partition("=")
        if number and option in _TEXT_OPTIONS and texts[0].rsplit("/", 1)[-1] in _SUBMITS:
            if equals and " " in value.strip():
                return number, number
            if not equals and number + 1 < len(texts) and " " in texts[number + 1].strip():
                return number, number + 1
        name = text.rsplit("/", 1)[-1]
        if name not in (*_SHELLS, "bcprun"):
            continue
        for place in range(number + 1, len(texts) - 1):
            word = texts[place]
            if name == "bcprun" and word in ("-c", "--cmd"):
                return place, place + 1
            if name != "bcprun" and not word.startswith("-"):
                break
            if name != "bcprun" and not word.startswith("--") and "c" in word:
                return number, place + 1
    return None
