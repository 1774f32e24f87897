"""What a read answers with: strict JSON, posted spans in it byte for byte."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from tracestore.wire.strict import dumps


class StrictJSON(Response):
    """A JSON response whose content `dumps` writes."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dumps(content)
