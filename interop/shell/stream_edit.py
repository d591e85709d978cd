"""The file that `sed s/WORD/value/ template | ... > file` writes, or `sed -i` changes: templates
of configurations whose words a script fills in.

Only substitutions of plain words are followed; one that is anything else leaves the file unwritten.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from interop.shell.expansion import Substitute, expand_text, expand_words
from interop.shell.folder import ConfigFolder
from interop.shell.syntax import Node, Simple
from interop.shell.text_places import Place, Word, without_lines
from interop.shell.variables import Scope

_PLAIN = re.compile(r"[\w{}<>@%:=\"' ,-]+")
_MOST_EDITS = 200


class _UnknownError(Exception):
    """An edit that is more than a substitution of plain words."""


def write_edited(
    parts: Sequence[Node],
    scope: Scope,
    place: Place,
    folder: ConfigFolder,
    run: Substitute,
) -> None:
    """Puts into the folder what a pipeline of `sed`, `cat` of one file at its head, writes."""
    source, target = "", ""
    edits: list[tuple[str, str, bool]] = []
    for number, part in enumerate(parts):
        if not isinstance(part, Simple) or any(token.kind != "word" for token in part.words):
            return
        words = expand_words(tuple(part.words), scope, run)
        name = words[0].plain if words else ""
        if name not in ("sed", "cat") or (name == "cat" and number):
            return
        try:
            found, files, in_place = _sed(words[1:]) if name == "sed" else ([], words[1:], False)
        except _UnknownError:
            return
        edits += found
        if len(files) != (0 if number else 1) or len(edits) > _MOST_EDITS:
            return
        source = files[0].plain if files else source
        target = source if in_place else target
        for redirection in part.redirections:
            if redirection.operator in (">", ">|") and redirection.target is not None:
                target = expand_text(redirection.target.text, place, scope, run)
    template = folder.find(source, beside=scope.script) if edits and target else None
    if template is not None:
        text = _edited(folder.text(template) or "", edits)
        folder.write(target, without_lines(text), scope.script, place.line)


def _sed(words: Sequence[Word]) -> tuple[list[tuple[str, str, bool]], list[Word], bool]:
    """The substitutions of a `sed`, its files, and whether it changes them in place."""
    edits: list[tuple[str, str, bool]] = []
    files: list[Word] = []
    in_place, said, at = False, False, 0
    while at < len(words):
        text = words[at].plain
        if text in ("-e", "--expression") and at + 1 < len(words):
            edits += _substitutions(words[at + 1])
            said, at = True, at + 1
        elif text in ("-i", "--in-place"):
            in_place = True
        elif text.startswith("-"):
            raise _UnknownError
        elif not said:
            edits += _substitutions(words[at])
            said = True
        else:
            files.append(words[at])
        at += 1
    return edits, files, in_place


def _substitutions(word: Word) -> list[tuple[str, str, bool]]:
    """`s/WORD/value/g; s#OTHER#value#` as word, value, whether every one of a line."""
    found = []
    for one in word.text.strip().split(";"):
        text = without_lines(one).strip()
        if not text:
            continue
        parts = text[2:].split(text[1]) if len(text) > 3 and text[0] == "s" else []
        if len(parts) != 3 or parts[2] not in ("", "g"):
            raise _UnknownError
        pattern, value = parts[0], parts[1]
        if not _PLAIN.fullmatch(pattern) or "&" in value or "\\" in value:
            raise _UnknownError
        found.append((pattern, value, parts[2] == "g"))
    return found


def _edited(text: str, edits: Sequence[tuple[str, str, bool]]) -> str:
    lines = text.split("\n")
    for pattern, value, every in edits:
        lines = [line.replace(pattern, value, -1 if every else 1) for line in lines]
    return "\n".join(lines)
