"""`read_script`: the commands started by a shell script, and its variables.

Nothing is run and no shell is emulated: assignments, defaults, arrays, plain arithmetic, sourced
and called scripts and functions are followed in order. Branches with unknown conditions and loops
are read without a decision (`walk.py`), and the output of commands is unknown. Unknown values are
marked in the words of a command, with their place and reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from shardwright_frameworks.shell.config_folder import ConfigFolder
from shardwright_frameworks.shell.expansion import (
    documents_of,
    expand_document,
    expand_text,
    expand_words,
)
from shardwright_frameworks.shell.script_reading import HERE, Command, ScriptReading
from shardwright_frameworks.shell.text_marks import (
    Place,
    Word,
    unknown_numbers,
    without_place_marks,
    without_unknowns,
)
from shardwright_frameworks.shell.tokens import Reference, Token, prepare, tokens_of
from shardwright_frameworks.shell.variables import Scope, Variable
from shardwright_frameworks.shell.walk import Array, Simple, Walk

Header = Callable[[str, str], Mapping[str, str]]
_MOST_DEEP = 20
_MOST_TEXTS = 3000
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=", re.S)
_NAME = re.compile(r"[A-Za-z_]\w*")
_SHELLS = ("bash", "sh", "zsh", "ksh", "dash")
_DECLARES = ("export", "declare", "typeset", "local", "readonly")
_ENDS = ("exit", "return", "break", "continue")
_STARTS_SCRIPT = ("srun", "exec", "nohup", "mpirun")
_PRINTS_OPTIONS = re.compile(r"yq '[^']*\.(\w+) \| to_entries[^']*' (\S+)")
_OPTION_LINE = re.compile(r" +(--[\w-]+): *(.*?) *(?:#.*)?$")
_REPLACES = re.compile(r"s([/#|,])([\w-]+)\1([^/#|,]*)\1g?")
_SUCCEEDS = frozenset({"true", ":", "echo", "mkdir", "cd", "set", "pushd", "popd"})
# Options of programs that submit a job; their text holds its commands.
_TEXT_OPTIONS = ("--command", "--wrap", "--cmd")
_SUBMITS = (
    "xpk",
    "sbatch",
    "srun",
    "gcloud",
    "runai",
    "mcli",
    "ngc",
    "multihost_runner.py",
    "multihost_job.py",
)
_SBATCH = {
    "-N": "SLURM_NNODES",
    "--nodes": "SLURM_NNODES",
    "-n": "SLURM_NTASKS",
    "--ntasks": "SLURM_NTASKS",
    "--ntasks-per-node": "SLURM_NTASKS_PER_NODE",
    "--gpus-per-node": "SLURM_GPUS_PER_NODE",
}
_SBATCH_VALUES = frozenset(
    {"-p", "-A", "-J", "-t", "-o", "-e", "-w", "-d", "--partition", "--account", "--job-name",
     "--time"}
)  # fmt: skip


def read_script(
    name: str, folder: ConfigFolder, *, header: Header, shown: str = "", line: int = 1
) -> ScriptReading:
    """Reads a script of the folder.

    shown, line   the file and line of its text, if it is part of another file
    header        function from a script's name and text to the variables that a scheduler sets
    """
    reading = ScriptReading()
    scope = Scope(unknowns=reading.unknowns, script=name)
    reader = _Reader(folder, reading, header)
    scope.output = reader.output
    reader.read_file(name, scope, shown, line)
    return reading


class _Reader:
    def __init__(self, folder: ConfigFolder, reading: ScriptReading, header: Header) -> None:
        self._folder, self._reading, self._header = folder, reading, header
        self.functions: dict[str, tuple[Token, ...]] = {}
        self._open: list[str] = []
        self._depth = self._texts = 0
        self._piped: str | None = None

    # -- files and texts

    def read_file(self, name: str, scope: Scope, shown: str = "", line: int = 1) -> None:
        """Reads a script into the scope."""
        text = self._folder.text(name)
        if text is None or len(self._open) > _MOST_DEEP:
            return
        self._open.append(name)
        self._reading.sourced.append(name)
        outer, scope.script = scope.script, shown or name
        for variable, value in self._header(name, text).items():
            scope.variables.setdefault(variable, Variable(value, Place(name, 1), exported=True))
        self._walk(tokens_of(text, Place(shown or name, line), scope.references), scope)
        self._reading.scopes[shown or name] = scope
        self._open.pop()
        scope.script = outer

    def _walk(self, tokens: Sequence[Token], scope: Scope) -> None:
        self._texts += 1
        if self._depth > _MOST_DEEP or self._texts > _MOST_TEXTS:
            return
        self._depth += 1
        if tokens:
            Walk(tokens, scope, self, self._depth).all()
        self._depth -= 1

    def _find(self, name: str, scope: Scope, place: Place) -> str | None:
        found = self._folder.find(name, near=scope.script)
        if found is not None and found in self._open:
            self._reading.cycles.append((place, " -> ".join((*self._open, found))))
            return None
        return found

    def _source(self, words: Sequence[Word], scope: Scope, place: Place) -> None:
        """Read `source FILE ARGUMENTS` with the same variables."""
        if self._folder.find(words[0].text, near=scope.script) is None:
            missing = without_unknowns(words[0].text)
            if missing not in scope.optional:
                self._reading.missing.append((place, missing))
            return
        name = self._find(words[0].text, scope, place)
        if name is None:
            return
        outer = scope.arguments, scope.called
        if len(words) > 1:
            scope.arguments, scope.called = tuple(words[1:]), True
        self.read_file(name, scope)
        scope.arguments, scope.called = outer
        if scope.ended == "return":
            scope.ended = ""

    def _call_script(
        self, words: Sequence[Word], environment: Mapping[str, Variable], scope: Scope, place: Place
    ) -> None:
        """Read `bash FILE ARGUMENTS` with separate variables; `sbatch "$0"` is the same run."""
        if self._folder.find(words[0].text, near=scope.script) == scope.script:
            return
        name = self._find(words[0].text, scope, place)
        if name is None:
            return
        functions, self.functions = self.functions, {}
        self.read_file(name, self._inner(environment, scope, tuple(words[1:])))
        self.functions = functions

    def _inner(
        self, environment: Mapping[str, Variable], scope: Scope, arguments: tuple[Word, ...]
    ) -> Scope:
        given = {name: replace(each, exported=True) for name, each in environment.items()}
        return replace(
            scope, variables={**scope.exported(), **given}, arguments=arguments, called=True
        )

    def _read_text(
        self, text: str, scope: Scope, place: Place, launcher: Sequence[Word] = ()
    ) -> None:
        """Read the commands in a text (`eval`, `bash -c`), prefixed with its starting words."""
        before = len(self._reading.commands)
        tokens = tokens_of(text, place, scope.references)
        self._walk(tokens, scope.copy() if launcher else scope)
        self._prefix(before, launcher)

    def _prefix(self, before: int, launcher: Sequence[Word]) -> None:
        """Put the words that start them before the commands read since a number of commands."""
        commands = self._reading.commands
        commands[before:] = [
            replace(each, words=(*launcher, *each.words)) for each in commands[before:]
        ]

    # -- commands

    def run(self, simple: Simple, scope: Scope) -> bool | None:
        """Reads a simple command: an assignment, a change of variables, or a started program."""
        place, words = simple.place, list(simple.words)
        assigned = scope.copy()
        begin = 0
        while begin < len(words) and self._assign(words[begin], assigned):
            begin += 1
        if begin == len(words):
            scope.variables = assigned.variables
            return True
        environment = {
            name: each
            for name, each in assigned.variables.items()
            if each is not scope.variables.get(name)
        }
        first = words[begin]
        if isinstance(first, Token) and first.text in _DECLARES:
            for word in words[begin + 1 :]:
                self._declare(word, scope, exports=first.text == "export")
                if any(isinstance(each, Token) and each.text == "-n" for each in words):
                    self._refer(word, scope)  # to another variable
            return True
        tokens = [word for word in words[begin:] if isinstance(word, Token)]
        expanded = expand_words(tokens, scope)
        if not expanded:
            return True
        return self._started(expanded, environment, simple, scope, place)

    def _assign(self, word: Token | Array, scope: Scope) -> bool:
        """Execute an assignment; False if the word is none."""
        if isinstance(word, Array):
            keyed = [re.match(r"\[([^\]]+)\]=", token.text) for token in word.tokens]
            if any(keyed):
                table = {
                    expand_text(replace(token, text=key[1]), scope): expand_text(
                        replace(token, text=token.text[key.end() :]), scope
                    )
                    for token, key in zip(word.tokens, keyed, strict=True)
                    if key is not None
                }
                scope.variables[word.name] = Variable("", word.place, table=table)
            else:
                values = tuple(expand_words(word.tokens, scope))
                scope.assign_words(word.name, values, word.place, add=word.add)
            return True
        found = _ASSIGNED.match(word.text)
        if found is None:
            return False
        if found[2]:
            value = scope.unknown("expression", f"{found[1]}{found[2]}=...", word.place)
            scope.assign(found[1], value, word.place)
            return True
        value = expand_text(replace(word, text=word.text[found.end() :]), scope)
        scope.assign(found[1], value, word.place, add=bool(found[3]))
        return True

    def _declare(self, word: Token | Array, scope: Scope, *, exports: bool) -> None:
        is_assigned = self._assign(word, scope)
        name = word.name if isinstance(word, Array) else _NAME.match(word.text)
        text = name if isinstance(name, str) else name[0] if name is not None else ""
        if exports:
            scope.export(text)
        elif text and not is_assigned:
            scope.assign(text, "", word.place)

    def _refer(self, word: Token | Array, scope: Scope) -> None:
        found = _ASSIGNED.match(word.text) if isinstance(word, Token) else None
        named = scope.text_of(found[1]) if found is not None else None
        if found is not None and named in scope.variables:
            scope.variables[found[1]] = scope.variables[named]

    def output(self, command: str, scope: Scope) -> str | None:
        """The options that yq prints from a YAML file (github.com/yanring/Megatron-MoE-ModelZoo:
        `--bf16: true` is a switch, false ones are left out)."""
        found = _PRINTS_OPTIONS.match(command)
        if found is None:
            return None
        path = Token(prepare(found[2], Place("", 1), scope.references), Place("", 1))
        name = self._folder.find(without_place_marks(expand_text(path, scope)))
        text = self._folder.text(name) if name is not None else None
        section = re.search(rf"(?ms)^{found[1]}:$(.*?)(?=^\S|\Z)", text or "")
        if name is None or text is None or section is None:
            return None
        place = Place(name.removesuffix(".tmp"), text[: section.start()].count("\n") + 1)
        lines = [_OPTION_LINE.match(line) for line in section[1].split("\n")]
        pairs = [f"{line[1]} {line[2]}" if line is not None else "" for line in lines]
        filled = expand_document(Reference("\n".join(pairs), place, False, True), scope)
        options = [re.match(r"(.*?--\S+) ?(.*)", line, re.S) for line in filled.split("\n")]
        return " ".join(
            each[1] if each[2] == "true" else each[0]
            for each in options
            if each is not None and each[2] != "false"
        )

    def _started(
        self,
        words: list[Word],
        environment: Mapping[str, Variable],
        simple: Simple,
        scope: Scope,
        place: Place,
    ) -> bool | None:
        name = words[0].plain
        if name in _ENDS:
            scope.ended = name
            return None
        if name in self.functions:
            self._call_function(words, scope)
            return None
        if name == "getopts" and not scope.arguments:
            return False
        if self._changes_variables(words, environment, simple, scope, place):
            return True
        if self._writes_file(words, simple, scope) or name in _SUCCEEDS:
            return True
        if name == "eval":
            self._read_text(" ".join(word.text for word in words[1:]), scope, place)
            return None
        if name in ("source", ".") and len(words) > 1:
            self._source(words[1:], scope, place)
            return True
        called = _called_script(words)
        exported = {**scope.exported(), **environment}
        if called is not None and starts_primus(called[0][0].plain, exported):
            called = None  # its options are read, not the wrapper
        if called is not None and self._folder.find(called[0][0].text, near=scope.script):
            before, options = len(self._reading.commands), [word.plain for word in words]
            self._call_script(called[0], {**environment, **called[1]}, scope, place)
            if "--no-python" in options:  # of torchrun, which starts the script in each rank
                self._prefix(before, words[: options.index("--no-python")])
                return None
        if self._runs_document(words, simple, scope):
            return None
        quoted = _quoted_command(words)
        if quoted is not None:
            launcher, text, at = quoted
            self._read_text(text, scope, at, launcher)
            return None
        self._reading.commands.append(
            Command(
                tuple(words),
                place,
                scope.script,
                {**scope.exported(), **environment},
                self._open[-1],
            )
        )
        return False if name == "false" else None

    def _call_function(self, words: Sequence[Word], scope: Scope) -> None:
        outer = scope.arguments, scope.called
        scope.arguments, scope.called = tuple(words[1:]), True
        self._walk(self.functions[words[0].plain], scope)
        scope.arguments, scope.called = outer
        if scope.ended == "return":
            scope.ended = ""

    def _changes_variables(
        self,
        words: Sequence[Word],
        environment: Mapping[str, Variable],
        simple: Simple,
        scope: Scope,
        place: Place,
    ) -> bool:
        """Execute `unset`, `shift`, `read` and others that set variables; False for the rest."""
        name, texts = words[0].plain, [word.plain for word in words]
        if name == "unset":
            for text in texts[1:]:
                scope.variables.pop(text, None)
        elif name == "shift":
            number = texts[1] if len(texts) > 1 else "1"
            known = scope.called and number.isdigit()
            scope.arguments = scope.arguments[int(number) :] if known else ()
            scope.called = known
        elif name in ("read", "mapfile", "readarray", "let"):
            given = next(iter(_documents(simple, scope)), None)
            names = [text for text in texts[1:] if _NAME.fullmatch(text)]
            parts = _read_parts(environment, simple, scope, len(names))
            if name == "read" and parts:
                for variable, part in zip(names, parts, strict=False):
                    scope.assign(variable, part, place)
                return True
            for text in texts[1:]:
                found = _NAME.match(text)
                if found is None:
                    continue
                value = scope.unknown("output", " ".join(texts[:2]), place)
                if given is not None and name == "read":
                    # `read -r -d '' NAME <<EOF`: all of the document.
                    value = expand_document(given, scope).replace("\\\n", " ")
                scope.assign(found[0], value, place)
        else:
            return False
        return True

    def _writes_file(self, words: Sequence[Word], simple: Simple, scope: Scope) -> bool:
        """Add a file written by `cat <<EOF > file`, `echo ... > file` or `tee file <<EOF` to the
        folder."""
        name = words[0].plain
        if name == "envsubst":  # references are followed where the text is read
            reads = [token for sign, token in simple.redirections if sign == "<"]
            writes = [token for sign, token in simple.redirections if sign == ">"]
            source = self._folder.find(expand_text(reads[0], scope)) if reads else None
            if source is not None and writes:
                target, written = expand_text(writes[0], scope), self._folder.text(source) or ""
                self._folder.write(target, written, scope.script, 1)
            return True
        if name == "sed":
            self._replaces_text(words, simple, scope)
            return True
        if name not in ("cat", "echo", "printf", "tee"):
            return False
        target = words[-1].text if name == "tee" and len(words) > 1 else ""
        for sign, token in simple.redirections:
            if sign in (">", ">|"):
                target = expand_text(token, scope)
        line = simple.place.line
        text = None
        for document in _documents(simple, scope):
            text, line = expand_document(document, scope), document.place.line
        if text is None and name in ("echo", "printf"):
            text = " ".join(word.plain for word in words[1:] if word.plain not in ("-e", "-n"))
        if target and text is not None:
            self._folder.write(target, without_place_marks(text), scope.script, line)
        return True

    def _replaces_text(self, words: Sequence[Word], simple: Simple, scope: Scope) -> None:
        """Add a file written by `sed "s/STAGE/1/" template.json | sed ... > file` of plain
        words."""
        scripts = [_REPLACES.fullmatch(without_place_marks(word.text)) for word in words[1:]]
        named = [word.text for word, found in zip(words[1:], scripts, strict=True)
                 if found is None and not word.plain.startswith("-")]  # fmt: skip
        if named:
            source = self._folder.find(named[0], near=scope.script)
            self._piped = self._folder.text(source) if source is not None else None
        for found in scripts:
            if found is not None and self._piped is not None:
                known = not unknown_numbers(found[3])
                self._piped = self._piped.replace(found[2], found[3]) if known else None
        for sign, token in simple.redirections:
            if sign == ">" and self._piped is not None:
                self._folder.write(expand_text(token, scope), self._piped, scope.script, 1)

    def _runs_document(self, words: Sequence[Word], simple: Simple, scope: Scope) -> bool:
        """Read the document of `sbatch <<EOF` or `bash <<EOF` as a script."""
        documents = _documents(simple, scope)
        if words[0].plain.rsplit("/", 1)[-1] not in (*_SHELLS, "sbatch") or not documents:
            return False
        number = sum(HERE in name for name in self._folder.texts)
        script = f"{scope.script}{HERE}{number or ''}"
        self._folder.texts[script] = without_place_marks(expand_document(documents[0], scope))
        line = documents[0].place.line
        self._folder.written[script] = (scope.script, line)
        self.read_file(script, self._inner({}, scope, ()), scope.script, line)
        return True


def _documents(simple: Simple, scope: Scope) -> list[Reference]:
    tokens = [token for sign, token in simple.redirections if sign == "<<"]
    return [document for token in tokens for document in documents_of(token, scope)]


def starts_primus(program: str, environment: Mapping[str, Variable]) -> bool:
    """Whether a program starts Primus on a file named by an option or `EXP`."""
    wrapper = program.endswith("_pretrain.sh") and "EXP" in environment
    return wrapper or program.endswith(("primus-cli", "primus/cli/main.py"))


def _read_parts(
    environment: Mapping[str, Variable], simple: Simple, scope: Scope, count: int
) -> list[str]:
    """The parts of a known text in `IFS=, read -r A B <<< TEXT`; None for other commands."""
    texts = [expand_text(token, scope) for sign, token in simple.redirections if sign == "<<<"]
    if len(texts) != 1 or unknown_numbers(texts[0]) or not count:
        return []
    separator = environment.get("IFS")
    plain = without_place_marks(texts[0])
    if separator is None:
        return plain.split(None, count - 1)
    signs = without_place_marks(separator.text)
    return plain.split(signs, count - 1) if len(signs) == 1 else []


def _called_script(words: Sequence[Word]) -> tuple[Sequence[Word], dict[str, Variable]] | None:
    """The script started by a command, its arguments, and the variables set by options of
    `sbatch`."""
    given: dict[str, Variable] = {}
    names = [word.plain.rsplit("/", 1)[-1] for word in words]
    if names[0].endswith((".sh", ".slurm", ".sbatch", ".bash")):
        return words, given
    begin = next((n for n, name in enumerate(names) if name in (*_SHELLS, "sbatch")), None)
    if begin is None:
        starts = names[0] in _STARTS_SCRIPT
        at = next((n for n, name in enumerate(names) if name.endswith((".sh", ".bash"))), 0)
        return (words[at:], given) if starts and at else None
    at = begin + 1
    while at < len(words):
        text = words[at].plain
        if not text.startswith("-"):
            return words[at:], given
        option, equals, value = text.partition("=")
        if option in ("-c", "-lc"):
            return None
        if not equals and option in (*_SBATCH, *_SBATCH_VALUES) and at + 1 < len(words):
            at += 1
            value = words[at].text
        if option in _SBATCH and value:
            given[_SBATCH[option]] = Variable(value, words[at].place)
        at += 1
    return None


def _quoted_command(words: Sequence[Word]) -> tuple[Sequence[Word], str, Place] | None:
    """The text in `srun bash -x -c TEXT`, `xpk --command TEXT` or `--command=TEXT`: words of the
    launcher, text, place."""
    texts = [word.plain for word in words]
    submits = any(text.rsplit("/", 1)[-1] in _SUBMITS for text in texts[:3])
    if texts[0] == "ssh" and len(texts) > 2 and " " in texts[-1].strip():
        return words[:-1], words[-1].text, words[-1].place
    for number, text in enumerate(texts):
        option, equals, value = text.partition("=")
        if number and submits and option.lower() in _TEXT_OPTIONS:
            if equals and " " in value.strip():
                others = (*words[:number], *words[number + 1 :])
                return others, words[number].text.partition("=")[2], words[number].place
            if not equals and number + 1 < len(texts) and " " in texts[number + 1].strip():
                others = (*words[:number], *words[number + 2 :])
                return others, words[number + 1].text, words[number + 1].place
        name = text.rsplit("/", 1)[-1]
        if name not in (*_SHELLS, "bcprun"):
            continue
        for at in range(number + 1, len(texts) - 1):
            word = texts[at]
            if name == "bcprun" and word in ("-c", "--cmd"):
                return words[:at], words[at + 1].text, words[at + 1].place
            if name != "bcprun" and not word.startswith("-"):
                break
            if name != "bcprun" and not word.startswith("--") and "c" in word:
                return words[:number], words[at + 1].text, words[at + 1].place
    return None
