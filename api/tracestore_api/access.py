"""Request -> the project it may touch, and what it may do there: every door asks here first."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import Scope

from tracestore_api.parameters import project_of

Right = Literal["read", "write", "admin"]


def admitted(scope: Scope, *, needs: Right) -> str:
    """The project of a request that may do what it asks for.

    Raises:
        InvalidProject: the request names a project in a way that cannot be read.
    """
    return project_of(Headers(scope=scope))


def _read(request: Request) -> str:
    return admitted(request.scope, needs="read")


Project = Annotated[str, Depends(_read)]
"""The project of a read."""
