"""`Options`: the options of a command line, in their order, with the places of their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.imported_run import Value
from shardwright_frameworks.shell.text_marks import (
    Place,
    UnknownValue,
    Word,
    after_unknowns,
    end_of_path,
    placed_pieces,
    unknown_numbers,
)

_OPTION = re.compile(r"--?[A-Za-z]|--?$")
_TRUE = frozenset({"true", "yes", "on", "1", "t", "y"})
_FALSE = frozenset({"false", "no", "off", "0", "f", "n"})


# The key of a run that an option sets, and the reader of its text.
WordReaders = Mapping[str, tuple[str, Callable[[str], Value]]]


@dataclass(frozen=True, slots=True)
class Option:
    """One option as written, and the words after it up to the next option."""

    name: str
    values: tuple[Word, ...]
    place: Place

    @property
    def key(self) -> str:
        """The name without its dashes, underscores for hyphens."""
        return option_key(self.name)


def option_key(name: str) -> str:
    """`tensor_model_parallel_size` of `--tensor-model-parallel-size`."""
    return name.lstrip("-").replace("-", "_")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a command, and the unknowns in them."""

    given: tuple[Option, ...]
    unknowns: Sequence[UnknownValue]

    def __contains__(self, key: str) -> bool:
        return any(option.key == key for option in self.given)

    def of(self, *keys: str) -> Iterator[Option]:
        """All occurrences of an option under any of its names."""
        return (option for option in self.given if option.key in keys)

    def last(self, *keys: str) -> Option | None:
        """The last occurrence, which wins."""
        found = list(self.of(*keys))
        return found[-1] if found else None

    def text(self, *keys: str) -> str | None:
        """The first value of the last occurrence, None if there is none or it is unknown."""
        option = self.last(*keys)
        if option is None or not option.values:
            return None
        text = option.values[0].plain
        return None if unknown_numbers(text) else text

    def file(self, *keys: str) -> str | None:
        """The path in the last occurrence, after its last unknown part (`$FOLDER/train.toml`); None
        if its end is unknown."""
        option = self.last(*keys)
        if option is None or not option.values:
            return None
        written = after_unknowns(option.values[0].text)
        return written.lstrip("/") or None

    def number(self, *keys: str) -> int | None:
        """The value of the last occurrence as an integer."""
        return whole(self.text(*keys))

    def switched(self, option: Option) -> bool | None:
        """Whether a flag is on: without a value, or by its value; None if that is unknown."""
        written = [word for word in option.values if not unknown_numbers(word.text)]
        if not written:
            return True if not option.values or option.name.startswith("--") else None
        return truth(written[0].plain)

    def collect_counts(self, collected: Collected, keys: dict[str, str]) -> None:
        """Sets whole numbers: `keys` are options and the keys they set."""
        for option in self.given:
            if option.key in keys:
                value = self.value_of(option, collected)
                number = whole(value)
                if number is not None:
                    collected.set(keys[option.key], number, option.place, option.name)
                elif value is None:
                    collected.open_keys.add(keys[option.key])
                else:
                    collected.report_unresolved(
                        option.name, f"{value!r} is not a whole number", option.place
                    )

    def collect_flags(
        self, collected: Collected, keys: dict[str, tuple[str, Value, Value]]
    ) -> None:
        """Sets flags: `keys` are options, the keys they set, and the values with and without."""
        for option in self.given:
            if option.key in keys:
                key, on, off = keys[option.key]
                switched = self.switched(option)
                if switched is not None:
                    collected.set(key, on if switched else off, option.place, option.name)

    def collect_words(self, collected: Collected, keys: WordReaders) -> None:
        """Sets values from the given options. `keys`: option -> (key to set, reader of its text). A
        key whose text is unknown gets no default."""
        for option in self.given:
            if option.key in keys:
                about, reader = keys[option.key]
                written = self.value_of(option, collected)
                if written is None:
                    collected.leave_open(about)
                else:
                    collected.set(about, reader(written), option.place, option.name)

    def value_of(self, option: Option, collected: Collected) -> str | None:
        """The value of an option; an unknown one is reported as unresolved."""
        if not option.values:
            collected.report_unresolved(option.name, "the option has no value", option.place)
            return None
        text = option.values[0].plain
        if (end := end_of_path(text)) is not None:
            return end
        unknowns = unknown_numbers(text)
        if unknowns:
            unknown = self.unknowns[unknowns[0]]
            collected.report_unresolved(option.name, unknown.reason, option.place)
            return None
        return text


def read_options(words: Sequence[Word], unknowns: Sequence[UnknownValue]) -> Options:
    """The options among words, each with the words after it, without words before the first."""
    given: list[Option] = []
    for word in _pieces(words):
        text = word.plain
        if _OPTION.match(text):
            name, equals, value = text.partition("=")
            values = (Word(value, word.place),) if equals else ()
            given.append(Option(name, values, word.place))
        elif given:
            last = given[-1]
            given[-1] = Option(last.name, (*last.values, word), last.place)
    return Options(tuple(given), unknowns)


def _pieces(words: Sequence[Word]) -> Iterator[Word]:
    """The words; a quoted text with an option and its values is split at blanks."""
    for word in words:
        text = word.plain.strip()
        if text.startswith("-") and re.search(r"\s", text) and "=" not in text.split()[0]:
            for piece, place in placed_pieces(word.text, word.place):
                yield from (Word(one, place) for one in piece.split())
        elif word.plain:
            yield word


def read_pairs(
    words: Sequence[Word], unknowns: Sequence[UnknownValue]
) -> Iterator[tuple[str, str | Open, Place]]:
    """The words `key=value`, with their places; paths without an unknown beginning."""
    for word in words:
        key, equals, value = word.plain.partition("=")
        numbers, end = unknown_numbers(value), end_of_path(value.strip("'\""))
        if equals:
            is_open = numbers and end is None
            yield key, Open(unknowns[numbers[0]].reason) if is_open else end or value, word.place


def by_key(fields: Mapping[str, str]) -> dict[str, str]:
    """The field of each key, from the keys of each field."""
    return {key: field for field, keys in fields.items() for key in keys.split()}


def whole(text: str | None) -> int | None:
    """The integer of a text: `8`, `4_096`, `8.0`, `"8"`; None if it is none."""
    if text is None:
        return None
    plain = text.strip().strip("\"'").replace("_", "").replace(",", "")
    if re.fullmatch(r"-?\d{1,18}", plain):
        return int(plain)
    if re.fullmatch(r"-?\d{1,15}\.0*", plain):
        return int(float(plain))
    return None


def truth(text: str) -> bool | None:
    """The boolean of a word; None if it is none."""
    word = text.strip().strip("\"'").lower()
    if word in _TRUE:
        return True
    return False if word in _FALSE else None
