"""The inputs of a page, synchronized with its URL."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import NAME_START
from shardwright.page.fields import (
    Field,
    FieldErrors,
    address_of,
    field_named,
    need_options,
    starting_values,
    unknown_parameters,
)
from shardwright.reports.brief.brief_html import words_html

COLUMNS = 4
_COUNTED = re.compile(rf"^(?:(\d{{1,6}})x)?(\d{{1,4}}x{NAME_START}[\w.@/-]*)$")
_MOST_NODES = 100_000
_NODES = "its nodes"


@dataclass
class Inputs:
    """The inputs of one page.

    values  of every field
    errors  (field, message) for the URL
    """

    page: str
    fields: Sequence[Field]
    values: dict[str, str] = field(default_factory=dict)
    errors: list[tuple[str, str]] = field(default_factory=list)
    _slots: dict[str, Any] = field(default_factory=dict)

    def draw(self) -> None:
        """Draws the inputs, rarely needed ones in a folded section."""
        self._from_address()
        usual = [one for one in self.fields if not one.more]
        self._rows(usual)
        folded = [one for one in self.fields if one.more]
        touched = any(self._state(one.name) not in (one.start, False) for one in folded)
        if folded:
            with st.expander("More", expanded=touched):
                self._rows(folded)
        self.values = {one.name: self._typed(one) for one in self.fields}
        self._to_address()

    def show_errors(self, errors: Sequence[tuple[str, str]]) -> None:
        """Draws (field, message) next to the fields."""
        for name in dict.fromkeys(name for name, _ in errors):
            texts = "\n".join(dict.fromkeys(text for one, text in errors if one == name))
            self._slots.get(name, st).html(words_html("fault", texts))

    @contextmanager
    def showing_errors(self) -> Iterator[None]:
        """A context that ends at the first error and draws it next to its field."""
        try:
            yield
        except FieldErrors as error:
            self.show_errors(error.messages)
        except ShardwrightError as error:
            self.show_errors([(field_named(self.fields, str(error)), str(error))])

    def _rows(self, fields: Sequence[Field]) -> None:
        cells = [cell for one in fields for cell in self._cells(one)]
        for begin in range(0, len(cells), COLUMNS):
            row = cells[begin : begin + COLUMNS]
            for column, (name, cell) in zip(st.columns(COLUMNS), row, strict=False):
                with column:
                    cell()
                    self._slots[name] = st.empty()

    def _cells(self, one: Field) -> list[tuple[str, Callable[[], None]]]:
        """Drawing functions of a field, each with its key for errors."""
        cells: list[tuple[str, Callable[[], None]]] = [
            (one.name, functools.partial(self._input, one))
        ]
        if one.counted:
            cells.append((_NODES, functools.partial(self._nodes, one)))
        return cells

    def _input(self, one: Field) -> None:
        key = self._key(one.name)
        if one.switch:
            st.toggle(one.label, key=key, help=one.help)
        elif one.options:
            st.selectbox(
                one.label,
                one.options,
                key=key,
                help=one.help,
                format_func=lambda value: value or one.empty or "-",
                accept_new_options=not one.fixed,
            )
        else:
            st.text_input(one.label, key=key, help=one.help)

    def _nodes(self, one: Field) -> None:
        """The number of nodes at the start of a cluster's name, as a stepper."""
        key, nodes = self._key(one.name), self._key(_NODES)
        match = _COUNTED.match(str(self._state(one.name)).strip().lower())
        st.session_state[nodes] = int(match[1] or 1) if match else None

        def renamed() -> None:
            count = st.session_state[nodes]
            if match and count:
                st.session_state[key] = f"{count}x{match[2]}" if count > 1 else match[2]

        st.number_input(
            "Nodes",
            min_value=1,
            max_value=_MOST_NODES,
            step=1,
            key=nodes,
            on_change=renamed,
            disabled=match is None,
            help="of the cluster, if its name begins with their number",
        )

    def _from_address(self) -> None:
        """Fills the inputs from the URL at the first run and after an external change of the URL;
        restores them when the user returns from the other page."""
        address, state = st.query_params.to_dict(), st.session_state
        kept: tuple[dict[str, str], dict[str, str]] | None = state.get(self._key("kept"))
        fresh = self._key(self.fields[0].name) not in state
        if kept is not None and not fresh and address == kept[0]:
            self.errors = state[self._key("errors")]
            return
        errors = [("", text) for text in unknown_parameters(self.fields, address)]
        values = starting_values(self.fields, address)
        if kept is not None and fresh and not address:
            values = kept[1]
        try:
            need_options(self.fields, values)
        except FieldErrors as error:
            errors += error.messages
            values |= {name: self._field(name).start for name, _ in error.messages}
        for one in self.fields:
            state[self._key(one.name)] = (
                values[one.name] == "yes" if one.switch else values[one.name]
            )
        state[self._key("kept")] = (address, values)
        state[self._key("errors")] = self.errors = errors

    def _to_address(self) -> None:
        """Updates the URL after a change of the inputs."""
        state = st.session_state
        address, values = state[self._key("kept")]
        if values == self.values and address:
            return
        if values != self.values:
            self.errors = state[self._key("errors")] = []
        new = address_of(self.fields, self.values)
        if new != address and not self.errors:
            st.query_params.from_dict(new)
            address = new
        state[self._key("kept")] = (address, dict(self.values))

    def _typed(self, one: Field) -> str:
        value = self._state(one.name)
        if one.switch:
            return "yes" if value else ""
        return str(value or "")

    def _state(self, name: str) -> Any:
        return st.session_state[self._key(name)]

    def _field(self, name: str) -> Field:
        return next(one for one in self.fields if one.name == name)

    def _key(self, name: str) -> str:
        return f"{self.page} {name}"
