"""`recipes_in`: the configurations in a file or a folder, by their names for `import`."""

from __future__ import annotations

from pathlib import Path

from profiles.errors import DocumentError
from shardwright_frameworks.configs.python_file import read_python
from shardwright_frameworks.frameworks.python_config import chosen_function, python_framework
from shardwright_frameworks.reading.read_config import KEYED, SCRIPTS, read_config, split_recipe
from shardwright_frameworks.shell.config_folder import ConfigFolder

# Scripts without an ending, and lists of words, are seldom configurations.
_PLAIN = (".txt", ".conf", "")


def recipes_in(path: str) -> tuple[str, ...]:
    """The configurations of a file, `FILE.py:FUNCTION` for those of a registry, or of a folder.

    Files that configure no framework, and files read by other files of the folder, are left out.
    Raises DocumentError if there is none.
    """
    file, function = split_recipe(path)
    if function or not file.is_dir():
        return (path,) if function else (_of_python(file) or (path,))
    folder = ConfigFolder(root=file)
    found: list[str] = []
    read: set[str] = set()
    for name in folder.names():
        ending = Path(name).suffix.lower()
        if ending == ".py":
            found += _of_python(file / name)
        elif ending in KEYED or (ending in SCRIPTS and ending not in _PLAIN):
            used = _files_of(file / name)
            found += [str(file / name)] if used else []
            read |= {str(file / name).removesuffix(name) + each for each in used if each != name}
    kept = tuple(recipe for recipe in found if recipe not in read)
    if not kept:
        raise DocumentError(f"{path}: contains no configuration of a known framework")
    return kept


def _of_python(path: Path) -> tuple[str, ...]:
    """The functions of a registry; empty for any other file."""
    if path.suffix != ".py" or not path.is_file():
        return ()
    folder = ConfigFolder(root=path.parent)
    try:
        file = read_python(path.name, folder.text(path.name) or "")
    except DocumentError:
        return ()
    if python_framework(file) is None:
        return ()
    _, names = chosen_function(file, None)
    public = [name for name in names if not name.startswith("_")]
    return tuple(f"{path}:{name}" for name in public or names) or (str(path),)


def _files_of(path: Path) -> tuple[str, ...]:
    """The files of a configuration; empty for another file."""
    try:
        run = read_config(path)
    except DocumentError:
        return ()
    return run.files or (path.name,)
