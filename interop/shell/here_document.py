"""Texts inside a script: here-documents, and the files that a script would write of them."""

from __future__ import annotations

from collections.abc import Sequence

from interop.shell.expansion import Substitute, expand_document, expand_text
from interop.shell.folder import ConfigFolder
from interop.shell.lexer import Token
from interop.shell.syntax import Redirection
from interop.shell.text_places import Place, Word, without_lines
from interop.shell.variables import Scope


def document(token: Token, scope: Scope, run: Substitute) -> tuple[str, int]:
    """A here-document's text, and the line on which it begins."""
    if token.quoted:
        return token.text, token.line
    return expand_document(token.text, Place(scope.script, token.line), scope, run), token.line


def write_file(
    words: Sequence[Word],
    redirections: Sequence[Redirection],
    scope: Scope,
    place: Place,
    folder: ConfigFolder,
    run: Substitute,
) -> None:
    """Puts into the folder the file that `cat <<EOF > file`, `echo ... > file` or `tee file <<EOF`
    writes."""
    name, target, text, line = words[0].plain, None, None, place.line
    for redirection in redirections:
        if redirection.target is None:
            continue
        if redirection.operator == "<<":
            text, line = document(redirection.target, scope, run)
        elif redirection.operator in (">", ">|"):
            target = expand_text(redirection.target.text, place, scope, run)
    if name == "tee" and len(words) > 1 and text is not None:
        target = words[-1].text
    if name in ("echo", "printf") and text is None:
        text = " ".join(word.plain for word in words[1:] if word.plain not in ("-e", "-n"))
    if target and text is not None and name in ("cat", "echo", "printf", "tee"):
        folder.write(target, without_lines(text), scope.script, line)
