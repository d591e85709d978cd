"""`KeyedFile`: a YAML, JSON or TOML file as values by key, each with its line.

YAML is read by PyYAML's safe loader (without Python tags), JSON as YAML's flow style, which covers
DeepSpeed's hjson with comments.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from profiles.errors import DocumentError
from shardwright_frameworks.configs.interpolation import Key, Open, plain_value, resolved
from shardwright_frameworks.shell.config_folder import ConfigFolder, Environment
from shardwright_frameworks.shell.text_marks import Place

_MOST_VALUES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedFile:
    """Values (numbers, texts, booleans, None, lists of them) by their path of keys.

    twice        keys that occur twice in a table, with both lines
    environment  variables for references in values
    places       places of values from elsewhere
    """

    name: str
    values: Mapping[Key, Any]
    lines: Mapping[Key, int]
    twice: tuple[tuple[Key, int, int], ...] = ()
    environment: Environment = field(default_factory=dict)
    places: Mapping[Key, Place] = field(default_factory=dict)

    def place(self, key: Key) -> Place:
        """The place of a key."""
        if key in self.places:
            return self.places[key]
        while key and key not in self.lines:
            key = key[:-1]
        return Place(self.name, self.lines.get(key, 1))

    def get(self, *key: str) -> Any:
        """The value of a key, with references to others (`${model.hidden_size}`) followed; None
        if they are unknown."""
        found = resolved(key, self.values, self.environment)
        return None if isinstance(found, Open) else found

    def open(self, *key: str) -> Open | None:
        """The reason if the value of a key is unknown."""
        found = resolved(key, self.values, self.environment)
        return found if isinstance(found, Open) else None

    def has(self, *key: str) -> bool:
        """Whether the file has a key, or a table of that name."""
        return any(path[: len(key)] == key for path in self.lines)

    def under(self, *key: str) -> Iterator[tuple[Key, Any]]:
        """The values below a key, by the rest of their path."""
        for path in self.values:
            if path[: len(key)] == key and len(path) > len(key):
                yield path[len(key) :], self.get(*path)

    def sections(self, *key: str) -> set[str]:
        """The keys directly below a key."""
        size = len(key)
        return {path[size] for path in self.lines if path[:size] == key and len(path) > size}


def read_keyed(name: str, folder: ConfigFolder) -> KeyedFile:
    """The values of a file of the folder, by its ending; raises DocumentError for an invalid
    file.

    TOML is read without the folder's environment, because the variables that a script exports do
    not apply to references in it.
    """
    text = folder.text(name) or ""
    if name.endswith(".toml"):
        return _toml(name, text)
    read = _yaml(name, text, is_json=name.endswith(".json"))
    return replace(read, environment=folder.environment)


def flow_values(text: str) -> Mapping[Key, Any]:
    """The values of a table in one word of a command, `{tp: 2, cp: 1}`, also written as `{tp:2}`;
    raises DocumentError for an invalid one."""
    spaced = re.sub(r"([{,]\s*[\w.]+):(?=\S)", r"\1: ", text)
    return _yaml("the table", spaced, is_json=False).values


def _yaml(name: str, text: str, *, is_json: bool) -> KeyedFile:
    import yaml

    if is_json or text.lstrip().startswith("{"):
        text = re.sub(r"(?m)^\s*//.*$", "", text).replace("\t", "  ")
    values: dict[Key, Any] = {}
    lines: dict[Key, int] = {}
    twice: list[tuple[Key, int, int]] = []

    def scalar(node: Any) -> Any:
        if node.tag.endswith((":int", ":float")) or node.tag.endswith(":str"):
            return plain_value(node.value) if node.style is None else node.value
        if node.tag.endswith(":bool"):
            return node.value.lower() in ("true", "yes", "on")
        return None if node.tag.endswith(":null") else node.value

    def walk(node: Any, path: Key, depth: int) -> None:
        if depth > 40 or len(values) > _MOST_VALUES:
            raise DocumentError(f"{name}: nested too deeply, or too long, for a configuration")
        if isinstance(node, yaml.MappingNode):
            for key, inner in node.value:
                if key.tag.endswith(":merge"):
                    walk(inner, path, depth + 1)
                    continue
                inner_path = (*path, str(getattr(key, "value", "")))
                line = key.start_mark.line + 1
                if inner_path in values and line > lines[inner_path]:
                    twice.append((inner_path, lines[inner_path], line))
                lines[inner_path] = line
                walk(inner, inner_path, depth + 1)
        elif isinstance(node, yaml.SequenceNode):
            if all(isinstance(item, yaml.ScalarNode) for item in node.value):
                values[path] = [scalar(item) for item in node.value]
            else:
                for number, item in enumerate(node.value):
                    inner_path = (*path, str(number))
                    lines[inner_path] = item.start_mark.line + 1
                    walk(item, inner_path, depth + 1)
        elif node is not None:
            values[path] = scalar(node)

    try:
        documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark is not None else name
        kind = "JSON" if is_json else "YAML"
        problem = getattr(error, "problem", None) or "it cannot be read"
        if "{{" in text:
            problem += "; it is a template (Helm, Jinja): render it first, then import that"
        raise DocumentError(f"{where}: not valid {kind}: {problem}") from error
    except RecursionError as error:
        raise DocumentError(f"{name}: nested too deeply for a configuration") from error
    for document in documents:
        walk(document, (), 0)
    return KeyedFile(name=name, values=values, lines=lines, twice=tuple(twice))


def _toml(name: str, text: str) -> KeyedFile:
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{name}: not valid TOML: {error}") from error
    lines: dict[Key, int] = {}
    section: Key = ()
    for number, line in enumerate(text.split("\n"), 1):
        head = re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?", line)
        entry = re.match(r"\s*([\w.\"'-]+)\s*=", line)
        if head and "=" not in line.split("#")[0].split("]")[0]:
            section = tuple(part.strip("\"' ") for part in head[1].split("."))
            lines.setdefault(section, number)
        elif entry:
            parts = tuple(part.strip("\"'") for part in entry[1].split("."))
            lines.setdefault((*section, *parts), number)
    values: dict[Key, Any] = {}

    def walk(value: Any, path: Key) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                lines.setdefault((*path, key), lines.get(path, 1))
                walk(inner, (*path, key))
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            for number, item in enumerate(value):
                walk(item, (*path, str(number)))
        else:
            values[path] = value

    walk(data, ())
    return KeyedFile(name=name, values=values, lines=lines)
