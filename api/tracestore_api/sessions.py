"""A key, shown once -> a session of a browser, in a cookie that no script can read.

A page of this server asks its user for a key and posts it here in a header. The cookie holds a random name;
what it stands for is kept in the database, for every process of the server, until the session is closed or
`SESSION_S` are over, or its key ends.
"""

from __future__ import annotations

import time
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from tracestore.store.engine import writer
from tracestore.store.keys import Key, close_session, hash_of, open_session
from tracestore_api.access import CALLER, SESSION_COOKIE, AnyProject, Caller
from tracestore_api.errors import NoSession
from tracestore_api.reads import NoParameters, Stored
from tracestore_api.response import StrictJSON

SESSION_S = 12 * 3600

router = APIRouter()


class SessionAnswer(BaseModel):
    """What a session may do, and until when."""

    project: str
    scopes: list[Literal["read", "write", "admin"]]
    expires_at: int


@router.post("/v1/session", status_code=201, response_model=SessionAnswer)
def post_session(request: Request, store: Stored, project: AnyProject, no: NoParameters) -> Response:
    """Open a session for the key that the request shows; the answer sets the cookie."""
    key = _shown_key(request)
    now = time.time_ns()
    expires_at = now + SESSION_S * 10**9
    if key.expires_at is not None:
        expires_at = min(expires_at, key.expires_at)
    with writer(store.engine).begin() as connection:
        text = open_session(connection, key, expires_at=expires_at, now=now)
    answer = SessionAnswer(project=project, scopes=list(key.scopes), expires_at=expires_at)
    response = StrictJSON(answer.model_dump(), status_code=201)
    _set_cookie(response, request, text, max_age=(expires_at - now) // 10**9)
    return response


@router.delete("/v1/session", status_code=204)
def delete_session(request: Request, store: Stored, project: AnyProject, no: NoParameters) -> Response:
    """Close the session of the request's cookie, here and in the browser."""
    text = request.cookies.get(SESSION_COOKIE, "")
    with writer(store.engine).begin() as connection:
        close_session(connection, hash_of(text))
    request.app.state.callers.forget(text)
    response = Response(status_code=204)
    _set_cookie(response, request, "", max_age=0)
    return response


def _shown_key(request: Request) -> Key:
    caller: Caller | None = request.scope[CALLER]
    if caller is None:
        raise NoSession(hint="this server has no API keys, so nobody needs a session")
    if caller.in_session:
        raise NoSession(hint="a session does not open another: send the key itself")
    return caller.key


def _set_cookie(response: Response, request: Request, text: str, *, max_age: int) -> None:
    # Behind a proxy that ends TLS only the page's origin tells; browsers send it with every POST and DELETE.
    is_https = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
    response.set_cookie(
        SESSION_COOKIE, text, max_age=max_age, path="/", secure=is_https, httponly=True, samesite="strict"
    )
