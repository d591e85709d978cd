"""`Symbol`: a number with its formula, in names and in numbers.

A formula written for numpy arrays is explained by running it on symbols. The value, the words and
the numbers then come from the same lines of code and cannot disagree:

>>> rate, size = Symbol(2.0, "rate"), Symbol(1.5, "size", "1.5 s")
>>> found = np.maximum(rate * size + 0.0, 1.0)
>>> found.value, found.words, found.numbers
(3.0, 'max(rate x size, 1)', 'max(2 x 1.5 s, 1)')

Terms of 0 and factors of 1 are left out, and so are factors of 1e-3 and 1e-6, which convert a
coefficient's milliseconds and microseconds (printed with the unit) to seconds. A comparison returns
its boolean, and `np.where` the applicable branch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from profiles.units import format_time

Array = NDArray[np.float64]

_SUM, _PRODUCT, _ATOM = 1, 2, 3
_SILENT = (1.0, 1e-3, 1e-6)


class Symbol(NDArrayOperatorsMixin):
    """One number, and its formula with names and with numbers.

    where  definitions of the names in the formula, each in names and in numbers
    """

    __slots__ = ("constant", "numbers", "rank", "value", "where", "words")

    def __init__(
        self,
        value: float,
        words: str,
        numbers: str = "",
        rank: int = _ATOM,
        where: tuple[tuple[str, str], ...] = (),
        constant: bool = False,
    ) -> None:
        self.value, self.words, self.rank, self.where = value, words, rank, where
        self.numbers = numbers or f"{value:.4g}"
        self.constant = constant

    @classmethod
    def of(cls, given: Any) -> Symbol:
        """A symbol unchanged; a number, or an array of one, as a constant."""
        if isinstance(given, Symbol):
            return given
        value = float(np.asarray(given).reshape(-1)[0])
        return cls(value, f"{value:g}", f"{value:g}", constant=True)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **_: Any) -> Any:
        """The formula extended by one operation; comparisons are evaluated."""
        args = [Symbol.of(given) for given in inputs]
        value = ufunc(*(arg.value for arg in args))
        if isinstance(value, np.bool_):
            return value
        return _operation(ufunc.__name__, args, float(value))

    def __array_function__(
        self, function: object, types: object, args: tuple[Any, ...], kwargs: object
    ) -> Any:
        """Only np.where is supported: the applicable branch."""
        if function is not np.where:
            return NotImplemented
        condition, yes, no = args
        return Symbol.of(yes if np.all(condition) else no)


def named(name: str, value: Array, *, defined: bool = True) -> Array:
    """The value; an explanation prints it by its name and, with `defined`, adds its formula."""
    if not isinstance(value, Symbol) or value.value == 0.0:
        return value
    formula = (f"{name} = {value.words}", f"{name} = {value.numbers}")
    where = (*value.where, formula) if defined else ()
    return Symbol(value.value, name, format_time(value.value), where=where)


def rendered_as_one(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Decorator: explanations print this function of two arrays by name, without its formula."""

    @functools.wraps(function)
    def wrapped(a: Array, b: Array) -> Array:
        if not isinstance(a, Symbol) and not isinstance(b, Symbol):
            return function(a, b)
        args = [Symbol.of(a), Symbol.of(b)]
        value = float(function(*(np.asarray(arg.value) for arg in args)))
        return _operation(function.__name__, args, value)

    return wrapped


def _operation(name: str, args: list[Symbol], value: float) -> Symbol:
    if value == 0.0:
        return Symbol(0.0, "0", "0")
    if name in _SIGNS:
        return _infix(name, args[0], args[1], value)
    kept = [arg for arg in args if arg.value or name == "minimum"]
    if len(kept) == 1 and name in ("maximum", "larger"):
        return kept[0]
    shown = {"maximum": "max", "minimum": "min"}.get(name, name)
    words = f"{shown}({', '.join(arg.words for arg in kept)})"
    return _made(value, words, f"{shown}({', '.join(arg.numbers for arg in kept)})", _PRODUCT, kept)


_SIGNS = {
    "add": ("+", _SUM),
    "subtract": ("-", _SUM),
    "multiply": ("x", _PRODUCT),
    "divide": ("/", _PRODUCT),
    "power": ("^", _PRODUCT),
}


def _infix(name: str, a: Symbol, b: Symbol, value: float) -> Symbol:
    sign, rank = _SIGNS[name]
    silent = _silent(b), _silent(a) and name == "multiply"
    if rank == _SUM:
        silent = b.value == 0.0, a.value == 0.0 and name == "add"
    for other, dropped in zip((a, b), silent, strict=True):
        if dropped:
            return _made(value, other.words, other.numbers, other.rank, [other])
    # The operand after a minus or a division is bracketed if it has the same precedence.
    right = rank + (name in ("subtract", "divide"))
    words = f"{_in(a, a.words, rank)} {sign} {_in(b, b.words, right)}"
    return _made(
        value, words, f"{_in(a, a.numbers, rank)} {sign} {_in(b, b.numbers, right)}", rank, [a, b]
    )


def _silent(factor: Symbol) -> bool:
    return factor.constant and factor.value in _SILENT


def _in(symbol: Symbol, text: str, rank: int) -> str:
    return f"({text})" if symbol.rank < rank else text


def _made(value: float, words: str, numbers: str, rank: int, args: list[Symbol]) -> Symbol:
    where = tuple(dict.fromkeys(each for arg in args for each in arg.where))
    return Symbol(value, words, numbers, rank, where, all(arg.constant for arg in args))
