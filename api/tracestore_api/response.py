"""What a read answers with: strict JSON, posted spans in it byte for byte, and lists of it page by page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from tracestore.wire.strict import dumps
from tracestore_api.parameters import Page, Place, cursor_of


class StrictJSON(Response):
    """A JSON response whose content `dumps` writes."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dumps(content)


def page_of(
    items: list[dict[str, Any]], page: Page, *, of: str, place: Callable[[dict[str, Any]], Place]
) -> StrictJSON:
    """The page of up to `limit + 1` rows, the last of which only says that there are more.

    Args:
        of: the list, which its cursor names.
    """
    truncated = len(items) > page.limit
    items = items[: page.limit]
    places = [place(item) for item in items]
    next_cursor = cursor_of(places[-1], of=of) if truncated else None
    return StrictJSON({"items": items, "next_cursor": next_cursor, "truncated": truncated})
