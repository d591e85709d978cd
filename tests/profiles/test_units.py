"""Quantities: what people write and what is printed, by hand and by round trip."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import UnitError
from profiles.units import (
    format_bytes,
    format_count,
    format_flop,
    format_percent,
    format_probability,
    format_rate,
    format_time,
    format_tonnes,
    format_usd,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80GiB", "bytes", 80 * 2**30),
        ("80 GB", "bytes", 80e9),
        ("1.5ms", "time", 1.5e-3),
        ("2min", "time", 120.0),
        ("30d", "time", 30 * 86400.0),
        ("4M", "count", 4e6),
        ("7B", "count", 7e9),
    ],
)
def test_what_people_write_is_read(text: str, dimension: str, value: float) -> None:
    assert parse_quantity(text, dimension) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "dimension", "message"),
    [
        ("80", "bytes", "--x: '80' has no unit"),
        ("80GiB", "time", "has the unit 'GiB'"),
        ("much", "count", "is not a quantity; write for example 1024, 4M or 2T"),
        ("-3s", "time", "must be finite and not negative"),
        ("400Gb", "bytes", "has the unit 'Gb'"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, dimension: str, message: str) -> None:
    with pytest.raises(UnitError) as told:
        parse_quantity(text, dimension, where="--x")
    assert message in str(told.value)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (format_bytes(0), "0 B"),
        (format_bytes(1023), "1023 B"),
        (format_bytes(71.3 * 2**30), "71.3 GiB"),
        (format_bytes(1024**2 - 1), "1.00 MiB"),  # not 1024 KiB
        (format_time(3.4213), "3.42 s"),
        (format_time(1234.5), "20.6 min"),
        (format_time(3 * 3600), "3 h"),
        (format_time(4.5 * 86400), "4.5 d"),
        (format_time(2.5e-5), "25 us"),
        (format_flop(1.234e12), "1.23 TFLOP"),
        (format_rate(50e9), "50.0 GB/s"),
        (format_count(9999), "9999"),
        (format_count(1.024e12), "1.02 T"),
        (format_usd(0.936), "$0.94"),
        (format_usd(0.0123), "$0.0123"),
        (format_usd(12_345), "$12.3 k"),
        (format_percent(0.4127), "41 %"),
        (format_percent(0.0183), "1.8 %"),
    ],
)
def test_what_is_printed(found: str, text: str) -> None:
    assert found == text


@given(st.floats(1.0, 1e15))
def test_bytes_that_are_printed_are_read_back(value: float) -> None:
    text = format_bytes(value).replace(" ", "")
    assert parse_quantity(text, "bytes") == pytest.approx(value, rel=0.006, abs=0.5)


@given(st.floats(1e-9, 1e8))
def test_times_that_are_printed_are_read_back(value: float) -> None:
    text = format_time(value).replace(" ", "")
    found = parse_quantity(text, "time")
    assert math.isclose(found, value, rel_tol=0.006, abs_tol=1e-9)


def test_a_probability_is_never_written_as_certain() -> None:
    written = [format_probability(each) for each in (None, 0.0, 0.0099, 0.031, 0.93, 0.991, 1.0)]
    assert written == ["-", "< 1 %", "< 1 %", "3.1 %", "93 %", "> 99 %", "> 99 %"]


def test_tonnes_are_written_with_the_unit_that_fits() -> None:
    assert [format_tonnes(each) for each in (2030.0, 155.0, 0.0096)] == [
        "2.03 kt",
        "155 t",
        "9.6 kg",
    ]
