"""JSON texts with something wrong or odd in them: keys twice, gone or misspelt, values of other types."""

from __future__ import annotations

import json
import random
import re
from typing import Any

from hypothesis import strategies as st

ODD_VALUES = [
    b"null",
    b"true",
    b"0",
    b"-0",
    b"-0.0",
    b"1",
    b"1.0",
    b"1e2",
    b"-1",
    b"1e400",
    b"9007199254740993",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775809",
    b"1" * 5000,
    b"NaN",
    b"-Infinity",
    b'"NaN"',
    b'""',
    b'"x"',
    rb'"\u0000"',
    rb'"\ud83d"',
    rb'"\ud83d\ude00"',
    b'"\xc2\x9f"',
    b'"\x7f"',
    b'"' + b"x" * 129 + b'"',
    b'"' + "ä".encode() * 65 + b'"',
    b'"' + b"0" * 64 + b'"',
    b'"' + b"0" * 64 + rb'\n"',
    b"[]",
    b"{}",
    b"[null]",
    b"[-0]",
    b"[1,2,2147483648]",
    b"[0.5,null,-0,1]",
    b"[[1]]",
    b'["a"]',
    b'[""]',
    rb'["a\u0001"]',
    b'{"a":1,"a":2}',
    rb'{"a":1,"\u0061":2}',
    b'[{"b":{"a":1,"b":2,"a":3}}]',
    b"[" * 198 + b"]" * 198,
    b"[" * 199 + b"]" * 199,
    b"[" * 199 + b"1" + b"]" * 199,
    b"[" * 200 + b"]" * 200,
    b'{"a":' * 150 + b"1" + b"}" * 150,
    b'{"dtype":"int32","base64":"AQAAAA=="}',
    b'{"dtype":"int32","base64":"AQAAgA=="}',
    b'{"dtype":"int32","base64":"AQAA"}',
    b'{"dtype":"int32","base64":"AQAAAA="}',
    b'{"dtype":"int32","base64":"AQAAAA=\\n"}',
    b'{"dtype":"int32","base64":"====AQAA"}',
    b'{"dtype":"float32","base64":"AADAfw=="}',
    b'{"dtype":"float32","base64":"AADA"}',
    b'{"dtype":"float64","base64":"AADAfw=="}',
    b'{"dtype":"float64","base64":"AAAAAAAA8L8="}',
    b'{"dtype":"float32","base64":"AADAfw==","nulls":[0]}',
    b'{"dtype":"float32","base64":"AADAfw==","nulls":[-0]}',
    b'{"base64":"AQAAAA==","dtype":"int32","dtype":"int32"}',
]
"""JSON values and what is none."""

_NAMES = ["v", "kind", "id", "meta", "request", "messages", "token_ids", "index", "unknown", "I\u0064", ""]
SNIPPETS = [
    *(b'"%s":' % name.encode() for name in _NAMES),
    *(b'"%s":1,' % name.encode() for name in _NAMES),
    *ODD_VALUES[:14],
    *(b"," + value for value in ODD_VALUES[:3]),
    *(b",", b":", b"[", b"]", b"{", b"}", b'"', b"\\", b" ", b"\n", b"\x0b", b"\x00", b".5", b"e5", b"7"),
    *(b"],", b"},", b"]}", b'],"messages":[', b']},"request":{"messages":[', b"\\u0069", b"//", b"'"),
    *(b"\xff", b"\xc0\x80", b"\xed\xa0\xbd", b"\xef\xbb\xbf", b"\xc2\xa0", b"\xe2\x80\xa8"),
]


class Token(bytes):
    """A value as it is written."""


def _parsed(text: bytes) -> Any:
    """Objects as lists of pairs in a tuple, so that a key can stand twice."""
    try:
        return json.loads(
            text,
            object_pairs_hook=lambda pairs: ("object", pairs),
            parse_int=lambda digits: Token(digits.encode()),
            parse_float=lambda digits: Token(digits.encode()),
            parse_constant=lambda name: Token(name.encode()),
        )
    except ValueError:
        return Token(text)


def _written(value: Any) -> bytes:
    if isinstance(value, Token):
        return value
    if isinstance(value, tuple):
        members = (json.dumps(key).encode() + b":" + _written(one) for key, one in value[1])
        return b"{" + b",".join(members) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(_written, value)) + b"]"
    return json.dumps(value).encode()


def _containers(value: Any) -> list[list[Any]]:
    """The lists below a value, those of pairs as well."""
    inside = value[1] if isinstance(value, tuple) else value
    if not isinstance(inside, list):
        return []
    values = [one for _, one in inside] if isinstance(value, tuple) else inside
    return [inside, *(each for one in values for each in _containers(one))]


def tree_tampered(text: bytes, choices: random.Random) -> bytes:
    """The text with one to three members or elements of it changed."""
    tree = _parsed(text)
    for _ in range(choices.choice((1, 1, 2, 3))):
        places = [one for one in _containers(tree) if one]
        if not places:
            break
        place = choices.choice(places[:3] if choices.random() < 0.5 else places)
        at = choices.randrange(len(place))
        odd = Token(choices.choice(ODD_VALUES))
        is_pair = isinstance(place[at], tuple) and place[at][0] != "object"
        change = choices.randrange(6)
        if change == 0:
            del place[at]
        elif change == 1:
            place.insert(choices.randrange(len(place) + 1), place[at])
        elif not is_pair:
            place[at] = odd
        elif change == 2:
            place[at] = (choices.choice(_NAMES), place[at][1])
        elif change == 3:
            place.insert(choices.randrange(len(place) + 1), (place[at][0], odd))
        else:
            place[at] = (place[at][0], odd)
    return _written(tree)


def byte_tampered(text: bytes, choices: random.Random) -> bytes:
    """The text with something cut out, put in or repeated at one or two places."""
    for _ in range(choices.choice((1, 1, 1, 2))):
        start = choices.randrange(len(text) + 1)
        end = min(start + choices.choice((0, 0, 1, 1, 2, 9)), len(text))
        snippet = choices.choice([*SNIPPETS, text[start : start + 20]])
        text = text[:start] + (snippet if choices.random() < 0.8 else b"") + text[end:]
    return text


_DOUBTFUL = re.compile(rb"\\\\|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|-?Infinity|NaN|-0(?![.0-9eE])")


def ordinary(text: bytes) -> bytes:
    """The text with a 7 for what only the exact path reads: lone surrogates, NaN, -0."""
    return _DOUBTFUL.sub(lambda found: found[0] if found[0] == rb"\\" else b"7", text)


def tampered(text: bytes, seed: int) -> bytes:
    choices = random.Random(seed)
    return (tree_tampered if choices.random() < 0.6 else byte_tampered)(text, choices)


seeds = st.integers(0, 2**32 - 1)
