"""A message -> the images, sounds, videos and files that stand inside it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

from tracestore.wire.base import Raw

_PART_TYPES = frozenset(
    {"image", "image_url", "input_image", "computer_screenshot"}
    | {"audio", "input_audio", "video", "video_url", "input_video"}
    | {"document", "file", "input_file"}
)
_PART_HINT = re.compile(rb'image|screenshot|audio|video|"document"|"(?:input_)?file"|\\u00[5-7]')
"""In the bytes of every message with such a part; the last is a letter of its type as a JSON escape."""


def may_hold_media(text: bytes) -> bool:
    """False where no message in a text holds such a part."""
    # Found much faster than the expression, to which few texts get.
    is_likely = b"image" in text or b"screenshot" in text or b"audio" in text or b"video" in text
    is_likely = is_likely or b'"document"' in text or b'file"' in text or b"\\u00" in text
    return is_likely and _PART_HINT.search(text) is not None


def media_parts(message: Raw) -> tuple[str, ...]:
    """Hashes of the parts, in order."""
    return tuple(_parts_in(message.value())) if may_hold_media(message) else ()


def _parts_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if value.get("type") in _PART_TYPES:
            yield hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
            return
        for name in ("content", "output"):
            yield from _parts_in(value.get(name))
    elif isinstance(value, list):
        for item in value:
            yield from _parts_in(item)
