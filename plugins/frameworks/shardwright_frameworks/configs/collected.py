"""`Collected`: the values found by the readers of a configuration; `imported` makes the run.

A reader sets each value with its place. A second, different value for the same key is a
contradiction; the later one wins, as it does on a command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

from shardwright_frameworks.imported_run import (
    Contradiction,
    Default,
    ImportedModel,
    ImportedRun,
    UnknownOption,
    Unresolved,
    UnusedOption,
    Value,
)
from shardwright_frameworks.shell.text_marks import Place

# Fields by words in the names of keys that set them.
_FIELDS = {
    "tp": r"((^|_)(tensor_(model_)?parallel|tp)|^model_parallel)(_(size|degree|dim))?$",
    "pp": r"(^|_)(pipe(line)?_(model_)?parallel|pp)(_(size|degree|dim))?$",
    "cp": r"(^|_)(context_parallel|ulysses|cp)(_\w*(size|degree|dim))?$|"
    r"^(sequence_parallel_size|parallel_mode)$",
    "ep": r"(^|_)(expert_(model_)?parallel|ep)(_(size|degree|dim))?$",
    "zero_stage": r"zero_stage$|sharding_strategy$|(^|_)fsdp2?(_(version|size|degree|dim))?$",
    "precision": r"^((param|compute|torch|autocast|mixed)_)?(dtype|precision)$|^(bf|fp)\d+$",
    "recompute": r"(^|_)recompute(_granularity)?$|(gradient|activation)_checkpointing$",
    "optimizer": r"^optim(izer)?(_(type|name))?$",
    "micro_batch": r"(micro|per_device(_train)?)_batch_size$",
    "global_batch": r"(global|train)_batch_size$",
}
# Of other models than the trained one, and switches of something off.
_OTHERS = re.compile(
    r"(^|\.)no_|vllm|sglang|rollout|eval|infer|critic|^ref_|vision|dataset|generation"
)
# Of the launcher, also where a file of the run is missing.
_OF_LAUNCHER = frozenset({"nodes", "devices_per_node"})
MODEL_KEYS = frozenset(each.name for each in fields(ImportedModel))
RUN_KEYS = frozenset(each.name for each in fields(ImportedRun)) - {
    "model", "options", "derived", "defaults", "contradictions", "overridden", "unknown",
    "unresolved", "unused", "runs", "files",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlacedValue:
    """A value, where it is written, and as which option."""

    value: Value
    place: Place
    option: str

    @property
    def where(self) -> str:
        """`--tensor-model-parallel-size (train.sh:12)`."""
        return f"{self.option} ({self.place})"


@dataclass(slots=True)
class Collected:
    """The values so far, by key of ImportedRun, or `model.` and a key of ImportedModel.

    is_incomplete  a file with the run's degrees is named and missing: they have no defaults
    open_keys      keys with an unknown value, which have no default
    overriding     values set now override those of files, as options of a command line do
    used           the keys that a value was taken from, with their places
    """

    placed: dict[str, PlacedValue] = field(default_factory=dict)
    derived: dict[str, tuple[Value, str]] = field(default_factory=dict)
    defaults: dict[str, Default] = field(default_factory=dict)
    contradictions: list[Contradiction] = field(default_factory=list)
    overridden: list[Contradiction] = field(default_factory=list)
    overriding: bool = False
    is_incomplete: bool = False
    open_keys: set[str] = field(default_factory=set)
    unknown: list[UnknownOption] = field(default_factory=list)
    unresolved: list[Unresolved] = field(default_factory=list)
    unused: list[UnusedOption] = field(default_factory=list)
    used: set[tuple[Place, str]] = field(default_factory=set)
    runs: int = 1
    files: list[str] = field(default_factory=list)

    def set(self, key: str, value: Value, place: Place, option: str, *, over: bool = True) -> None:
        """Sets a value; with `over` False an earlier one is kept."""
        assert key in RUN_KEYS or key.removeprefix("model.") in MODEL_KEYS, key
        if value is None:
            return
        self.use(option, place)
        if key in self.open_keys and not over:
            return
        self.open_keys.discard(key)
        old = self.placed.get(key)
        new = PlacedValue(value, place, option)
        if old is not None and old.value != value:
            taken = new if over else old
            text = (
                f"{key.removeprefix('model.')} is {_shown(old.value)} by {old.where} and "
                f"{_shown(value)} by {new.where}; {_shown(taken.value)} is taken"
            )
            if self.overriding:
                before, after = (old, new) if over else (new, old)
                self.report_override(
                    key, after.option, (before.value, before.place), (after.value, after.place)
                )
            else:
                self.report_contradiction(key, text, old.place, place)
        if key == "model.name" and old is not None and old.value != value and over:
            self._drop_figures()
        if old is None or over:
            self.placed[key] = new

    def _drop_figures(self) -> None:
        """Drops the public figures of a model whose name is replaced."""
        of = self.placed.get("model.figures_of")
        for key, each in list(self.placed.items()):
            same = of is not None and (each.place, each.option) == (of.place, of.option)
            if same and key.startswith("model.") and key != "model.name":
                del self.placed[key]

    def use(self, option: str, place: Place) -> None:
        """Marks a key, or several words of one option, as taken into account."""
        self.used |= {(place, _key(word)) for word in option.split()}

    def is_reported(self, option: str, place: Place) -> bool:
        """Whether a value was taken from a key, or something was reported about it, under its path
        or the end of it."""
        key = _key(option)
        last = key.rpartition(".")[2]
        if any(
            str(place) in each.places and last in each.text.replace("-", "_").lower()
            for each in (*self.contradictions, *self.overridden)
        ):
            return True
        reported = [(one.place, one.option) for one in self.unknown]
        reported += [(one.place, one.option) for one in self.unresolved]
        names = {name for at, name in self.used if at == place}
        names |= {_key(re.split(r"[=\s]", name)[-1]) for at, name in reported if at == str(place)}
        return any(f".{key}".endswith(f".{one}") or f".{one}".endswith(f".{key}") for one in names)

    def set_first(self, key: str, value: Value, place: Place, option: str) -> None:
        """Sets a value that is not set yet."""
        if key not in self.placed:
            self.set(key, value, place, option)

    def take(self, other: Collected) -> None:
        """Adds the values of another file; values that differ are contradictions."""
        for key, placed in other.placed.items():
            self.set(key, placed.value, placed.place, placed.option, over=False)
        self.derived = {**other.derived, **self.derived}
        self.defaults = {**other.defaults, **self.defaults}
        self.is_incomplete |= other.is_incomplete
        self.open_keys |= other.open_keys - self.placed.keys()
        self.contradictions += other.contradictions
        self.overridden += other.overridden
        self.unknown += other.unknown
        self.unresolved += other.unresolved
        self.unused += other.unused
        self.used |= other.used
        self.files += [name for name in other.files if name not in self.files]

    def default(self, source: str, **values: Value) -> None:
        """Sets the framework's defaults."""
        for key, value in values.items():
            self.defaults.setdefault(key, Default(value=value, source=source))

    def derive(self, key: str, value: Value, how: str) -> None:
        """Set a value that follows from others, unless a file has it."""
        if key not in self.placed and key not in self.derived:
            self.derived[key] = (value, how)

    def report_contradiction(
        self, key: str, text: str, *places: Place | None, impossible: bool = False
    ) -> None:
        """Report two entries that contradict each other.

        impossible  whether no run can have both
        """
        named = tuple(str(place) for place in places if place is not None)
        found = Contradiction(
            field=key.removeprefix("model."), text=text, places=named, impossible=impossible
        )
        if found not in self.contradictions:
            self.contradictions.append(found)

    def report_repeated(
        self, key: str, option: str, old: tuple[Any, Place] | None, new: tuple[Any, Place]
    ) -> None:
        """Report an option that a command line has twice, with two known values."""
        if old is None or old[0] == new[0] or not {type(old[0]), type(new[0])} <= {str}:
            return
        text = f"{option} is {old[0]} ({old[1]}) and {new[0]} ({new[1]}); the later one wins"
        self.report_contradiction(key, text, old[1], new[1])

    def report_override(
        self, key: str, option: str, old: tuple[Value, Place], new: tuple[Value, Place]
    ) -> None:
        """Reports a value of a file that a command line replaces."""
        text = f"{option}: {_shown(new[0])} ({new[1]}) in the place of {_shown(old[0])} ({old[1]})"
        self.overridden.append(
            Contradiction(
                field=key.removeprefix("model."), text=text, places=(str(old[1]), str(new[1]))
            )
        )

    @contextmanager
    def overriding_files(self) -> Iterator[None]:
        """Context in which values override those of files without a contradiction."""
        before, self.overriding = self.overriding, True
        yield
        self.overriding = before

    def report_unresolved(self, option: str, why: str, place: Place) -> None:
        """Reports an option without a known value."""
        found = Unresolved(option=option, why=why, place=str(place))
        if found not in self.unresolved:
            self.unresolved.append(found)

    def leave_open(
        self, key: str, option: str = "", why: str = "", place: Place | None = None
    ) -> None:
        """Leaves a key without a value: an earlier value is dropped, and no
        default is used. The option is omitted if the reason was reported before."""
        if place is not None:
            self.report_unresolved(option, why, place)
            self.use(option, place)
        self.placed.pop(key, None)
        self.derived.pop(key, None)
        self.open_keys.add(key)

    def forget(self, *keys: str) -> None:
        """Drop the values of keys, known or not, that are determined by another key."""
        for key in keys:
            self.placed.pop(key, None)
            self.derived.pop(key, None)
            self.open_keys.discard(key)

    def forget_ranks(self) -> None:
        """Drop the ranks of a launcher that starts only the driver of a run."""
        counts = ("nodes", "devices_per_node", "devices")
        self.forget(*counts)
        self.contradictions = [one for one in self.contradictions if one.field not in counts]

    def report_missing(self, option: str, why: str, place: Place) -> None:
        """Report a missing file with the run's degrees, which then have no defaults."""
        self.report_unresolved(option, why, place)
        self.is_incomplete = True

    def report_unknown(self, option: str, place: Place) -> None:
        """Report an option that no version of the framework has; `_note` is a comment."""
        if option.rpartition(".")[2].startswith("_"):
            return
        found = UnknownOption(option=option, place=str(place))
        if found not in self.unknown:
            self.unknown.append(found)
            self._open_fields_of(option)

    def _open_fields_of(self, option: str) -> None:
        """Takes the defaults from the fields that a key without a reader could set."""
        if not _OTHERS.search(_key(option)):
            last = _key(option).rpartition(".")[2]
            self.open_keys |= {
                key
                for key, words in _FIELDS.items()
                if key not in self.placed and re.search(words, last)
            }

    def report_unused(self, option: str, place: Place, why: str) -> None:
        """Report a key that is not taken into account or has no effect; its first reason counts."""
        if all((option, str(place)) != (each.option, each.place) for each in self.unused):
            self.unused.append(UnusedOption(option=option, place=str(place), why=why))
            self._open_fields_of(option)

    def get(self, key: str) -> Value:
        """The value of a key, set or derived; otherwise None."""
        if key in self.placed:
            return self.placed[key].value
        return self.derived[key][0] if key in self.derived else None

    def count(self, key: str) -> int | None:
        """The value of a key if it is an integer of 1 or more; otherwise None."""
        value = self.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        return None

    def count_or_default(self, key: str) -> int | None:
        """`count`, otherwise the framework's default."""
        found = self.count(key)
        if found is None and not self._open(key) and self.get(key) is None and key in self.defaults:
            value = self.defaults[key].value
            return value if isinstance(value, int) and not isinstance(value, bool) else None
        return found

    def _open(self, key: str) -> bool:
        """Whether the files have the key with an unknown value."""
        return key in self.open_keys or (self.is_incomplete and key not in _OF_LAUNCHER)

    def place(self, key: str) -> Place | None:
        """The place of a value in the files."""
        return self.placed[key].place if key in self.placed else None

    def imported(self) -> ImportedRun:
        """The run, with defaults only for keys without a value."""
        values = {key: placed.value for key, placed in self.placed.items()}
        for key, (value, _) in self.derived.items():
            values.setdefault(key, value)
        model = {k.removeprefix("model."): v for k, v in values.items() if k.startswith("model.")}
        run: Mapping[str, Value] = {k: v for k, v in values.items() if not k.startswith("model.")}
        return ImportedRun(
            **run,  # type: ignore[arg-type]  # values of several types by name
            model=ImportedModel(**model),  # type: ignore[arg-type]  # the same
            options={key: placed.where for key, placed in sorted(self.placed.items())},
            derived={key: how for key, (_, how) in sorted(self.derived.items())},
            defaults={
                key: default
                for key, default in sorted(self.defaults.items())
                if key not in values and not self._open(key)
            },
            contradictions=tuple(self.contradictions),
            overridden=tuple(self.overridden),
            unknown=tuple(sorted(self.unknown, key=lambda each: each.option)),
            unresolved=tuple(self.unresolved),
            unused=tuple(self.unused),
            runs=self.runs,
            files=tuple(dict.fromkeys(self.files)),
        )


def _key(option: str) -> str:
    return re.sub(r"(^|\.)-+", r"\1", option).replace("-", "_").lower()


def _shown(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
