"""A store -> the HTTP service: routes, limits, the wall around them, and one place for errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from anyio import to_thread
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.routing import Route

from tracestore import __version__
from tracestore.store.store import Store
from tracestore.wire.events import EVENT
from tracestore.wire.limits import LIMITS, Limits
from tracestore_api import lists, problems, reads
from tracestore_api.body import Admission
from tracestore_api.guard import LoopbackOnly
from tracestore_api.ingest import EventsRoute
from tracestore_api.parameters import EncodedPath
from tracestore_api.rewards import RewardRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """How much the server holds in hand; beyond it, requests are answered 503 with Retry-After."""

    max_requests: int = 512
    """Posts in hand at once, the ones being received included."""
    max_bytes: int = 768 * 2**20
    """Bytes of their bodies, as received and as decompressed. The largest body must fit twice."""
    max_threads: int = 64
    """Posts that are decoded or wait for their commit; one commit takes all that wait."""


QUEUE = Queue()
READ_THREADS = 12
"""Reads at once. The store's pool has 15 connections, and one of them commits."""


def create_app(store: Store, *, limits: Limits = LIMITS, queue: Queue = QUEUE) -> FastAPI:
    """The service over an open store, which the caller closes after it.

    Args:
        limits: what one event and one body may be.
        queue: what may be in hand at once.
    """
    assert queue.max_bytes >= 2 * limits.max_body_bytes, (
        "a body of the allowed size must fit, compressed and not"
    )
    app = FastAPI(
        title="tracestore",
        version=__version__,
        openapi_url="/v1/openapi.json",
        # The pages that FastAPI offers load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        lifespan=_bounded_reads,
        middleware=[Middleware(LoopbackOnly), Middleware(EncodedPath)],
    )
    problems.install(app)
    admission = Admission(max_requests=queue.max_requests, max_bytes=queue.max_bytes)
    posts: dict[str, Any] = {"limits": limits, "admission": admission, "max_threads": queue.max_threads}
    app.router.routes += [
        Route("/v1/events", EventsRoute(store, **posts), methods=["POST"], name="post_events"),
        Route("/v1/rewards", RewardRoute(store, **posts), methods=["POST"], name="post_reward"),
    ]
    app.state.store = store
    app.state.limits = limits
    app.include_router(reads.router)
    app.include_router(lists.router)
    app.openapi = _with_posts(app.openapi)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _bounded_reads(app: FastAPI) -> AsyncIterator[None]:
    """Reads wait for a thread, not for one of the store's pooled connections: that would end in an error."""
    to_thread.current_default_thread_limiter().total_tokens = READ_THREADS
    yield


def _with_posts(openapi: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """The document with the two raw routes, which FastAPI cannot see into."""

    def document() -> dict[str, Any]:
        found = openapi()
        schemas = EVENT.json_schema(ref_template="#/components/schemas/{model}")
        found.setdefault("components", {}).setdefault("schemas", {}).update(schemas.pop("$defs"))
        found["components"]["schemas"]["Event"] = schemas
        found["paths"].setdefault("/v1/events", {})["post"] = _post(
            "Post one event, an array of events, or one event a line",
            {
                "application/json": {
                    "schema": {"anyOf": [_EVENT, {"type": "array", "items": _EVENT}]},
                },
                "application/x-ndjson": {"schema": {"type": "string", "description": "one event a line"}},
            },
            {
                "200": "every event is stored, or was already",
                "207": "some are; `items` says which",
                "422": "none is; `items` says why",
            },
        )
        found["paths"].setdefault("/v1/rewards", {})["post"] = _post(
            "Post one reward; `v`, `kind` and `id` may be left out",
            {"application/json": {"schema": {"type": "object"}}},
            {
                "200": "stored, or was already",
                "409": "another reward with this id is stored",
                "422": "no reward",
            },
        )
        return found

    return document


_EVENT = {"$ref": "#/components/schemas/Event"}


def _post(summary: str, content: dict[str, Any], responses: dict[str, str]) -> dict[str, Any]:
    project = {
        "name": "X-Tracestore-Project",
        "in": "header",
        "required": False,
        "schema": {"type": "string", "default": "default"},
    }
    return {
        "summary": summary,
        "parameters": [project],
        "requestBody": {"required": True, "content": content},
        "responses": {status: {"description": text} for status, text in responses.items()},
    }
