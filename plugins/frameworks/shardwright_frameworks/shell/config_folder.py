"""`ConfigFolder`: the readable text files in the folder of a configuration.

Only text files of at most 4 MiB are read. Files that a script would write (here-documents) are
added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from profiles.errors import DocumentError
from shardwright_frameworks.shell.text_marks import UnknownValue, without_marks, without_unknowns

MOST_BYTES = 4 * 2**20
_MOST_FILES = 500
_MOST_ABOVE = 8
# Files in the root of a repository.
_ROOTS = (".git", "pyproject.toml", "setup.py")
KINDS = (
    ".sh", ".bash", ".slurm", ".sbatch", ".env", ".json", ".yaml", ".yml", ".toml", ".py", ".conf",
    ".cfg", ".txt", ".args", ".srun", ".job", ".slrm", ".gin", ".config", "",
)  # fmt: skip
Environment = Mapping[str, str | UnknownValue]


@dataclass(slots=True)
class ConfigFolder:
    """The files of a folder, by their path in it.

    texts        contents of the files read so far, and of files that a script would write
    written      for the latter: the script, and the first line of the text in it
    unread       unreadable files, with the reason
    environment  variables exported to the command that starts the run
    searches     whether to search for a file by its name if it is not at its path
    """

    root: Path
    texts: dict[str, str] = field(default_factory=dict)
    written: dict[str, tuple[str, int]] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    environment: Environment = field(default_factory=dict)
    searches: bool = True

    def text(self, name: str) -> str | None:
        """The text of a file of the folder, None if it cannot be read."""
        if name in self.texts:
            return self.texts[name]
        path = self.root / name
        try:
            inside = path.resolve().is_relative_to(self.root.resolve())
        except (OSError, ValueError):
            return None
        if name in self.unread or not inside or not path.is_file():
            return None
        try:
            self.texts[name] = read_config_text(path)
        except DocumentError as error:
            self.unread[name] = str(error)
            return None
        return self.texts[name]

    def text_from_root(self, name: str) -> str | None:
        """The text of a file at its path in the folder, or in a folder above it."""
        found = self.text(name)
        return self.texts[name] if found is None and self._above(name) else found

    def find(self, path: str, *, near: str = "") -> str | None:
        """The file for a path in a configuration: as written, in the folder of the configuration,
        or the only one of that name. None if there is none."""
        path = without_unknowns(path).strip().strip("\"'")
        is_far = path.startswith(("/", "~"))
        while path.startswith(("./", "/", "~/")):
            path = path.split("/", 1)[1]
        if not path or path.endswith("/") or len(path) > 400:
            return None
        folder = near.rsplit("/", 1)[0] + "/" if "/" in near else ""
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        for begin in range(len(parts)):
            tail = "/".join(parts[begin:])
            for name in (folder + tail, tail):
                if name in self.texts or self.text(name) is not None:
                    return name
        # Of a path on another machine, the end is that in the repository.
        ends = len(parts) - 1 if is_far else len(parts) - 2
        for begin in range(max(1, ends) if self.searches else 0):
            tail = "/".join(parts[begin:])
            if (above := self._above(folder + tail) or self._above(tail)) is not None:
                return above
        names = self.names() if self.searches else tuple(self.written)
        # A relative path's folder is in the repository, too.
        end = parts[-1:] if is_far else parts[-2:]
        same = [name for name in names if name.split("/")[-len(end) :] == end]
        return same[0] if len(same) == 1 else None

    def path_of(self, name: str) -> Path:
        """The place of a file by its name in the folder, or in a folder above it."""
        root = self.root.resolve()
        above = (place / name for place in [root, *root.parents][:_MOST_ABOVE])
        return next((path for path in above if path.is_file()), root / name)

    def name_of(self, place: Path) -> str | None:
        """The name of a file at a place in this folder, or in the repository around it; None if
        there is none."""
        root = self.root.resolve()
        if place.is_relative_to(root):
            name = place.relative_to(root).as_posix()
            return name if self.text(name) is not None else None
        for above in [*root.parents][: _MOST_ABOVE - 1]:
            if any((above / mark).exists() for mark in _ROOTS):
                inside = place.is_relative_to(above)
                return self._above(place.relative_to(above).as_posix()) if inside else None
        return None

    def _above(self, path: str) -> str | None:
        """The file at a path in a folder above this one, up to the root of the repository; programs
        are started there. None outside of one."""
        above = [self.root.resolve(), *self.root.resolve().parents][:_MOST_ABOVE]
        tops = [n for n, place in enumerate(above) if any((place / m).exists() for m in _ROOTS)]
        if not tops or Path(path).suffix.lower() not in KINDS:
            return None
        for place in above[1 : tops[0] + 1]:
            found = place / path
            if found.is_file() and found.resolve().is_relative_to(place):
                try:
                    self.texts[path] = read_config_text(found)
                except DocumentError as error:
                    self.unread[path] = str(error)
                    return None
                return path
        return None

    def names(self) -> tuple[str, ...]:
        """The files that may be configurations, shallow ones first, then by name."""
        found = set(self.written)
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            hidden = any(part.startswith(".") for part in name.split("/"))
            if not hidden and path.suffix.lower() in KINDS and path.is_file():
                found.add(name)
            if len(found) >= _MOST_FILES:
                break
        return tuple(sorted(found, key=lambda name: (name.count("/"), name)))

    def write(self, name: str, text: str, script: str, line: int) -> None:
        """Add a file that a script would write, unless it exists."""
        base = without_unknowns(name).strip().rsplit("/", 1)[-1]
        if base and base not in ("null", "stdout", "stderr"):
            self.texts[base] = text
            self.written[base] = (script, line)


def read_config_text(path: Path) -> str:
    """The text of a file that may be a configuration.

    Raises DocumentError for a file that is missing, larger than 4 MiB, or no text.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(raw) > MOST_BYTES:
        raise DocumentError(
            f"{path}: has more than {MOST_BYTES // 2**20} MiB, which no configuration has; is it "
            "the right file?"
        )
    if b"\0" in raw:
        raise DocumentError(f"{path}: is not a text file (byte {raw.index(bytes(1))} is 0)")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        # Comments may be in another encoding; the values are ASCII.
        text = raw.decode("latin-1")
    return without_marks(text)
