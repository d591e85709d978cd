"""The shell's own commands that change variables: assignments, export, declare, read, set, shift,
source; and which files a command starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from interop.shell.expansion import Substitute, compute, expand, expand_text
from interop.shell.here_document import document
from interop.shell.lexer import Token
from interop.shell.syntax import Redirection
from interop.shell.text_places import Place, Word, hole_numbers, without_holes
from interop.shell.variables import Scope, Variable

Words = Sequence[Word]
Redirections = Sequence[Redirection]

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=", re.S)
_KEYED = re.compile(r"\[([^\]]+)\]=(.*)", re.S)
_DECLARES = ("export", "declare", "typeset", "local", "readonly")
_SHELLS = ("bash", "sh", "zsh", "ksh")
_QUIET = frozenset(
    {
        "set", "shopt", "ulimit", "module", "cd", "mkdir", "rm", "cp", "mv", "ln", "echo", "printf",
        "cat", "sleep", "wait", "trap", "umask", "chmod", "touch", "pwd", "hostname", "date",
        "which", "whoami", "env", "nvidia-smi", "ls", "true", "false", ":", "pushd", "popd", "type",
        "command", "alias", "kill", "pkill", "ps", "df", "free", "tee", "sed", "awk", "grep",
        "find", "conda", "pip", "git", "wget", "curl", "tar", "unzip", "scp", "rsync", "ray", "cut",
        "tr", "head", "tail", "sort", "uniq", "basename", "dirname", "realpath", "hash", "builtin",
        "disown", "unalias",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sourced:
    """A script that another one starts: in its own variables (`source`) or in new ones."""

    name: str
    arguments: tuple[Word, ...]
    own: bool
    environment: dict[str, Variable]


def assigns(token: Token) -> bool:
    """Whether a word is an assignment."""
    return token.kind == "array" or _ASSIGNED.match(token.text) is not None


def assign(token: Token, scope: Scope, place: Place, run: Substitute) -> bool:
    """Makes the assignment that a word is; False where it is none."""
    place = Place(place.file, token.line)
    found = _ASSIGNED.match(token.text)
    if found is None:
        return False
    name, index, plus = found[1], found[2], found[3]
    if token.kind == "array":
        _assign_array(name, token, scope, place, run, add=bool(plus))
        return True
    text = expand_text(token.text[found.end() :], place, scope, run)
    if index is None:
        scope.assign(name, text, place, add=bool(plus))
        return True
    old = scope.variables.get(name)
    if old is not None and old.words is not None:
        number = compute(index, place, scope, run)
        words = list(old.words)
        if not hole_numbers(number) and 0 <= int(number) <= len(words) + 1000:
            words += [Word("", place)] * (int(number) + 1 - len(words))
            words[int(number)] = Word(text, place)
            scope.assign_words(name, tuple(words), place)
        return True
    key = without_holes(expand_text(index, place, scope, run))
    table = dict(old.table or {}) if old is not None else {}
    scope.variables[name] = Variable("", place, table={**table, key: text})
    return True


def _assign_array(
    name: str, token: Token, scope: Scope, place: Place, run: Substitute, *, add: bool
) -> None:
    keyed = [_KEYED.fullmatch(item.text) for item in token.items]
    if token.items and all(keyed):
        table = {}
        for item, found in zip(token.items, keyed, strict=True):
            assert found is not None
            at = Place(place.file, item.line)
            key = without_holes(expand_text(found[1], at, scope, run))
            table[key] = expand_text(found[2], at, scope, run)
        scope.variables[name] = Variable("", place, table=table)
        return
    words: list[Word] = []
    for item in token.items:
        words += expand(item.text, Place(place.file, item.line), scope, run)
    scope.assign_words(name, tuple(words), place, add=add)


def sourced(words: Sequence[Word], environment: dict[str, Variable]) -> Sourced | None:
    """The script that a command reads or starts, if it is one."""
    texts = [word.plain for word in words]
    name = texts[0]
    if name in ("source", ".") and len(words) > 1:
        return Sourced(words[1].text, tuple(words[2:]), False, {})
    for number, text in enumerate(texts):
        base = text.rsplit("/", 1)[-1]
        if base in _SHELLS or base == "sbatch":
            return _started(words, number + 1, environment)
        if text.endswith((".sh", ".slurm", ".sbatch", ".bash")) and number == 0:
            return Sourced(words[0].text, tuple(words[1:]), True, environment)
        starts = texts[0].rsplit("/", 1)[-1] in ("srun", "exec", "nohup", "mpirun")
        if number and starts and text.endswith((".sh", ".bash")) and not text.startswith("-"):
            return Sourced(words[number].text, tuple(words[number + 1 :]), True, environment)
    return None


def _started(words: Sequence[Word], begin: int, environment: dict[str, Variable]) -> Sourced | None:
    """The script behind `bash` or `sbatch`, whose options set what a header would."""
    given = dict(environment)
    at = begin
    while at < len(words):
        text = words[at].plain
        if not text.startswith("-"):
            return Sourced(words[at].text, tuple(words[at + 1 :]), True, given)
        if text in ("-c", "-lc"):
            return None
        option, equals, value = text.partition("=")
        variable = _SBATCH.get(option)
        if not equals and (variable or option in _SBATCH_VALUED) and at + 1 < len(words):
            value = words[at + 1].text
            at += 1
        if variable and value:
            given[variable] = Variable(value, words[at].place)
        at += 1
    return None


_SBATCH = {
    "-N": "SLURM_NNODES",
    "--nodes": "SLURM_NNODES",
    "-n": "SLURM_NTASKS",
    "--ntasks": "SLURM_NTASKS",
    "--ntasks-per-node": "SLURM_NTASKS_PER_NODE",
    "--gpus-per-node": "SLURM_GPUS_PER_NODE",
}
_SBATCH_VALUED = frozenset(
    {"-p", "-A", "-J", "-t", "-o", "-e", "-w", "-d", "--partition", "--account", "--job-name",
     "--time"}
)  # fmt: skip


def run(
    words: Sequence[Word],
    raw: Sequence[Token],
    redirections: Sequence[Redirection],
    scope: Scope,
    place: Place,
    substitute: Substitute,
) -> bool | None:
    """Runs a command of the shell's own; None where it is none."""
    name = words[0].plain
    if name in _DECLARES:
        for token in raw[1:]:
            plain = token.text.lstrip("-+")
            if token.kind == "word" and token.text.startswith("-"):
                continue
            if not assign(token, scope, place, substitute) and name in ("declare", "local"):
                scope.assign(plain, "", place)
            if name == "export":
                found = re.match(r"[A-Za-z_]\w*", token.text)
                if found:
                    scope.export(found[0], place)
        return True
    handler = _HANDLERS.get(name)
    if handler is not None:
        handler(words, redirections, scope, place, substitute)
        return True
    return {"true": True, ":": True, "echo": True, "mkdir": True, "cd": True, "false": False}.get(
        name
    )


