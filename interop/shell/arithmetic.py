"""`evaluate`: the whole number of a shell's arithmetic expression (POSIX.1-2017, 2.6.4; bash manual
5.2, 6.5). Assignments inside it are made through `assign`."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"\s*(0[xX][0-9a-fA-F]+|\d+\.\d+|\d+|[A-Za-z_]\w*|\*\*|\+\+|--|<<=|>>=|<<|>>|<=|>=|==|!=|&&|"
    r"\|\||[-+*/%&|^]=|[-+*/%<>=!~&|^?:(),])"
)
_LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="),
           ("<<", ">>"), ("+", "-"), ("*", "/", "%"))  # fmt: skip
_MOST_BITS = 200


class ArithmeticFault(ValueError):
    """An expression that is none, or that has no whole number."""


def evaluate(
    text: str, value_of: Callable[[str], int], assign: Callable[[str, int], None] | None = None
) -> int:
    """The value of an expression.

    value_of  the number of a variable; raises ArithmeticFault where it has none
    Raises ArithmeticFault for what is no expression, a division by zero, a fraction or a number
    beyond 200 bits.

    >>> evaluate("(4 * 8) / (N + 2)", {"N": 6}.__getitem__)
    4
    """
    reader = _Reader(text, value_of, assign)
    value = 0 if not reader.words else reader.comma()
    if reader.at != len(reader.words):
        raise ArithmeticFault(text)
    return value


class _Reader:
    def __init__(
        self,
        text: str,
        value_of: Callable[[str], int],
        assign: Callable[[str, int], None] | None,
    ) -> None:
        self.words: list[str] = []
        self.at = 0
        self._value_of, self._assign = value_of, assign
        self._depth = 0
        place = 0
        text = text.strip()
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                raise ArithmeticFault(text)
            self.words.append(found[1])
            place = found.end()

    def _peek(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def _take(self) -> str:
        word = self._peek()
        self.at += 1
        return word

    def comma(self) -> int:
        value = self._choice()
        while self._peek() == ",":
            self._take()
            value = self._choice()
        return value

    def _choice(self) -> int:
        self._depth += 1
        if self._depth > 100:
            raise ArithmeticFault("nested too deeply")
        after = self.words[self.at + 1] if self.at + 1 < len(self.words) else ""
        if self._peek()[:1].isalpha() or self._peek()[:1] == "_":
            if after == "=":
                name = self._take()
                self._take()
                value = self._choice()
                self._set(name, value)
                self._depth -= 1
                return value
            if len(after) >= 2 and after[-1] == "=" and after[0] in "+-*/%" and after[1] == "=":
                name, operator = self._take(), self._take()[0]
                value = _apply(operator, self._value_of(name), self._choice())
                self._set(name, value)
                self._depth -= 1
                return value
        value = self._level(0)
        if self._peek() == "?":
            self._take()
            first = self._choice()
            if self._take() != ":":
                raise ArithmeticFault("a ? without its :")
            second = self._choice()
            value = first if value else second
        self._depth -= 1
        return value

    def _set(self, name: str, value: int) -> None:
        if self._assign is not None:
            self._assign(name, value)

    def _level(self, level: int) -> int:
        if level == len(_LEVELS):
            return self._power()
        value = self._level(level + 1)
        while self._peek() in _LEVELS[level]:
            operator = self._take()
            value = _apply(operator, value, self._level(level + 1))
        return value

    def _power(self) -> int:
        base = self._unary()
        if self._peek() == "**":
            self._take()
            return _apply("**", base, self._power())
        return base

    def _unary(self) -> int:
        word = self._take()
        if word in ("-", "+", "!", "~"):
            value = self._unary()
            return {"-": -value, "+": value, "!": int(not value), "~": ~value}[word]
        if word in ("++", "--"):
            name = self._take()
            value = self._value_of(name) + (1 if word == "++" else -1)
            self._set(name, value)
            return value
        if word == "(":
            value = self.comma()
            if self._take() != ")":
                raise ArithmeticFault("a ( without its )")
            return value
        if word[:1].isdigit():
            if "." in word:
                raise ArithmeticFault(word)
            octal = len(word) > 1 and word[0] == "0" and word.isdigit()
            try:
                return int(word, 8) if octal else int(word, 0)
            except ValueError as error:
                raise ArithmeticFault(word) from error
        if word[:1].isalpha() or word[:1] == "_":
            value = self._value_of(word)
            if self._peek() in ("++", "--"):
                self._set(word, value + (1 if self._take() == "++" else -1))
            return value
        raise ArithmeticFault(word or "an expression that ends too early")


def _apply(operator: str, left: int, right: int) -> int:
    if operator in ("/", "%"):
        if right == 0:
            raise ArithmeticFault("a division by zero")
        quotient = abs(left) // abs(right)
        quotient = quotient if (left < 0) == (right < 0) else -quotient
        return quotient if operator == "/" else left - quotient * right
    if operator in ("**", "<<") and not 0 <= right <= _MOST_BITS:
        raise ArithmeticFault("a number too large")
    operations: dict[str, Callable[[], int]] = {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "**": lambda: int(left**right),
        "<<": lambda: left << right,
        ">>": lambda: left >> max(0, min(right, _MOST_BITS)),
        "&": lambda: left & right,
        "|": lambda: left | right,
        "^": lambda: left ^ right,
        "<": lambda: int(left < right),
        ">": lambda: int(left > right),
        "<=": lambda: int(left <= right),
        ">=": lambda: int(left >= right),
        "==": lambda: int(left == right),
        "!=": lambda: int(left != right),
        "&&": lambda: int(bool(left) and bool(right)),
        "||": lambda: int(bool(left) or bool(right)),
    }
    found = operations[operator]()
    if abs(found).bit_length() > _MOST_BITS:
        raise ArithmeticFault("a number too large")
    return found
