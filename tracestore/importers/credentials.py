"""What a recording says -> the same without what lets somebody in: keys, tokens, cookies, by their names.

Headers, fields of a URL, and whatever else stands beside the messages of an exchange may hold a credential.
Messages are never touched: what a model wrote or read stays as it is, whatever it is called there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

_NAMES = re.compile(
    r"authorization|cookie|api[-_]?key|access[-_]?key|secret|password|credential|signature"
    r"|(^|[-_])(auth|sig|token)$|[-_]key$|(access|refresh|session|auth|id)token$",
    re.IGNORECASE,
)
_NO_CREDENTIAL = re.compile(
    r"(idempotency|cache|primary|foreign|sort)[-_]key|(bos|eos|pad|unk|stop|mask|page|next)[-_]token$",
    re.IGNORECASE,
)
_MESSAGES = frozenset({"messages", "input", "contents", "prompt", "system", "instructions", "tools"})
"""Fields of a request that a model reads. Tools are looked into: servers that they name are given tokens."""

Told = Callable[[], object]


def is_credential(name: Any) -> bool:
    """Whether a header or field of this name may let somebody in."""
    return isinstance(name, str) and bool(_NAMES.search(name)) and not _NO_CREDENTIAL.search(name)


def without(value: Any, *, told: Told) -> Any:
    """A value without the fields, at any depth, that may let somebody in, and URLs without theirs.

    Lists of `{name, value}` are fields too, and so are pairs of texts. In a URL and in these `key` is a key.

    Args:
        told: called for each that is left out.
    """
    if isinstance(value, dict):
        kept = {}
        for name, one in value.items():
            if is_credential(name) and one not in (None, "", [], {}):
                told()
            else:
                kept[name] = without(one, told=told)
        return kept
    if isinstance(value, list):
        found = []
        for one in value:
            if is_credential(_named(one)) or _named(one) == "key":
                told()
            else:
                found.append(without(one, told=told))
        return found
    return safe_url(value, told=told) if isinstance(value, str) and "://" in value[:12] else value


def _named(value: Any) -> Any:
    """The name in `{name, value}` or `[name, value]`; None where a value is neither."""
    if isinstance(value, dict) and "value" in value:
        return value.get("name", value.get("key"))
    return value[0] if isinstance(value, list) and len(value) == 2 and isinstance(value[1], str) else None


def safe_url(url: str, *, told: Told) -> str:
    """A URL without its user and the fields that may let somebody in."""
    try:
        parts = urlsplit(url)
        fields = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return url.partition("?")[0]
    kept = [(name, value) for name, value in fields if not (is_credential(name) or name == "key")]
    is_named = "@" in parts.netloc
    for _ in range(len(fields) - len(kept) + is_named):
        told()
    if len(kept) == len(fields) and not is_named:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=urlencode(kept)))


def safe_request(request: dict[str, Any], *, told: Told) -> dict[str, Any]:
    """A request without credentials beside its messages: of the provider, of servers that its tools name."""
    kept = {}
    for name, value in request.items():
        if name == "tools":
            kept[name] = [_safe_tool(one, told=told) for one in value] if isinstance(value, list) else value
        elif name in _MESSAGES:
            kept[name] = value
        else:
            kept |= without({name: value}, told=told)
    return kept


def _safe_tool(tool: Any, *, told: Told) -> Any:
    """A tool of another server without what proves who calls it. A schema only names such things."""
    if not isinstance(tool, dict) or "server_url" not in tool:
        return tool
    return without(tool, told=told)