def is_quiet(name: str) -> bool:
    """Whether a command of that name never trains."""
    return name.rsplit("/", 1)[-1] in _QUIET


def _unset(words: Words, _: Redirections, scope: Scope, __: Place, ___: Substitute) -> None:
    for word in words[1:]:
        scope.variables.pop(word.plain, None)


def _shift(words: Words, _: Redirections, scope: Scope, __: Place, ___: Substitute) -> None:
    count = words[1].plain if len(words) > 1 else "1"
    scope.arguments = scope.arguments[int(count) if count.isdigit() else 1 :]


def _set(words: Words, _: Redirections, scope: Scope, __: Place, ___: Substitute) -> None:
    texts = [word.plain for word in words]
    if "--" in texts:
        scope.arguments = tuple(words[texts.index("--") + 1 :])


def _let(words: Words, _: Redirections, scope: Scope, place: Place, run: Substitute) -> None:
    for word in words[1:]:
        compute(word.plain, place, scope, run)


def _read(
    words: Words, redirections: Redirections, scope: Scope, place: Place, run: Substitute
) -> None:
    names = [word.plain for word in words[1:] if re.fullmatch(r"[A-Za-z_]\w*", word.plain)]
    given = None
    whole = any(word.plain == "-d" for word in words)
    for redirection in redirections:
        if redirection.operator == "<<" and redirection.target is not None and names and whole:
            # `read -r -d '' NAME <<EOF`: all of the document.
            text, _ = document(redirection.target, scope, run)
            scope.assign(names[-1], text.replace("\\\n", " "), place)
            return
        if redirection.operator == "<<<" and redirection.target is not None:
            given = expand_text(redirection.target.text, place, scope, run)
    pieces = given.split(None, max(0, len(names) - 1)) if given is not None else []
    for number, name in enumerate(names):
        if number < len(pieces):
            scope.assign(name, pieces[number], place)
        else:
            scope.assign(name, scope.hole("output", f"read {name}", place), place)


def _mapfile(words: Words, _: Redirections, scope: Scope, place: Place, __: Substitute) -> None:
    name = words[-1].plain
    if re.fullmatch(r"[A-Za-z_]\w*", name):
        scope.assign(name, scope.hole("output", words[0].plain, place), place)


_HANDLERS: dict[str, Callable[[Words, Redirections, Scope, Place, Substitute], None]] = {
    "unset": _unset,
    "shift": _shift,
    "set": _set,
    "let": _let,
    "read": _read,
    "mapfile": _mapfile,
    "readarray": _mapfile,
}
