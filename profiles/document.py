"""Read and write dataclasses as TOML and JSON files, strictly and atomically.

A document is a frozen dataclass with a schema tag such as `shardwright/plan@1`. Reading checks all
keys and types against the dataclass; the error for an unknown key contains its place and the
nearest known key (`plan.json: stages[1].blokcs`). Writing is deterministic (sorted keys) and atomic
(a temporary file in the same folder, then a rename).

A custom decoder and not pydantic, because GPU nodes may have little more than torch, and for the
place and the nearest key in every message.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import math
import os
import tempfile
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from profiles.errors import DocumentError, InputError, ShardwrightError, UnknownNameError
from profiles.text_file import read_text

T = TypeVar("T")

_FLATTENED = "flattened"


@dataclasses.dataclass(frozen=True)
class _Flattened:
    attributes: Mapping[str, str]
    optional: frozenset[str]


def flattened(*names: str, optional: Sequence[str] = (), **renamed: str) -> dict[str, Any]:
    """Metadata of a dataclass field whose value is written as keys of the enclosing table.

    names     attributes written under the same keys
    optional  further ones, with keys that may be missing in a file
    renamed   key -> attribute

    Properties are written too; when read, their keys must agree with the value. For example
    `size: Size = field(metadata=flattened("width", optional=("area",), height="depth"))`.
    """
    attributes = {name: name for name in (*names, *optional)} | renamed
    return {_FLATTENED: _Flattened(attributes, frozenset(optional))}


def read_document(path: str | Path, cls: type[T], *, schema: str) -> T:
    """The value of type `cls` in the TOML or JSON file at `path`.

    schema  required value of the file's `schema` key, `name@version`

    Raises DocumentError for a missing, truncated or different file, and for invalid entries.
    """
    data = read_mapping(path)
    tag = data.pop("schema", None)
    if tag != schema:
        want, _, version = schema.partition("@")
        if schema_name(tag) == want:
            raise DocumentError(
                f"{path}: schema {tag!r} is not supported, this release reads {want}@{version}; "
                "write the file again with this release"
            )
        found = f"its schema is {tag!r}" if tag is not None else "it has no 'schema' key"
        raise DocumentError(f"{path} is not a {schema} file: {found}")
    if "provenance" not in getattr(cls, "__dataclass_fields__", {}):
        data.pop("provenance", None)
    value: T = decode(cls, data, where=str(path))
    return value


def schema_name(tag: object) -> str:
    """The name in a schema tag, without its version; "" for other values.

    >>> schema_name("shardwright/plan@2")
    'shardwright/plan'
    """
    return tag.partition("@")[0] if isinstance(tag, str) else ""


def write_document(
    path: str | Path, value: Any, *, schema: str, provenance: Mapping[str, Any] | None = None
) -> None:
    """Write `value` as sorted JSON with its schema tag (and provenance), atomically."""
    data = {"schema": schema, **encode(value)}
    if provenance is not None:
        data["provenance"] = dict(provenance)
    write_text(path, to_json(data))


def read_mapping(path: str | Path, *, expected: str = "", head: bool = False) -> dict[str, Any]:
    """The top-level table of a TOML or JSON file, as plain values.

    expected  kind of file, for messages: `a memory snapshot of torch as JSON`
    head      reads only the part before the first empty line
    Raises DocumentError for other files.
    """
    file = Path(path)
    hint = f"; is it {expected}?" if expected else ""
    text = read_text(file)
    if head:
        text = text.partition("\n\n")[0]
    try:
        data = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except ValueError as error:  # of either parser, and for a number with too many digits
        kind = "TOML" if file.suffix == ".toml" else "JSON"
        raise DocumentError(
            f"{path}: not valid {kind}, or cut short ({len(text)} characters): {error}{hint}"
        ) from error
    except RecursionError as error:
        raise DocumentError(f"{path}: nested too deeply to be one of our files{hint}") from error
    if not isinstance(data, dict):
        raise DocumentError(f"{path}: expected a table of keys, found {_describe(data)}{hint}")
    return data


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write `content` atomically: a reader sees the old file or the whole new one.

    A device or pipe (/dev/stdout) is written to directly and not replaced by a file. Raises
    DocumentError.
    """
    file = Path(path)
    need_writable(path)
    temporary = ""
    try:
        if _is_device(file):
            with file.open("wb") as stream:
                stream.write(content)
            return
        file = Path(os.path.realpath(file))
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, file)
    except OSError as error:
        raise DocumentError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)  # missing once it is the file


