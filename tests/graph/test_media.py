from __future__ import annotations

import json

import pytest

from tracestore.graph.media import _PART_TYPES, may_hold_media, media_parts
from tracestore.wire.base import Raw


@pytest.mark.parametrize("kind", sorted(_PART_TYPES))
def test_a_part_of_every_type_is_found_however_its_type_is_spelled(kind: str) -> None:
    spellings = [
        f'"{kind}"',
        *(f'"{kind[:at]}\\u{ord(kind[at]):04x}{kind[at + 1 :]}"' for at in range(len(kind))),
    ]
    messages = [Raw(b'{"role":"user","content":[{"type":%s}]}' % one.encode()) for one in spellings]
    assert all(map(may_hold_media, messages))
    assert {len(media_parts(message)) for message in messages} == {1}
    assert len({media_parts(message) for message in messages}) == 1


@pytest.mark.parametrize("word", ["file", "a profile", "documents", "\u0141", "text"])
def test_a_text_with_a_word_of_that_kind_holds_no_part(word: str) -> None:
    message = Raw(json.dumps({"role": "user", "content": [{"type": "text", "text": word}]}).encode())
    assert media_parts(message) == ()


def test_the_end_of_a_word_is_no_type() -> None:
    assert not may_hold_media(b'{"content":"profile","name":"my_file"}')
    assert not may_hold_media(b'{"content":"\\u0041"}')
