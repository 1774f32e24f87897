"""JSON text made from the grammar, never by json.dumps: one value has many spellings.

A value is drawn first (`values`), then written down with choices of their own (`spellings`): white space,
escapes, number forms, key order. Strings hold any code point, lone surrogates and NUL included; numbers have
any size.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st


@dataclass(frozen=True)
class Num:
    """sign * digits * 10**exponent, digits without trailing zeros (or 0)."""

    negative: bool
    digits: int
    exponent: int


@dataclass(frozen=True)
class Word:
    """null, true, false, or a constant that is not JSON."""

    text: str


@dataclass(frozen=True)
class Obj:
    """An object; an array is a tuple, a string a str."""

    members: tuple[tuple[str, Any], ...]


NULL, TRUE, FALSE = Word("null"), Word("true"), Word("false")


def _number(negative: bool, digits: int, exponent: int) -> Num:
    while digits and digits % 10 == 0:
        digits, exponent = digits // 10, exponent + 1
    return Num(negative, digits, exponent if digits else 0)


_CODE_POINTS = st.one_of(
    st.sampled_from('"\\/\b\f\n\r\t\x00\x1f\x7f\u2028\ud83d\ude00\udfff\ufeff'),
    st.characters(max_codepoint=0x7E),
    st.characters(),
    st.integers(0xD800, 0xDFFF).map(chr),
)


def _without_split_pairs(text: str) -> str:
    kept = ""
    for char in text:
        if kept and "\ud800" <= kept[-1] <= "\udbff" and "\udc00" <= char <= "\udfff":
            continue
        kept += char
    return kept


strings = st.text(_CODE_POINTS, max_size=8).map(_without_split_pairs)

numbers = st.builds(
    _number,
    st.booleans(),
    st.one_of(
        st.integers(0, 300),
        st.sampled_from([0, 1, 2**53, 2**53 + 1, 2**63, 2**64 + 1, 17, 10**45 + 1]),
        st.integers(0, 10**30),
    ),
    st.one_of(st.just(0), st.integers(-30, 30), st.sampled_from([400, -400, 308, -324, 99999])),
)

_leaves = st.one_of(st.sampled_from([NULL, TRUE, FALSE]), numbers, strings)


def objects(values: st.SearchStrategy[Any], *, max_size: int = 4) -> st.SearchStrategy[Obj]:
    return st.dictionaries(strings, values, max_size=max_size).map(lambda d: Obj(tuple(d.items())))


values: st.SearchStrategy[Any] = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=4).map(tuple) | objects(inner), max_leaves=12
)


_SHORT = dict(zip('"\\/\b\f\n\r\t', (rf"\{letter}" for letter in '"\\/bfnrt'), strict=True))


class Spelling:
    """How one value is written this time."""

    def __init__(self, choices: random.Random) -> None:
        self.choices = choices

    def write(self, value: Any) -> str:
        if isinstance(value, Word):
            return value.text
        if isinstance(value, Num):
            return self.number(value)
        if isinstance(value, str):
            return self.string(value)
        if isinstance(value, Obj):
            members = list(value.members)
            self.choices.shuffle(members)
            inside = (f"{self.string(k)}{self.space()}:{self.space()}{self.write(v)}" for k, v in members)
            return "{" + self.space() + self.comma().join(inside) + self.space() + "}"
        return "[" + self.space() + self.comma().join(map(self.write, value)) + self.space() + "]"

    def space(self) -> str:
        return "".join(self.choices.choices(" \t\n\r", k=self.choices.choice((0, 0, 0, 1, 3))))

    def comma(self) -> str:
        return f"{self.space()},{self.space()}"

    def string(self, text: str) -> str:
        return '"' + "".join(map(self.character, text)) + '"'

    def character(self, char: str) -> str:
        forms = [self.escape(char)]
        if char in _SHORT:
            forms.append(_SHORT[char])
        if char >= " " and char not in '"\\' and not "\ud800" <= char <= "\udfff":
            forms += [char] * 4
        return self.choices.choice(forms)

    def escape(self, char: str) -> str:
        units = char.encode("utf-16-be", "surrogatepass")
        digits = (units[i : i + 2].hex() for i in range(0, len(units), 2))
        return "".join("\\u" + (self.choices.choice((str.lower, str.upper))(d)) for d in digits)

    def number(self, number: Num) -> str:
        sign = "-" if number.negative else ""
        # An integer stays one where the value is one: the forms with a point or exponent are other spellings.
        forms = [self.scientific(number)]
        if 0 <= number.exponent <= 60:
            forms += [str(number.digits * 10**number.exponent)] * 2
        if -40 <= number.exponent < 0:
            digits = str(number.digits).rjust(1 - number.exponent, "0")
            zeros = "0" * self.choices.randrange(3)
            forms += [f"{digits[: number.exponent]}.{digits[number.exponent :]}{zeros}"] * 2
        return sign + self.choices.choice(forms)

    def scientific(self, number: Num) -> str:
        digits = str(number.digits) + "0" * self.choices.randrange(3)
        exponent = number.exponent - (len(digits) - len(str(number.digits)))
        point = self.choices.randrange(1, len(digits) + 1)
        exponent += len(digits) - point
        mantissa = digits[:point] + (f".{digits[point:]}" if digits[point:] else "")
        if mantissa.startswith("0") and not mantissa.startswith("0.") and len(mantissa) > 1:
            mantissa = "0"
        power = str(abs(exponent)).rjust(self.choices.choice((1, 2, 4)), "0")
        plus = "-" if exponent < 0 else self.choices.choice(("", "+"))
        return f"{mantissa}{self.choices.choice('eE')}{plus}{power}"


# A seed, not st.randoms: hundreds of small draws per text are slow, and a spelling hardly shrinks anyway.
spellings = st.integers(0, 2**32 - 1).map(lambda seed: Spelling(random.Random(seed)))


@st.composite
def texts(draw: st.DrawFn, value: st.SearchStrategy[Any] = values) -> bytes:
    """UTF-8 JSON text of some value, white space around it not included."""
    return draw(spellings).write(draw(value)).encode("utf-8")