def need_writable(path: str | Path) -> None:
    """Raises DocumentError if a file cannot be written there; for a check before any work."""
    file = Path(path)
    if file.is_dir():
        raise DocumentError(f"{path}: cannot be written: it is a folder; name a file in it")
    if _is_device(file):
        return
    # write_text creates missing folders.
    folder = next(one for one in Path(os.path.realpath(file)).parents if one.exists())
    if not folder.is_dir():
        raise DocumentError(f"{path}: cannot be written: {folder} is a file, no folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DocumentError(f"{path}: cannot be written: no permission to write into {folder}")


def _is_device(file: Path) -> bool:
    return str(file).startswith("/dev/") or (file.exists() and not file.is_file())


def to_json(data: Any) -> str:
    """Deterministic JSON: sorted keys, one-space indent, a final newline, no NaN."""
    return json.dumps(data, sort_keys=True, indent=1, allow_nan=False) + "\n"


def to_line(value: Any, *, allow_nan: bool = False) -> str:
    """A value as one line of JSON, deterministic."""
    return json.dumps(encode(value), sort_keys=True, separators=(",", ":"), allow_nan=allow_nan)


def content_hash(value: Any) -> str:
    """16 hexadecimal digits of the SHA-256 of a value's JSON."""
    text = to_line(value, allow_nan=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def encode(value: Any) -> Any:
    """Plain JSON values of a dataclass value; fields with None are left out."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = [(name, getattr(value, name)) for name in _names(type(value))]
        table = {name: encode(item) for name, item in pairs if item is not None}
        for name, _, attributes in _flattened_fields(type(value)):
            held = getattr(value, name)
            table |= {key: encode(getattr(held, one)) for key, one in attributes.items()}
        return table
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    return value


_PLAIN = frozenset({int, float, str, bool, type(None)})


@functools.cache
def _names(cls: type) -> tuple[str, ...]:
    """Fields with one key each in the class's table."""
    return tuple(each.name for each in dataclasses.fields(cls) if _FLATTENED not in each.metadata)


@functools.cache
def _flattened_fields(cls: type) -> tuple[tuple[str, Any, Mapping[str, str]], ...]:
    """Flattened fields: name, type, and attribute by key."""
    found = [each for each in dataclasses.fields(cls) if _FLATTENED in each.metadata]
    hints = typing.get_type_hints(cls) if found else {}
    return tuple(
        (each.name, hints[each.name], each.metadata[_FLATTENED].attributes) for each in found
    )


def decode(cls: Any, data: Any, *, where: str) -> Any:
    """`data` (plain JSON or TOML values) as a value of type `cls`.

    `where` is the place in messages. Numbers must be finite; an int is accepted for a float,
    there are no other conversions. Raises DocumentError.
    """
    if cls is Any:
        return data
    origin, arguments = _parts(cls)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, data, where)
    if origin is tuple:
        return _decode_tuple(arguments, data, where)
    if origin is not None and issubclass(origin, Mapping):
        return _decode_mapping(arguments, data, where)
    if isinstance(cls, type) and issubclass(cls, enum.Enum):
        try:
            return cls(data)
        except ValueError as error:
            known = [str(member.value) for member in cls]
            raise UnknownNameError(cls.__name__, str(data), known, where=where) from error
    if dataclasses.is_dataclass(cls):
        return _decode_dataclass(cls, data, where)
    return _decode_scalar(cls, data, where)


@functools.cache
def _parts(cls: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(cls), typing.get_args(cls)


def _decode_union(options: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in options:
        return None
    real = [option for option in options if option is not type(None)]
    failure: ShardwrightError | None = None
    for option in real:
        try:
            return decode(option, data, where=where)
        except ShardwrightError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _decode_tuple(arguments: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, (list, tuple)):
        raise DocumentError(f"{where}: expected a list, found {_describe(data)}")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(decode(arguments[0], x, where=f"{where}[{i}]") for i, x in enumerate(data))
    if len(data) != len(arguments):
        raise DocumentError(f"{where}: expected {len(arguments)} entries, found {len(data)}")
    pairs = enumerate(zip(arguments, data, strict=True))
    return tuple(decode(kind, item, where=f"{where}[{i}]") for i, (kind, item) in pairs)


def _decode_mapping(arguments: tuple[Any, ...], data: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise DocumentError(f"{where}: expected a table, found {_describe(data)}")
    kind = arguments[1] if arguments else Any
    return {key: decode(kind, item, where=_join(where, key)) for key, item in data.items()}


def _decode_dataclass(cls: Any, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise DocumentError(
            f"{where}: expected a table with the keys of {cls.__name__}, found {_describe(data)}"
        )
    kinds, required = _fields(cls)
    for key in data:
        if key not in kinds:
            raise UnknownNameError("key", str(key), kinds, where=_join(where, str(key)))
    missing = [name for name in required if name not in data]
    if missing:
        raise DocumentError(f"{where}: the key {missing[0]!r} is missing ({cls.__name__})")
    values = {key: decode(kinds[key], item, where=_join(where, key)) for key, item in data.items()}
    try:
        for name, kind, attributes in _flattened_fields(cls):
            values[name] = _unflattened(kind, attributes, values)
        return cls(**values)
    except InputError as error:
        if str(error).startswith(where):
            raise
        raise DocumentError(f"{where}: {error}") from error


def _unflattened(kind: Any, attributes: Mapping[str, str], values: dict[str, Any]) -> Any:
    """The value of a flattened field; its keys are removed from `values`."""
    found = {key: values.pop(key) for key in attributes if key in values}
    own, _ = _fields(kind)
    made = kind(**{attributes[key]: item for key, item in found.items() if attributes[key] in own})
    for key, item in found.items():
        held = getattr(made, attributes[key])
        if item != held:
            raise InputError(f"{key} is {item}, the other keys give {held}; change one")
    return made


def _decode_scalar(cls: Any, data: Any, where: str) -> Any:
    if cls is float and isinstance(data, (int, float)) and not isinstance(data, bool):
        if not math.isfinite(data):
            raise DocumentError(f"{where}: expected a finite number, found {data!r}")
        return float(data)
    if cls is int and isinstance(data, int) and not isinstance(data, bool):
        return data
    if cls is bool and isinstance(data, bool):
        return data
    if cls is str and isinstance(data, str):
        return data
    if cls is type(None) and data is None:
        return None
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}
    raise DocumentError(f"{where}: expected {names.get(cls, str(cls))}, found {_describe(data)}")


@functools.cache
def _fields(cls: type) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The type of each key of a class's table, and the keys without a default."""
    hints = typing.get_type_hints(cls)
    kinds: dict[str, Any] = {}
    required: list[str] = []
    for field in dataclasses.fields(cls):
        flat = field.metadata.get(_FLATTENED)
        if flat is not None:
            own, _ = _fields(hints[field.name])
            kinds |= {key: own.get(one, int) for key, one in flat.attributes.items()}
            required += [key for key in flat.attributes if key not in flat.optional]
        elif field.init:
            kinds[field.name] = hints[field.name]
            no_default = field.default is field.default_factory is dataclasses.MISSING
            required += [field.name] if no_default else []
    return kinds, tuple(required)


def _join(where: str, key: str) -> str:
    return f"{where}: {key}" if ": " not in where else f"{where}.{key}"


def _describe(data: Any) -> str:
    if isinstance(data, Mapping):
        return "a table"
    if isinstance(data, (list, tuple)):
        return "a list"
    return repr(data) if data is not None else "nothing"
