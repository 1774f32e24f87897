"""An import's batches -> a running server, as a client sends: its limits, compression, retries, blobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracestore.cli.import_ import Sink
    from tracestore.importers.items import Item

_RETRY_S = 60.0
"""How long a server that answered before is tried again."""
_TIMEOUT_S = 300.0


@contextmanager
def posting(
    url: str, *, project: str | None, api_key: str | None, tell: Callable[[str], object]
) -> Iterator[Sink]:
    """What posts one batch to a server.

    Args:
        project: None: that of the key, and without a key the default one.
        tell: told what goes wrong while it is tried again.

    Raises:
        ClientError: nobody answers there, or all is refused (a wrong key, a project that is not the key's).
    """
    from tracestore.client.server import Patience, Posted, Server, deliver
    from tracestore.client.settings import Settings

    settings = Settings.read(url=url, api_key=api_key, project=project, spool_dir=None, environ={})
    server = Server(settings.url, headers=settings.headers(), timeout_s=_TIMEOUT_S)
    stopped = threading.Event()

    def post(batch: Sequence[Item]) -> list[tuple[str, str | None]]:
        taken: dict[int, str] = {}
        rejected = deliver(
            server,
            [Posted(index, item.text) for index, item in enumerate(batch)],
            patience=Patience(lambda: _RETRY_S, stopped, tell),
            # A batch that is sent again is a duplicate of itself: what was said first holds.
            on_taken=lambda posted, status: taken.setdefault(posted.index, status),
        )
        problems = {one.index: (one.status, one.problem) for one in rejected}
        return [problems.get(index) or (taken[index], None) for index in range(len(batch))]

    try:
        server.reach()
        yield post
    finally:
        server.close()
